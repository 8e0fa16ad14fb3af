"""The test of conditional calibration of inputs on a GPU is that of inputs in host memory."""

import numpy as np
import pytest

from congruence.kernels import Normal, Polynomial
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_test_is_the_same(prepared: bool) -> None:
    rng = np.random.default_rng(0)
    x = 10.0 + rng.standard_normal((150, 4))
    mean = 3.0 * x[:, 0]
    y, model = rng.normal(mean, np.exp(0.5 * x[:, 1] - 5.0)), Normal(mean, np.ones(150))
    settings = CalibrationSettings(draws=99, directions=30)
    host, device = (
        prepare_calibration(inputs, input_kernel=KERNEL if prepared else None, settings=settings).test_version(y, model)
        for inputs in (x, cupy.asarray(x))
    )
    assert device.statistic == pytest.approx(host.statistic, rel=1e-3)
    np.testing.assert_allclose(device.null_statistics, host.null_statistics, rtol=1e-2, atol=1e-2)
    assert device.p_value == pytest.approx(host.p_value, abs=0.02)
