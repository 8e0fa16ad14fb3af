"""The kernel calibration error on Dask workers: the numbers of one process."""

import numpy as np
import pytest
from distributed import Client

from congruence.kernels.distributions import Normal
from congruence.kernels.kernel_calibration import calibration_test, pairs, squared_kernel_calibration_error
from congruence.tasks.solving.kernel_calibration import (
    distributed_calibration_test,
    distributed_kernel_calibration_error,
)


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        yield client


def test_equal_to_one_process(client, monkeypatch):
    monkeypatch.setattr(pairs, "BLOCK_ROWS", 128)
    rng = np.random.default_rng(0)
    predictive = Normal(rng.normal(size=500), rng.uniform(0.5, 2, 500))
    y = predictive.loc + 0.3 + predictive.scale * rng.normal(size=500)
    for estimator in ("unbiased", "biased", "block"):
        expected = squared_kernel_calibration_error(y, predictive, estimator=estimator)
        assert distributed_kernel_calibration_error(client, predictive, y, estimator=estimator) == expected
    for method in ("asymptotic", "block", "consistency"):
        expected = calibration_test(y, predictive, method=method)
        assert distributed_calibration_test(client, predictive, y, method=method) == expected
