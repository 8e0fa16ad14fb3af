"""Every solver against the definition in float64, and what each promises about its error."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import device_solves
from congruence.kernels.congruence.influence_sums import leave_one_out
from congruence.kernels.errors import BudgetError, ConvergenceError, InvalidInputError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import gram_spectrum
from congruence.kernels.gram.tiles import TileMaker, TilePoints
from congruence.kernels.kernel_functions import RBF, Laplacian, Linear, Matern, Polynomial
from congruence.kernels.solvers import (
    Cholesky,
    ConjugateGradient,
    Nystrom,
    certified_error,
    choose_landmarks,
    choose_solver,
)

KERNELS = [
    RBF(0.3),
    Laplacian(0.2),
    Matern(0.5, 2.0),
    Matern(1.5, 2.0),
    Matern(2.5, 2.0),
    Polynomial(),
    Polynomial(2, 0.1, 0.5),
    Polynomial(4, 0.05, 1.0),
    Linear(),
    RBF(0.3) + Linear(0.1),
    RBF(0.3) * Polynomial(2),
]


def inputs(n=150, d=6, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def right_hand_sides(n, r=4, seed=1):
    return np.random.default_rng(seed).standard_normal((n, r)) * 10.0 ** -np.arange(r)


def dense(operator):
    return operator.kernel(operator.x) + operator.shift * np.eye(operator.n)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("held_bytes", [0, 2**29])
def test_operator_is_the_matrix_for_every_kernel_with_tiles_that_do_not_divide_n(kernel, held_bytes):
    operator = RegularizedGram(inputs(), kernel, 0.1, block_rows=64, held_bytes=held_bytes, threads=2)
    v, query = right_hand_sides(150), inputs(37, seed=5)
    for _ in range(2):
        np.testing.assert_allclose(operator.matmul(v), dense(operator) @ v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(operator.cross(query, v), kernel(query, operator.x) @ v, rtol=1e-10, atol=1e-10)
    rows = np.array([3, 77, 149])
    np.testing.assert_allclose(operator.gram_columns(rows), kernel(operator.x)[:, rows], rtol=1e-10)


@pytest.mark.parametrize("held", [True, False])
def test_columns_are_those_of_the_gram_matrix(held, monkeypatch):
    if not held:
        monkeypatch.setattr("congruence.kernels.gram.columns.HELD_COLUMNS_BYTES", 0)
    operator = RegularizedGram(inputs(), RBF(0.3), 0.1, block_rows=64, threads=2)
    indices = np.array([0, 9, 100])
    columns, C = operator.columns(indices), RBF(0.3)(operator.x)[:, indices]
    v = right_hand_sides(150)
    np.testing.assert_allclose(columns.gram(), C.T @ C)
    np.testing.assert_allclose(columns.transposed_matmul(v), C.T @ v, atol=1e-12)
    np.testing.assert_allclose(columns.matmul(v[:3]), C @ v[:3], atol=1e-12)
    np.testing.assert_allclose(columns.corner(), C[indices])


@pytest.mark.parametrize(
    "solver", [Cholesky(), ConjugateGradient(1e-12), ConjugateGradient(1e-12, landmarks=20)], ids=str
)
@pytest.mark.parametrize("kernel", [RBF(0.3), Polynomial(), Laplacian(0.2)], ids=str)
def test_exact_solvers_equal_the_definition(solver, kernel):
    operator = RegularizedGram(inputs(), kernel, 0.05, block_rows=64)
    rhs = right_hand_sides(150)
    solution = solver.solve(solver.prepare(operator), rhs)
    np.testing.assert_allclose(solution.value, np.linalg.solve(dense(operator), rhs), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(solution.residual, rhs - dense(operator) @ solution.value, atol=1e-11)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 90),
    regularization=st.floats(1e-3, 10),
    tolerance=st.floats(1e-10, 1e-2),
    landmarks=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_conjugate_gradients_stop_within_their_tolerance_and_the_certificate_holds(
    n, regularization, tolerance, landmarks, seed
):
    operator = RegularizedGram(inputs(n, 3, seed), RBF(0.5), regularization)
    rhs = right_hand_sides(n, 3, seed)
    solver = ConjugateGradient(tolerance, landmarks=landmarks, choice="rpcholesky")
    solution = solver.solve(solver.prepare(operator), rhs)
    assert solution.residual_norm() <= tolerance * np.linalg.norm(rhs) * (1 + 1e-9)
    query = inputs(20, 3, seed + 1)
    exact = RBF(0.5)(query, operator.x) @ np.linalg.solve(dense(operator), rhs)
    error = np.linalg.norm(operator.cross(query, solution.value) - exact, axis=1).max()
    assert error <= certified_error(operator.shift, solution.residual_norm(), 1.0) + 1e-12


def test_columns_stop_one_by_one_at_their_own_tolerances():
    operator = RegularizedGram(inputs(400), RBF(0.3), 0.01)
    rhs = np.ones((400, 2)) + right_hand_sides(400, 2)
    solver = ConjugateGradient(landmarks=10)
    norms = np.linalg.norm(rhs, axis=0)
    solution = solver.solve(solver.prepare(operator), rhs, tolerances=norms * [1e-10, 2.0])
    assert np.linalg.norm(solution.residual[:, 0]) <= 1e-10 * norms[0]
    np.testing.assert_array_equal(solution.value[:, 1], 0)


def test_float32_inputs_reach_the_float64_answer_to_single_precision():
    x = inputs(600, 20)
    rhs = right_hand_sides(600)
    solver = ConjugateGradient(landmarks=100)
    single = RegularizedGram(x.astype(np.float32), Polynomial(), 0.1)
    solution = solver.solve(solver.prepare(single), rhs)
    operator = RegularizedGram(x, Polynomial(), 0.1)
    exact = np.linalg.solve(dense(operator), rhs)
    assert np.linalg.norm(solution.value - exact) <= 1e-6 * np.linalg.norm(exact)


def test_a_sampled_certificate_saves_a_pass_and_holds():
    operator = RegularizedGram(inputs(1500), RBF(0.05), 0.01)
    rhs = right_hand_sides(1500)
    true, passes = {}, {}
    for certificate_kind in ("computed", "sampled"):
        solver = ConjugateGradient(1e-6, landmarks=150, choice="rpcholesky", certificate=certificate_kind, rows=300)
        solution = solver.solve(solver.prepare(operator), rhs)
        true[certificate_kind] = np.linalg.norm(rhs - dense(operator) @ solution.value)
        passes[certificate_kind] = solution.iterations
        assert solution.norm_kind == certificate_kind
        assert true[certificate_kind] <= solution.residual_norm() * (1 + 1e-9) <= 1.1e-6 * np.linalg.norm(rhs)
    assert passes["sampled"] < passes["computed"]


def test_loose_columns_need_no_pass_under_a_sampled_certificate():
    operator = RegularizedGram(inputs(1500), RBF(0.05), 0.01)
    rhs = right_hand_sides(1500)
    solver = ConjugateGradient(landmarks=150, choice="rpcholesky", certificate="sampled", rows=300)
    solution = solver.solve(solver.prepare(operator), rhs, tolerances=0.1 * np.linalg.norm(rhs, axis=0))
    assert solution.iterations == 0
    assert np.linalg.norm(rhs - dense(operator) @ solution.value) <= 0.1 * np.linalg.norm(rhs)


def test_nan_tolerances_are_the_solvers_own():
    operator = RegularizedGram(inputs(300), RBF(0.3), 0.01)
    rhs = right_hand_sides(300, 2)
    solver = ConjugateGradient(1e-8, landmarks=30)
    solution = solver.solve(solver.prepare(operator), rhs, tolerances=np.array([np.nan, np.inf]))
    assert np.linalg.norm(solution.residual[:, 0]) <= 1e-8 * np.linalg.norm(rhs[:, 0])
    np.testing.assert_array_equal(solution.value[:, 1], 0)


def test_running_out_of_passes_says_what_may_help():
    operator = RegularizedGram(inputs(300), RBF(5.0), 1e-6)
    solver = ConjugateGradient(1e-12, landmarks=2, max_passes=3)
    with pytest.raises(ConvergenceError, match=r"after 3 passes column \d has residual .* use more landmarks"):
        solver.solve(solver.prepare(operator), right_hand_sides(300))


class MemoryCheckpoint:
    def __init__(self, stop_after):
        self.stop_after, self.kept = stop_after, None

    def load(self, rhs):
        return self.kept

    def save(self, iterate):
        import copy

        self.kept = copy.deepcopy(iterate)
        if self.stop_after == iterate.passes:
            raise KeyboardInterrupt


def broken_and_whole(solver, operator, rhs, after):
    """A run broken after some passes and gone on with, and an undisturbed one."""
    state = solver.prepare(operator)
    broken = replace(solver, checkpoint=MemoryCheckpoint(stop_after=after))
    with pytest.raises(KeyboardInterrupt):
        broken.solve(state, rhs)
    return broken.solve(state, rhs), replace(solver, checkpoint=MemoryCheckpoint(stop_after=0)).solve(state, rhs)


def test_a_broken_run_goes_on_from_its_checkpoint_to_the_same_answer():
    operator = RegularizedGram(inputs(300), RBF(1.0), 1e-4)
    resumed, whole = broken_and_whole(ConjugateGradient(1e-10, landmarks=10), operator, right_hand_sides(300), 4)
    assert resumed.iterations == whole.iterations > 4
    np.testing.assert_allclose(resumed.value, whole.value, rtol=1e-12)


def test_what_a_broken_run_had_sampled_is_known_to_the_one_that_goes_on():
    operator = RegularizedGram(inputs(300), RBF(0.05), 1e-2)
    rhs = right_hand_sides(300) * np.geomspace(1.0, 1e-6, right_hand_sides(300).shape[1])
    solver = ConjugateGradient(1e-10, landmarks=150, certificate="sampled", rows=70)
    resumed, whole = broken_and_whole(solver, operator, rhs, 2)  # the smallest column has settled by then
    assert resumed.iterations == whole.iterations > 2
    np.testing.assert_allclose(resumed.unread_norms, whole.unread_norms, rtol=1e-6)
    assert whole.unread_norms[-1] > 0


@pytest.mark.parametrize("rows", [140, 1024])
def test_nystrom_states_an_error_that_holds(rows):
    operator = RegularizedGram(inputs(600), RBF(0.05), 0.1)
    rhs = right_hand_sides(600)
    solver = Nystrom(60, rows=rows)
    solution = solver.solve(solver.prepare(operator), rhs)
    true = np.linalg.norm(rhs - dense(operator) @ solution.value)
    assert true <= solution.residual_norm() * (1 + 1e-6)
    assert solution.residual_norm() <= 2.0 * true
    assert solution.norm_kind == ("computed" if rows == 1024 else "sampled")


def test_nystrom_on_all_points_is_exact():
    operator = RegularizedGram(inputs(80), RBF(0.5), 0.1)
    rhs = right_hand_sides(80)
    solution = Nystrom(80).solve(Nystrom(80).prepare(operator), rhs)
    np.testing.assert_allclose(solution.value, np.linalg.solve(dense(operator), rhs), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kernel", [Linear(), Polynomial(), RBF(0.01)], ids=str)
@pytest.mark.parametrize("choice", ["rpcholesky", "uniform"])
def test_gram_matrices_of_low_rank_in_single_precision(kernel, choice):
    x = np.repeat(inputs(400, 2), 2, axis=0)
    operator = RegularizedGram(x.astype(np.float32), kernel, 0.05)
    rhs = right_hand_sides(800)
    exact = np.linalg.solve(kernel(x) + operator.shift * np.eye(800), rhs)
    for solver in (ConjugateGradient(1e-5, landmarks=300, choice=choice), Nystrom(300, choice)):
        solution = solver.solve(solver.prepare(operator), rhs)
        assert np.linalg.norm(solution.value - exact) <= 1e-3 * np.linalg.norm(exact)


def test_rpcholesky_finds_small_clusters_that_uniform_draws_miss():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0, 0.01, (970, 2)), *(rng.normal(c, 0.01, (3, 2)) for c in range(10, 110, 10))])
    operator = RegularizedGram(x, RBF(1.0), 0.1)
    clusters = set((choose_landmarks(operator, 15, "rpcholesky")[:, None] >= 970 + 3 * np.arange(10)).sum(axis=1))
    assert clusters == set(range(11))
    assert len(choose_landmarks(operator, 15, "uniform")) == 15


def test_landmarks_of_duplicates_are_not_repeated():
    x = np.repeat(inputs(5), 40, axis=0)
    operator = RegularizedGram(x, RBF(1.0), 0.1)
    indices = choose_landmarks(operator, 50, "rpcholesky")
    assert len(np.unique(x[indices], axis=0)) == len(indices) == 5


@pytest.mark.parametrize("kernel", [Matern(0.5), RBF(1.0), Laplacian(1.0)], ids=str)
def test_landmarks_of_copies_in_single_precision_have_a_factor(kernel):
    x = np.repeat(inputs(300, 3), 3, axis=0).astype(np.float32)
    indices = choose_landmarks(RegularizedGram(x, kernel, 0.1), 400, "rpcholesky")
    assert len(np.unique(x[indices], axis=0)) == len(indices) > 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_long_row_does_not_take_the_landmarks_of_all_others(dtype):
    x = inputs(1500, 8)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    kernel = Polynomial(3, 1.0, 1.0)
    ranks = []
    for factor in (1.0, 10.0, 100.0):
        x[0] *= factor
        operator = RegularizedGram(x.astype(dtype), kernel, 0.1)
        ranks.append(len(choose_landmarks(operator, 400, "rpcholesky")))
        spectrum = gram_spectrum(operator)
        ranks.append(len(spectrum.eigenvalues))
        assert np.count_nonzero(spectrum.filters > 0.5) >= 9
    assert min(ranks) > 100


@pytest.mark.parametrize("bad", [0, -3])
def test_too_few_landmarks_are_refused(bad):
    with pytest.raises(InvalidInputError, match="give at least 1"):
        choose_landmarks(RegularizedGram(inputs(), RBF(1.0), 0.1), bad)


def test_an_indefinite_kernel_is_named_as_the_cause():
    class Indefinite(Linear):
        def __call__(self, x, z=None):
            return -super().__call__(x, z)

    operator = RegularizedGram(inputs(), Indefinite(), 1e-3)
    with pytest.raises(ConvergenceError, match=r"k\(x, x\) from .* not positive definite.*scale the features"):
        Cholesky().prepare(operator)


def test_auto_projects_and_chooses_by_size():
    assert isinstance(choose_solver(2000, 16, 30, memory_bytes=2**33).solver, Cholesky)
    plan = choose_solver(100_000, 16, 30, memory_bytes=2**33)
    assert isinstance(plan.solver, ConjugateGradient)
    assert plan.projected_bytes < 2**32
    assert "GiB" in plan.describe()


def test_auto_refuses_with_numbers_and_remedies():
    with pytest.raises(BudgetError, match=r"n = 1,000,000, d = 16, 30 .* do not fit 0\.50 GiB.*downsampling"):
        choose_solver(1_000_000, 16, 30, memory_bytes=2**29)
    with pytest.raises(BudgetError, match=r"and 0\.001 s"):
        choose_solver(100_000, 16, 30, memory_bytes=2**40, seconds=1e-3)
    allowed = choose_solver(1_000_000, 16, 30, memory_bytes=2**33, exact=False)
    assert allowed.projected_bytes <= 2**33


@pytest.mark.parametrize("kernel", [Matern(1.5, 3.0) + Polynomial(2, 1e-9, 0.0), RBF(0.3) * Matern(0.5, 1.0)], ids=str)
def test_tiles_of_composite_kernels_have_the_exact_diagonal(kernel):
    x = inputs(70, dtype=np.float32) * np.float32(1e3)
    points = TilePoints(x)
    tile = TileMaker(kernel, 6).tile(points, slice(0, 70), points, slice(0, 70))
    np.testing.assert_array_equal(np.diagonal(tile), kernel.diagonal(x))
    operator = RegularizedGram(x, kernel, 0.1, block_rows=32)
    exact = kernel(x.astype(float)) @ np.ones((70, 1))
    np.testing.assert_allclose(operator.gram_matmul(np.ones((70, 1))), exact, rtol=1e-4)


def test_a_version_is_solved_as_accurately_beside_one_whose_errors_are_large():
    operator = RegularizedGram(inputs(600), RBF(0.3), 1e-3)
    small, large = right_hand_sides(600), 1e4 * right_hand_sides(600, seed=2)
    solver = ConjugateGradient(landmarks=50)
    state = solver.prepare(operator)
    alone = solver.solve(state, small)
    groups = [slice(0, 4), slice(4, 8)]
    beside = solver.solve(state, np.hstack([small, large]), groups=groups)
    allowed = solver.tolerance * np.linalg.norm(small)
    assert alone.residual_norm() <= allowed
    assert beside.residual_norm(groups[0]) <= allowed
    np.testing.assert_allclose(beside.value[:, :4], alone.value, atol=1e-9)


def test_a_large_matrix_is_factored_by_tiles(monkeypatch):
    operator = RegularizedGram(inputs(350), RBF(0.3), 1e-3)
    rhs = right_hand_sides(350)
    at_once = Cholesky().solve(Cholesky().prepare(operator), rhs)
    monkeypatch.setattr(device_solves, "LARGEST_FACTOR", 100)
    monkeypatch.setattr(device_solves, "TILE_ROWS", 120)
    state = Cholesky().prepare(operator)
    np.testing.assert_array_equal(np.triu(state.factor, 1), 0.0)
    np.testing.assert_allclose(Cholesky().solve(state, rhs).value, at_once.value, rtol=1e-9, atol=1e-12)
    indefinite = RegularizedGram(inputs(350), Linear(), 1e-3)
    matrix = -indefinite.exact_gram()
    with pytest.raises(np.linalg.LinAlgError):
        device_solves.cholesky_factor(matrix)


def test_the_residual_of_a_row_with_a_direction_to_itself_is_that_of_the_others():
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(np.vstack([[40.0, 0.0], rng.standard_normal((60, 2))]))
    filters, delta = np.array([0.999, 0.9]), rng.standard_normal((61, 3))
    found = leave_one_out(vectors, filters, vectors.T @ delta, delta)
    leverage = np.einsum("ij,j,ij->i", vectors, filters, vectors)
    assert leverage[0] > 0.9
    hat = (vectors * filters) @ vectors.T
    others = hat - np.diag(np.diagonal(hat))
    np.testing.assert_allclose(found[0], delta[0] - others[0] @ delta / (1.0 - leverage[0]), rtol=1e-9)
