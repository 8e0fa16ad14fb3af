"""Tests and weighted references of inputs on a GPU are those of inputs in host memory."""

import numpy as np
import pytest

from congruence.kernels import Normal, Polynomial, prepare
from congruence.kernels.conditional_calibration.null import draw_blocks, projected_draws
from congruence.kernels.congruence.test import congruence_tests
from congruence.kernels.protocol.weighting import weighted_reference

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 16))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = 3.0 * x[:, 0]
    return x, rng.normal(mean, 1.0), Normal(mean + 0.1, np.ones(500))


def test_the_congruence_test_is_the_same(split):
    x, y, model = split
    host, device = (
        congruence_tests(prepare(inputs, input_kernel=KERNEL), y, {"": model}, draws=99)[""]
        for inputs in (x, cupy.asarray(x))
    )
    np.testing.assert_allclose(device.null_statistics, host.null_statistics, rtol=1e-4)
    assert device.p_value == pytest.approx(host.p_value, abs=0.01)


def test_a_weighted_reference_is_the_same(split):
    x, y, _ = split
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 300)
    host, device = (
        weighted_reference(
            inputs, np.arange(300), query=inputs[:20], input_kernel=KERNEL, regularization=0.1, weights=weights
        ).smooth(y[:, None])[0]
        for inputs in (x, cupy.asarray(x))
    )
    np.testing.assert_allclose(device, host, rtol=1e-6)


def test_drawn_pit_values_are_scored_and_projected_on_the_card_as_on_the_host():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((700, 5)).astype(np.float32)
    for block in draw_blocks(300):
        host, device = (projected_draws(of, 0, block, 300, 7) for of in (vectors, cupy.asarray(vectors)))
        np.testing.assert_allclose(device, host, atol=2e-4)
