"""Equal kernels are one kernel, whoever wrote them how: equal, one digest, the same numbers by the same way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from congruence.kernels import EvaluationProtocol
from congruence.kernels.distributions import Laplace, MultivariateNormal
from congruence.kernels.engine.targets import target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Laplacian, Linear, Matern, Polynomial, Product, Sum

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
