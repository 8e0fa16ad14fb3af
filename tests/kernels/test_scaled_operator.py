"""The operator of S K S + n lambda I against its matrix, and every solver on it."""

import numpy as np
import pytest

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom

RNG = np.random.default_rng(0)
X, QUERY = 5.0 + RNG.standard_normal((230, 4)), 5.0 + RNG.standard_normal((9, 4))
SCALE = np.sqrt(RNG.integers(1, 6, 230) / 3.0)
V = RNG.standard_normal((230, 3))
GRAM = SCALE[:, None] * RBF(0.3)(X) * SCALE
A = GRAM + 23.0 * np.eye(230)


def scaled(block_rows=64):
    return RegularizedGram(X, RBF(0.3), 0.1, SCALE, block_rows=block_rows)


def test_every_answer_is_that_of_the_scaled_matrix():
    operator, rows, some = scaled(), np.array([3, 200, 7]), np.array([0, 229])
    at_query = RBF(0.3)(QUERY, X) * SCALE
    small = operator.restricted(rows)
    expected = [
        (operator.matmul(V), A @ V),
        (operator.gram_matmul(V), GRAM @ V),
        (operator.cross(QUERY, V), at_query @ V),
        (operator.gram_columns(rows), GRAM[:, rows]),
        (operator.gram_columns(rows, some), GRAM[np.ix_(some, rows)]),
        (operator.gram_diagonal(), np.diagonal(GRAM)),
        (operator.row_products(rows, V), (GRAM @ V)[rows]),
        (operator.exact_gram(), GRAM),
        (operator.exact_gram(QUERY), at_query),
        (operator.exact_rows(rows), GRAM[rows]),
        (small.cross(QUERY, V[rows]), at_query[:, rows] @ V[rows]),
    ]
    for found, matrix in expected:
        np.testing.assert_allclose(found, matrix, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(operator.rows(rows), X[rows])
    np.testing.assert_array_equal(operator.row_norms(), RegularizedGram(X, RBF(0.3), 0.1).row_norms())
    assert (operator.n, operator.dimension, operator.shift) == (230, 4, 23.0)


@pytest.mark.parametrize("step", [1, 3])
def test_its_columns_are_those_of_the_scaled_matrix(step):
    indices = np.array([3, 200, 7, 50, 51, 120, 9])
    columns, thin = scaled().columns(indices).thinned(step), indices[::step]
    w, C = RNG.standard_normal((len(thin), 2)), GRAM[:, thin]
    for found, expected in [
        (columns.corner(), C[thin]),
        (columns.gram(), C.T @ C),
        (columns.transposed_matmul(V), C.T @ V),
        (columns.matmul(w), C @ w),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


SOLVERS = {
    "cholesky": Cholesky(),
    "computed": ConjugateGradient(1e-12, landmarks=60),
    "sampled": ConjugateGradient(1e-12, landmarks=60, certificate="sampled", rows=40, choice="rpcholesky"),
    "all landmarks": Nystrom(230),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_solves_the_scaled_system(name):
    solver = SOLVERS[name]
    solution = solver.solve(solver.prepare(scaled()), V)
    np.testing.assert_allclose(A @ solution.value, V, atol=1e-9)


def test_nystrom_on_the_scaled_matrix_states_its_error():
    solver = Nystrom(40, rows=30)
    solution = solver.solve(solver.prepare(scaled()), V)
    assert 0.0 < np.linalg.norm(V - A @ solution.value) <= solution.residual_norm()


@pytest.mark.parametrize(
    ("scale", "message"),
    [(np.ones(3), r"shape \(3,\), expected one number for each of 230"), (np.r_[np.ones(229), 0.0], "0.0 at row 229")],
)
def test_a_scale_that_does_not_fit_is_refused(scale, message):
    with pytest.raises(InvalidInputError, match=message):
        RegularizedGram(X, RBF(0.3), 0.1, scale)
