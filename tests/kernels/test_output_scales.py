"""Output kernels at three scales, and the claim they are there for: what the marginal bandwidth cannot see."""

import numpy as np
import pytest

from congruence.kernels import RBF, Normal, multiscale_rbf, prepare, variance_gamma
from congruence.kernels.engine.blocks import Columns
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.plan import Ask, kernel_at_scale
from congruence.kernels.protocol import EvaluationProtocol

RESIDUAL = EvaluationProtocol("residual", False, RBF(1.0), output_scale="residual")


def residual_kernel(x, y):
    driver = HeldSplit(x, y).driver(RESIDUAL, {"a": Normal(0.0 * y, 0.0 * y + 1.0)}, 0)
    solved = driver.solve(Ask(["a"], tested=False), len(y), Columns())
    return solved.answers[0].version.kernel


def split(n=900, residual=2.0, spread=35.0, seed=0):
    """Residuals of 2 against a spread of 35, on a curve."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, n)
    mean = spread * np.sin(2.0 * x) * np.sqrt(2.0)
    return x[:, None], mean + residual * rng.standard_normal(n), mean


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("residual", [0.5, 2.0, 10.0])
def test_the_residual_scale_is_that_of_the_noise_whatever_lambda_does(residual, dtype):
    x, y, _ = split(residual=residual)
    kernel = residual_kernel(x.astype(dtype), y)
    assert isinstance(kernel, RBF)
    assert np.sqrt(1.0 / (2.0 * kernel.gamma)) == pytest.approx(residual, rel=0.06)


def test_the_residual_scale_of_targets_without_structure_is_the_marginal_one():
    x, _, _ = split()
    y = np.random.default_rng(1).standard_normal(len(x))
    kernel = residual_kernel(x, y)
    assert isinstance(kernel, RBF)
    assert kernel.gamma == pytest.approx(variance_gamma(y), rel=0.05)


def test_targets_without_noise_have_a_finest_scale():
    x, y, _ = split(residual=0.0)
    kernel = residual_kernel(x, y)
    assert isinstance(kernel, RBF)
    assert kernel.gamma <= 1e4 * variance_gamma(y) * (1 + 1e-9)


def test_at_the_marginal_scale_a_threefold_overconfident_model_passes_and_at_the_residual_scale_it_does_not():
    mean_errors = []
    for seed in range(6):
        x, y, mean = split(400, seed=seed)
        versions = {
            "true": Normal(mean, np.full(len(y), 2.0)),
            "overconfident": Normal(mean, np.full(len(y), 2.0 / 3.0)),
        }
        prepared, scales = prepare(x, input_kernel=RBF(20.0)), ("marginal", "residual", "multiscale")
        found = [prepared.evaluate(y, versions, output_scale=scale, draws=0) for scale in scales]
        mean_errors.append([[results[name].mean for results in found] for name in versions])
    true, overconfident = np.mean(mean_errors, axis=0)
    marginal, residual, multiscale = overconfident / true
    assert marginal < 1.1
    assert residual > 1.2
    assert multiscale > 1.1
    assert residual - 1.0 > 4.0 * (marginal - 1.0)


def test_scales_are_multiples_of_the_variance():
    _, y, _ = split(100)
    gamma = variance_gamma(y)
    assert kernel_at_scale("marginal", gamma) == RBF(gamma)
    assert kernel_at_scale("multiscale", gamma) == multiscale_rbf(y)
    assert kernel_at_scale("residual", gamma, 0.25 / gamma) == RBF(2.0 * gamma)
