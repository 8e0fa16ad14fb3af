"""Every solver on a cluster of worker processes against the definition in float64, with workers lost on the way."""

import os
import signal
import time
from concurrent.futures import CancelledError
from functools import partial

import dask.array as da
import numpy as np
import pytest

from congruence.kernels.congruence.preparation import conditional_congruence_error
from congruence.kernels.distributions import Normal
from congruence.kernels.errors import BudgetError, ConvergenceError, InvalidInputError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.variation import NearlyConstantKernelWarning
from congruence.kernels.kernel_functions import RBF, Laplacian, Linear, Polynomial
from congruence.kernels.protocol.protocol import EXACT
from congruence.kernels.protocol.weighting import weighted_reference
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.runtime.steps import listen
from congruence.tasks.settings.cluster import ClusterSettings
from congruence.tasks.settings.solver import SolverSettings
from congruence.tasks.solving.checkpoint import CheckpointFile
from congruence.tasks.solving.executor import WorkerExecutor
from congruence.tasks.solving.measurement import OnCluster, measure, measure_versions
from congruence.tasks.solving.points_on_cluster import PointsOnCluster
from congruence.tasks.solving.prepare import prepare_on_dask
from congruence.tasks.solving.tiled_cholesky import TiledCholesky
from congruence.tasks.solving.version_evaluation import HeldVersion


@pytest.fixture(scope="module")
def client():
    with dask_client(ClusterSettings(kind="local", workers=2)) as client:
        yield client


def gram(client, x, kernel, regularization, dtype=np.float32, **kwargs):
    return RegularizedGram(PointsOnCluster(client, x, kernel, dtype, **kwargs), kernel, regularization)


def inputs(n=230, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def right_hand_sides(n=230, r=4, seed=1):
    return np.random.default_rng(seed).standard_normal((n, r)) * 10.0 ** -np.arange(r)


def assert_solves(value, x, kernel, regularization, rhs, rtol=1e-7):
    exact = np.linalg.solve(dense(x, kernel, regularization), rhs)
    assert np.linalg.norm(value - exact) <= rtol * np.linalg.norm(exact)


def dense(x, kernel, regularization):
    return kernel(x) + len(x) * regularization * np.eye(len(x))


@pytest.mark.parametrize("kernel", [RBF(0.3), Laplacian(0.2)], ids=str)
def test_the_operator_is_the_matrix_wherever_its_rows_come_from(client, kernel):
    x, v, query = 3.0 + inputs(), right_hand_sides(), 3.0 + inputs(31, seed=4)
    for source, held in ((x, None), (da.from_array(x, chunks=(100, 3)), 0)):
        operator = gram(client, source, kernel, 0.1, np.float64, given_rows=50, held_bytes=held)
        for _ in range(2):  # the second product finds the tiles that the first one kept
            np.testing.assert_allclose(operator.matmul(v), dense(x, kernel, 0.1) @ v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(operator.cross(query, v), kernel(query, x) @ v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(operator.gram_diagonal(), kernel.diagonal(x))
    indices = np.array([0, 7, 229])
    np.testing.assert_allclose(operator.gram_columns(indices), kernel(x)[:, indices])
    restricted = operator.restricted(indices).cross(query, v[:3])
    np.testing.assert_allclose(restricted, kernel(query, x[indices]) @ v[:3], rtol=1e-10, atol=1e-10)
    columns, C = operator.columns(indices), kernel(x)[:, indices]
    np.testing.assert_allclose(columns.gram(), C.T @ C, rtol=1e-10)
    np.testing.assert_allclose(columns.transposed_matmul(v), C.T @ v, rtol=1e-10, atol=1e-10)


def test_a_pass_and_a_factor_say_how_far_they_are(client):
    heard, totals = {}, {}

    def hear(title, total, unit):
        totals[title] = (total, unit)
        return heard.setdefault(title, []).append

    listen(hear)
    try:
        operator = gram(client, inputs(), RBF(0.3), 0.1, np.float64)
        operator.matmul(right_hand_sides())
        operator.cross(inputs(3), right_hand_sides())
        TiledCholesky(tile_rows=50).prepare(operator)
        until = time.monotonic() + 5.0
        while {name: sum(units) for name, units in heard.items()} != {name: t for name, (t, _) in totals.items()}:
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        listen(None)
    assert set(totals) == {"pass over the Gram matrix", "factoring the Gram matrix"}
    assert totals["factoring the Gram matrix"] == (15, "tiles")
    assert totals["pass over the Gram matrix"][1] == "blocks"


def test_inputs_that_fit_no_worker_are_refused_with_what_they_take():
    with dask_client(ClusterSettings(kind="local", workers=1, memory_per_worker="500MB")) as client:
        x = da.zeros((200_000, 500), chunks=(10_000, 500), dtype=np.float32)
        with pytest.raises(BudgetError, match=r"200,000 rows of 500 features take 0\.37 GiB in every worker"):
            gram(client, x, RBF(0.3), 0.1).matmul(np.zeros((200_000, 1)))


def test_versions_are_judged_by_every_worker_as_in_one_process(client, tmp_path):
    class Kept(HeldVersion):
        def keep(self, measurement):
            return os.getpid(), measurement

    class Asked:
        seed, metrics = 0, None

    x, y = inputs(), inputs(d=1, seed=2)[:, 0]
    laws = {f"{scale}": Normal(np.zeros(230), np.full(230, scale)) for scale in (0.7, 0.9, 1.0, 1.2, 1.5, 1.7)}
    expected = measure(Asked(), EXACT, x, y, laws)
    place = OnCluster(client, SolverSettings(), 100, tmp_path, lambda _: None, gpu=False)
    versions = {name: Kept(y, law) for name, law in laws.items()}
    found = measure_versions(Asked(), EXACT, x, y, versions, prepare_inputs=place, calls=WorkerExecutor(client))
    assert {pid for pid, _ in found.values()} == set(client.run(os.getpid).values())
    for name, (_, measured) in found.items():
        np.testing.assert_allclose(measured.result.values, expected[name].result.values, rtol=1e-9)
        assert measured.result.standard_error == pytest.approx(expected[name].result.standard_error, rel=1e-5)
        assert measured.test.p_value == expected[name].test.p_value
        assert measured.calibration.test.p_value == expected[name].calibration.test.p_value


SOLVERS = [ConjugateGradient(1e-11, landmarks=120), TiledCholesky(tile_rows=64, tolerance=1e-11)]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_exact_solvers_equal_the_definition(client, solver):
    x, rhs = inputs(), right_hand_sides()
    operator = gram(client, x, RBF(0.3), 0.02, np.float64)
    state = solver.prepare(operator)
    for scale in (1.0, -3.0):
        solution = solver.solve(state, scale * rhs)
        assert_solves(solution.value, x, RBF(0.3), 0.02, scale * rhs)
        assert solution.residual_norm() <= 1e-11 * np.linalg.norm(scale * rhs)


@pytest.mark.parametrize("tile_rows", [1, 115, 229, 500])
def test_tiled_cholesky_takes_any_tile(client, tile_rows):
    n = 5 if tile_rows == 1 else 230
    x, rhs = inputs(n), right_hand_sides(n)
    solver = TiledCholesky(tile_rows=tile_rows)
    solution = solver.solve(solver.prepare(gram(client, x, Polynomial(), 0.1)), rhs)
    assert_solves(solution.value, x, Polynomial(), 0.1, rhs, rtol=1e-5)


def test_the_factor_is_one_triangle_and_intermediate_tiles_are_released(client):
    x = inputs(256)
    state = TiledCholesky(tile_rows=64).prepare(gram(client, x, RBF(0.3), 0.1))
    keys = {key for held in client.has_what().values() for key in held}
    tiles = [key for key in keys if str(key).startswith(("_gram_tile", "_factor", "_panel", "_update"))]
    assert len(state.tiles) == 10
    assert set(tiles) <= {tile.key for tile in state.tiles.values()}


@pytest.mark.parametrize("solver", [None, TiledCholesky(tile_rows=100), Nystrom(230)], ids=str)
def test_cce_on_the_cluster_is_the_cce_in_memory(client, solver):
    x, y = inputs(), inputs(d=1, seed=2)[:, 0]
    query = inputs(20, seed=3)
    predictive = Normal(np.zeros(230), np.full(230, 0.7))
    local = conditional_congruence_error(x, y, predictive, query=query, input_kernel=RBF(0.3), solver=Cholesky())
    prepared = prepare_on_dask(client, x, query=query, input_kernel=RBF(0.3), solver=solver, dtype=np.float64)
    result = prepared.conditional_congruence_error(y, predictive)
    np.testing.assert_allclose(result.values, local.values, rtol=1e-5)


@pytest.mark.parametrize(
    "solver", [ConjugateGradient(1e-12), TiledCholesky(100, tolerance=1e-12), Nystrom(230)], ids=str
)
def test_weighted_points_on_the_cluster_are_those_in_memory(client, solver):
    x, rhs, weights = inputs(260), right_hand_sides(260), np.random.default_rng(4).integers(1, 5, 230)
    settings = {"query": inputs(20, seed=3), "input_kernel": RBF(0.3), "regularization": 0.1, "weights": weights}
    local = weighted_reference(x, np.arange(30, 260), **settings)
    on_cluster = partial(prepare_on_dask, client, solver=solver, dtype=np.float64)
    found = weighted_reference(x, np.arange(30, 260), **settings, prepare_inputs=on_cluster)
    np.testing.assert_allclose(found.smooth(rhs)[0], local.smooth(rhs)[0], rtol=1e-9, atol=1e-11)


def test_bad_inputs_are_refused_before_the_work(client):
    x = inputs()
    with pytest.raises(InvalidInputError, match="lambda is -1"):
        prepare_on_dask(client, x, input_kernel=RBF(1.0), regularization=-1.0)
    x[3, 2] = np.nan
    for source in (x, da.from_array(x)):
        with pytest.raises(InvalidInputError, match="row 3, column 2"):
            prepare_on_dask(client, source, input_kernel=RBF(1.0))
    with pytest.raises(BudgetError, match="tiled Cholesky of n = 230 needs"):
        TiledCholesky(memory_bytes=1000).prepare(gram(client, inputs(), RBF(1.0), 0.1))


def test_an_indefinite_matrix_is_named_by_its_rows(client):
    x = np.concatenate([inputs(100), 1e9 * inputs(100)])  # the shift is lost in float32 beside entries of 1e18
    with pytest.raises(ConvergenceError, match=r"rows from \d+ has no factor.*dtype float64"):
        TiledCholesky(tile_rows=64).prepare(gram(client, x, Linear(), 1e-6))


class KillsAWorker(CheckpointFile):
    """Kills one worker process, without a word, after a given pass."""

    def __init__(self, path, client, after):
        super().__init__(path, "test")
        self.client, self.after = client, after

    def save(self, iterate):
        super().save(iterate)
        if iterate.passes == self.after:
            kill_one(self.client)


def kill_one(client):
    pids = client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)


def test_a_worker_killed_between_passes_costs_nothing_but_its_share(client, tmp_path):
    x, rhs = inputs(), right_hand_sides()
    solver = ConjugateGradient(1e-9, landmarks=40, checkpoint=KillsAWorker(tmp_path / "iterate.npz", client, after=3))
    solution = solver.solve(solver.prepare(gram(client, x, RBF(0.3), 0.01, np.float64)), rhs)
    assert solution.iterations > 4
    assert_solves(solution.value, x, RBF(0.3), 0.01, rhs)


def test_a_worker_killed_with_its_tiles_of_the_factor_is_made_good(client):
    x, rhs = inputs(), right_hand_sides()
    solver = TiledCholesky(tile_rows=50, tolerance=1e-10)
    state = solver.prepare(gram(client, x, RBF(0.3), 0.1, np.float64))
    kill_one(client)
    solution = solver.solve(state, rhs)
    assert_solves(solution.value, x, RBF(0.3), 0.1, rhs)


def test_a_pass_whose_cluster_is_closed_is_not_tried_again(tmp_path):
    attempts = []
    with dask_client(ClusterSettings(kind="threads", workers=1)) as short:
        operator = gram(short, inputs(), RBF(0.3), 0.1, np.float64)

        def cut_off():
            attempts.append(1)
            task = short.submit(time.sleep, 1)
            short.close()
            return task.result()

        with pytest.raises(CancelledError):
            operator.points.run(cut_off)
    assert attempts == [1]


def test_a_checkpoint_belongs_to_its_system_and_right_hand_sides(tmp_path):
    x, rhs = inputs(), right_hand_sides()
    path = tmp_path / "iterate.npz"
    solver = ConjugateGradient(1e-8, landmarks=5, checkpoint=CheckpointFile(path, "protocol a"))
    state = solver.prepare(RegularizedGram(x, RBF(0.3), 0.01))
    whole = solver.solve(state, rhs)
    kept = CheckpointFile(path, "protocol a").load(rhs)
    assert kept is not None
    assert kept.passes == whole.iterations
    np.testing.assert_array_equal(kept.value, whole.value)
    assert CheckpointFile(path, "protocol b").load(rhs) is None
    assert CheckpointFile(path, "protocol a").load(2 * rhs) is None
    good = path.read_bytes()
    for damaged in (
        good[: len(good) // 2],
        b"",
        b"notes",
        good.replace(b"PK\x01\x02\x2d\x03\x2d", b"PK\x01\x02\x2d\x03\xff"),
    ):
        assert damaged != good
        path.write_bytes(damaged)
        assert CheckpointFile(path, "protocol a").load(rhs) is None
    CheckpointFile(path, "protocol a").clear()
    assert CheckpointFile(path, "protocol a").load(rhs) is None


@pytest.mark.parametrize("solver", [ConjugateGradient(landmarks=60), TiledCholesky(tile_rows=64), Nystrom(80)], ids=str)
@pytest.mark.parametrize("at_query", [False, True], ids=["reference", "query"])
def test_certificates_hold_for_the_inputs_as_they_were_given(client, solver, at_query):
    x = inputs(300) + 300.0  # in float32 the offset leaves four digits
    rng = np.random.default_rng(0)
    y, model = rng.standard_normal(300), Normal(np.zeros(300), np.ones(300))
    settings = {"query": x[:40] + 0.1 if at_query else None, "input_kernel": RBF(0.2), "regularization": 0.01}
    exact = conditional_congruence_error(x, y, model, **settings, solver=Cholesky())
    sources = (x, da.from_array(x, chunks=(100, 6)))
    for source in sources if isinstance(solver, Nystrom) else sources[:1]:
        prepared = prepare_on_dask(client, source, **settings, solver=solver)
        found = prepared.conditional_congruence_error(y, model)
        error = np.max(np.abs(found.values - exact.values))
        assert 0.0 < error <= found.error_bound
        assert abs(found.mean - exact.mean) <= found.mean_error_bound
        if not isinstance(solver, Nystrom):
            assert error < 1e-5
    assert found.bound_kind == "sampled"


def test_a_constant_kernel_is_warned_of_on_a_cluster(client):
    with pytest.warns(NearlyConstantKernelWarning):
        prepare_on_dask(client, np.ones((100, 3)), input_kernel=RBF(1.0))
