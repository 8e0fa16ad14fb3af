"""The warning on a kernel that ignores its inputs."""

import warnings

import numpy as np
import pytest

from congruence.kernels import RBF, Polynomial, prepare
from congruence.kernels.engine.landmarks import NearlyConstantKernelWarning, kernel_variation

UNIT = Polynomial(degree=3, gamma=1.0, coef0=1.0)


def unit_norm(n=400, d=16, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_unit_norm_with_the_bandwidth_of_raw_embeddings_is_warned_of():
    with pytest.warns(NearlyConstantKernelWarning, match="CCE hardly depends on x"):
        prepare(unit_norm(d=512), input_kernel=Polynomial(degree=3, gamma=None, coef0=1.0))


def test_a_kernel_that_sees_its_inputs_is_not():
    assert kernel_variation(unit_norm(d=512), UNIT) > 0.05


def test_identical_inputs_are_warned_of_as_well():
    with pytest.warns(NearlyConstantKernelWarning):
        prepare(np.ones((20, 3)), input_kernel=RBF(1.0))


def test_two_points_cannot_show_that_a_kernel_is_constant():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(np.array([[0.0], [1.0]]), input_kernel=RBF(1.0))
    assert np.isnan(kernel_variation(np.array([[0.0], [1.0]]), RBF(1.0)))


def test_a_constant_kernel_is_warned_of_under_weights_however_these_vary():
    with pytest.warns(NearlyConstantKernelWarning):
        prepare(np.ones((40, 3)), input_kernel=RBF(1.0), weights=np.linspace(1.0, 9.0, 40))
