"""What is stated about the error of a CCE holds against the definition in extended precision, rounding included."""

import numpy as np
import pytest
from certified import SMALL, evaluated, exact_values, large_problem, random_problem

from congruence.kernels import (
    RBF,
    Cholesky,
    Laplacian,
    Matern,
    Normal,
    Polynomial,
    maximum_conditional_mean_discrepancy,
    prepare,
)
from congruence.kernels.errors import ConvergenceError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers import ConjugateGradient, Nystrom

BEYOND_SINGLE_PRECISION = (1016, 1023)  # k(x, x) / lambda of 1e11 and more: refused, not answered


def assert_within_its_bounds(result, exact):
    assert np.max(np.abs(result.values - exact)) <= result.error_bound
    assert abs(result.mean - np.mean(exact)) <= result.mean_error_bound <= result.error_bound


@pytest.mark.filterwarnings("ignore::congruence.kernels.gram.variation.NearlyConstantKernelWarning")
@pytest.mark.parametrize("seed", range(1000, 1035))
def test_no_random_problem_violates_its_certificate(seed):
    problem = random_problem(seed, SMALL[seed % len(SMALL)], most_rows=150)
    if seed in BEYOND_SINGLE_PRECISION:
        with pytest.raises(ConvergenceError, match="scale the features"):
            evaluated(problem)
    else:
        assert_within_its_bounds(evaluated(problem), exact_values(problem))


def test_weights_have_all_their_digits_where_inputs_are_in_single_precision():
    problem = random_problem(567, "cholesky")
    assert problem.weights is not None
    assert problem.x.dtype == np.float32
    assert_within_its_bounds(evaluated(problem), exact_values(problem))


@pytest.mark.parametrize("kind", ["unit norm", "matern 1/2", "clusters", "offset", "one long row"])
@pytest.mark.parametrize("solver", ["default", "default computed", "default sampled"])
@pytest.mark.parametrize("at_query", [False, True], ids=["reference", "query"])
def test_single_precision_keeps_its_certificate_and_the_certificate_its_use(kind, solver, at_query):
    problem = large_problem(kind, 600, solver, at_query=at_query)
    result, exact = evaluated(problem), exact_values(problem, np.float64)
    assert_within_its_bounds(result, exact)
    assert result.mean_error_bound <= {"clusters": 2e-2, "one long row": 2e-3}.get(kind, 1e-4) * result.mean


@pytest.mark.parametrize("offset", [100.0, 1000.0])
@pytest.mark.parametrize("kernel", [RBF(0.5), Laplacian(0.5), Matern(1.5), RBF(0.5) + Matern(0.5)], ids=str)
def test_an_offset_of_the_inputs_changes_nothing(kernel, offset):
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal((400, 3)) * 2**8) / 2**8  # exact in float32 with the offset, too
    mean = np.sin(x[:, 0])
    y, model = rng.normal(mean, 0.5), Normal(mean + 0.2, np.full(400, 0.5))
    exact = prepare(x, input_kernel=kernel, solver=Cholesky()).conditional_congruence_error(y, model)
    solver = ConjugateGradient(landmarks=100)
    moved, query = (x + offset).astype(np.float32), (x[:50] + offset).astype(np.float32)
    for points in (None, query):
        prepared = prepare(moved, query=points, input_kernel=kernel, solver=solver)
        found = prepared.conditional_congruence_error(y, model)
        np.testing.assert_allclose(found.values, exact.values[: len(found.values)], atol=1e-6)


@pytest.mark.parametrize("kernel", [RBF(0.5), Matern(0.5), Matern(2.5), RBF(0.5) * Polynomial()], ids=str)
def test_kernels_themselves_see_distances_and_not_offsets(kernel):
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32) + np.float32(1000.0)
    exact = kernel(x.astype(np.float64))
    np.testing.assert_allclose(kernel(x), exact, rtol=1e-5)
    np.testing.assert_allclose(kernel(x, x.copy()), exact, rtol=1e-5)


def test_copies_of_a_point_are_at_distance_zero_in_every_block():
    x = np.random.default_rng(2).standard_normal((100, 4)).astype(np.float32)
    x[50:] = x[:50]
    operator = RegularizedGram(x, Matern(0.5), 0.1, block_rows=30)
    copies = np.arange(50)
    assert np.all(operator.gram_columns(copies)[50 + copies, copies] == 1.0)
    columns = operator.columns(copies)
    np.testing.assert_array_equal(columns.matmul(np.eye(50))[50 + copies, copies], 1.0)
    unit = np.eye(100)[:, :50]
    np.testing.assert_array_equal(operator.matmul(unit)[50 + copies, copies], 1.0)


def test_how_a_bound_is_known_goes_with_it():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 3))
    y, model = rng.standard_normal(500), Normal(np.zeros(500), np.ones(500))
    kinds = {
        "computed": (x, ConjugateGradient(landmarks=50)),
        "sampled": (x, Nystrom(40, rows=60)),
    }
    for kind, (inputs, solver) in kinds.items():
        result = prepare(inputs, input_kernel=RBF(0.3), solver=solver).conditional_congruence_error(y, model)
        assert result.bound_kind == kind
    single = x.astype(np.float32)  # rounding is read at random points
    result = prepare(single, input_kernel=RBF(0.3), solver=ConjugateGradient(landmarks=50))
    assert result.conditional_congruence_error(y, model).bound_kind == "sampled"
    assert prepare(single, input_kernel=RBF(0.3)).conditional_congruence_error(y, model).bound_kind == "computed"
    discrepancy = maximum_conditional_mean_discrepancy(
        x, y, x, y + 1.0, x, input_kernel=RBF(0.3), solver=Nystrom(40, rows=60)
    )
    assert discrepancy.bound_kind == "sampled"


def test_the_discrepancy_of_two_samples_is_within_its_certificate():
    rng = np.random.default_rng(4)
    x, x_prime = rng.standard_normal((400, 2)), rng.standard_normal((300, 2))
    y, y_prime = np.sin(x[:, 0]) + 5.0 * rng.standard_normal(400), 0.1 * rng.standard_normal(300)
    settings = {"query": x[:40], "input_kernel": RBF(0.5)}
    exact = maximum_conditional_mean_discrepancy(x, y, x_prime, y_prime, **settings, solver=Cholesky())
    for solver in (ConjugateGradient(1e-3, landmarks=30), Nystrom(20)):
        found = maximum_conditional_mean_discrepancy(x, y, x_prime, y_prime, **settings, solver=solver)
        error = np.max(np.abs(found.values - exact.values))
        assert 0.0 < error <= found.error_bound < 1e4 * error
