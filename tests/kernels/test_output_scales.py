"""Output kernels at three scales, and the claim they are there for: what the marginal bandwidth cannot see."""

import numpy as np
import pytest

from congruence.kernels import RBF, Normal, Polynomial, multiscale_rbf, prepare, variance_gamma
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol.output_scales import SCALES, output_kernel
from congruence.kernels.protocol.protocol import EXACT, EvaluationProtocol
from congruence.kernels.solvers import ConjugateGradient


def split(n=1500, residual=2.0, spread=35.0, seed=0):
    """Residuals of 2 against a spread of 35, on a curve."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, n)
    mean = spread * np.sin(2.0 * x) * np.sqrt(2.0)
    return x[:, None], mean + residual * rng.standard_normal(n), mean


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("residual", [0.5, 2.0, 10.0])
def test_the_residual_scale_is_that_of_the_noise_whatever_lambda_does(residual, dtype):
    x, y, _ = split(residual=residual)
    prepared = prepare(x.astype(dtype), input_kernel=RBF(1.0), regularization=0.1, solver=ConjugateGradient(1e-4))
    kernel = output_kernel("residual", y, prepared)
    assert isinstance(kernel, RBF)
    assert np.sqrt(1.0 / (2.0 * kernel.gamma)) == pytest.approx(residual, rel=0.06)


def test_the_residual_scale_of_targets_without_structure_is_the_marginal_one():
    x, _, _ = split()
    y = np.random.default_rng(1).standard_normal(len(x))
    kernel = output_kernel("residual", y, prepare(x, input_kernel=RBF(1.0)))
    assert isinstance(kernel, RBF)
    assert kernel.gamma == pytest.approx(variance_gamma(y), rel=0.05)


def test_targets_without_noise_have_a_finest_scale():
    x, y, _ = split(residual=0.0)
    kernel = output_kernel("residual", y, prepare(x, input_kernel=RBF(1.0)))
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
        prepared = prepare(x, input_kernel=RBF(20.0))
        kernels = [output_kernel(scale, y, prepared) for scale in SCALES]
        results = [prepared.congruence_errors(y, versions, output_kernel=kernel) for kernel in kernels]
        mean_errors.append([[result[name].mean for result in results] for name in versions])
    true, overconfident = np.mean(mean_errors, axis=0)
    marginal, residual, multiscale = overconfident / true
    assert marginal < 1.1
    assert residual > 1.2
    assert multiscale > 1.1
    assert residual - 1.0 > 4.0 * (marginal - 1.0)


def test_a_protocol_names_its_output_kernel():
    _, y, _ = split(100)
    assert output_kernel(EXACT, y) == RBF(variance_gamma(y))
    assert output_kernel("multiscale", y) == multiscale_rbf(y)
    fixed = EvaluationProtocol("fixed", normalize=True, input_kernel=Polynomial(), output_kernel=RBF(2.0))
    assert output_kernel(fixed, y) == RBF(2.0)


def test_a_scale_that_cannot_be_had_says_why():
    _, y, _ = split(100)
    with pytest.raises(InvalidInputError, match="needs the inputs"):
        output_kernel("residual", y)
    with pytest.raises(InvalidInputError, match="marginal, residual, multiscale"):
        output_kernel("fine", y)  # type: ignore[arg-type]
