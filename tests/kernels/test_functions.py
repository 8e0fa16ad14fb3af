"""Kernel functions against their definitions, point by point in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from congruence.kernels import (
    RBF,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    median_gamma,
    multiscale_rbf,
    variance_gamma,
)
from congruence.kernels.errors import InvalidInputError

POINTS = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-5, 5, width=32))

DEFINITIONS = {
    RBF(0.7): lambda u, v: np.exp(-0.7 * np.sum((u - v) ** 2)),
    Laplacian(0.3): lambda u, v: np.exp(-0.3 * np.sum(np.abs(u - v))),
    Polynomial(3, 0.5, 1.0): lambda u, v: (0.5 * u @ v + 1.0) ** 3,
    Polynomial(2): lambda u, v: (u @ v / len(u) + 1.0) ** 2,
    Linear(): lambda u, v: u @ v,
    Matern(0.5, 2.0): lambda u, v: np.exp(-np.linalg.norm(u - v) / 2.0),
    Matern(1.5, 2.0): lambda u, v: (1 + np.sqrt(3) * _t(u, v)) * np.exp(-np.sqrt(3) * _t(u, v)),
    Matern(2.5, 2.0): lambda u, v: (1 + np.sqrt(5) * _t(u, v) + 5 / 3 * _t(u, v) ** 2) * np.exp(-np.sqrt(5) * _t(u, v)),
    RBF(0.7) + Linear(): lambda u, v: np.exp(-0.7 * np.sum((u - v) ** 2)) + u @ v,
    RBF(0.7) * Polynomial(2): lambda u, v: np.exp(-0.7 * np.sum((u - v) ** 2)) * (u @ v / len(u) + 1.0) ** 2,
}


def _t(u: np.ndarray, v: np.ndarray) -> float:
    return float(np.linalg.norm(u - v) / 2.0)


@pytest.mark.parametrize("kernel", DEFINITIONS, ids=str)
def test_blocks_equal_the_definition(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    expected = np.array([[DEFINITIONS[kernel](u, v) for v in z] for u in x])
    np.testing.assert_allclose(kernel(x, z), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.diagonal(x), np.diag(kernel(x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", DEFINITIONS, ids=str)
@given(x=POINTS)
@settings(max_examples=15, deadline=None)
def test_gram_matrices_are_positive_semidefinite_also_with_equal_points(kernel: Kernel, x: np.ndarray) -> None:
    gram = kernel(np.concatenate([x, x[:1]]))
    np.testing.assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-9)
    # |x|^2 - 2 x.z + |z|^2 rounds at 1e-14 of |x|^2, and Matern 1/2 takes the root of it.
    assert np.linalg.eigvalsh(gram).min() >= -1e-5 * max(1.0, np.abs(gram).max())


def test_float32_blocks_stay_float32() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    for kernel in DEFINITIONS:
        assert kernel(x).dtype == np.float32, kernel


def test_kernels_describe_themselves_for_the_digest() -> None:
    assert RBF(0.5).describe() == {"kind": "RBF", "gamma": 0.5}
    assert (RBF(0.5) + RBF(1.0)).describe()["parts"][1]["gamma"] == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF(0.0),
        lambda: RBF(float("nan")),
        lambda: Laplacian(-1.0),
        lambda: Polynomial(degree=0),
        lambda: Polynomial(gamma=0.0),  # 0 is refused, not read as "the default"
        lambda: Polynomial(coef0=-1.0),
        lambda: Matern(1.0),
        lambda: Matern(1.5, 0.0),
    ],
)
def test_parameters_outside_their_domain_are_refused(make: object) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        make()  # type: ignore[operator]


def test_bandwidths() -> None:
    y = np.array([1.0, 2.0, 4.0])
    assert variance_gamma(y) == pytest.approx(1 / (2 * np.var(y, ddof=1)))
    x = np.array([[0.0], [2.0]])
    assert median_gamma(x) == pytest.approx(1 / 8)
    gammas = [part.gamma for part in multiscale_rbf(y).parts]  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.array(gammas[1:]) / gammas[:-1], 4.0)


def test_constant_targets_have_no_bandwidth() -> None:
    with pytest.raises(InvalidInputError, match="all 3 values are"):
        variance_gamma(np.full(3, 1.7))
    with pytest.raises(InvalidInputError, match="one row"):
        variance_gamma(np.array([1.0]))
    with pytest.raises(InvalidInputError, match="row 1"):
        variance_gamma(np.array([1.0, np.nan]))
