"""Kernel functions: their definitions, one kernel however it is written, and a warning where one ignores its inputs."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from unit_splits import CUBIC, unit_rows

from congruence.kernels import (
    RBF,
    EvaluationProtocol,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    median_gamma,
    multiscale_rbf,
    prepare,
    variance_gamma,
)
from congruence.kernels.distributions import Laplace, MultivariateNormal
from congruence.kernels.engine.landmarks import NearlyConstantKernelWarning, kernel_variation
from congruence.kernels.engine.targets import target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Product, Sum

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


A, B, C = Laplacian(0.7), Laplacian(2.0), Matern(1.5, 0.4)
SPELLINGS = [A + B + C, A + (B + C), Sum((A, B, C)), Sum((Sum((C,)), Sum((B, A)))), C + B + A]
PAIRS = [
    (Linear(), Polynomial(1, 1, 0)),
    (Linear(0.5, 2.0), Polynomial(1, 0.5, 2)),
    (RBF(1), RBF(1.0)),
    (Sum((A,)), A),
    (Product((Sum((B,)),)), B),
    ((A * B) * C, C * (B * A)),
]


def digest(kernel):
    return EvaluationProtocol("named", normalize=False, input_kernel=kernel, output_kernel=kernel).digest


@pytest.mark.parametrize(("one", "other"), [*itertools.pairwise(SPELLINGS), *PAIRS])
def test_spellings_of_a_kernel_are_equal_and_have_one_digest(one, other):
    assert one == other
    assert hash(one) == hash(other)
    assert digest(one) == digest(other)
    x = np.random.default_rng(0).normal(size=(7, 2))
    np.testing.assert_allclose(one(x), other(x), rtol=1e-14)


def test_kernels_that_differ_have_digests_that_differ():
    kernels = [A, B, C, A + B, A * B, A + A, Linear(), Polynomial(2, 1.0, 0.0), RBF(0.7), Matern(0.5, 1 / 0.7)]
    assert len({digest(kernel) for kernel in kernels}) == len(set(kernels)) == len(kernels)


def test_the_digests_of_single_kernels_are_those_of_earlier_versions():
    kernels = [RBF(0.5), Laplacian(0.5), Matern(1.5, 2.0), Polynomial(3, None, 1.0), Linear()]
    assert [digest(kernel) for kernel in kernels] == [
        "3b864fae4fc9",
        "2d4648d65a55",
        "e09a39e6d194",
        "71bd99e8a138",
        "3cfc863581c9",
    ]


def test_a_sum_of_nothing_is_refused():
    with pytest.raises(InvalidInputError, match=r"Sum.parts: is empty"):
        Sum(())


@pytest.mark.parametrize("kernel", SPELLINGS[1:])
def test_errors_and_their_certificates_do_not_depend_on_the_spelling(kernel):
    rng = np.random.default_rng(3)
    loc, scale = rng.normal(size=30), rng.uniform(0.3, 2.0, 30)
    for y, law in [
        (rng.laplace(loc, scale), Laplace(loc, scale)),
        (rng.normal(size=(30, 2)), MultivariateNormal(np.c_[loc, loc], np.c_[scale, scale])),
    ]:
        found, expected = target_errors(y, law, kernel), target_errors(y, law, SPELLINGS[0])
        np.testing.assert_array_equal(found.delta, expected.delta)
        np.testing.assert_array_equal(found.missed.rows, expected.missed.rows)


def test_unit_norm_with_the_bandwidth_of_raw_embeddings_is_warned_of():
    with pytest.warns(NearlyConstantKernelWarning, match="CCE hardly depends on x"):
        prepare(unit_rows(400, 512), input_kernel=Polynomial(degree=3, gamma=None, coef0=1.0))


def test_a_kernel_that_sees_its_inputs_is_not():
    assert kernel_variation(unit_rows(400, 512), CUBIC) > 0.05


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
