"""The engine on CuPy blocks: the same code, the same answers. Runs where there is a GPU and the [gpu] extra."""

import numpy as np
import pytest

from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.distributions import Normal
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.kernel_functions import RBF, Laplacian, Matern, Polynomial, Product, Sum
from congruence.kernels.solvers import ConjugateGradient, Nystrom
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.cluster import ClusterSettings
from congruence.tasks.solving.points_on_cluster import PointsOnCluster
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")


def inputs(n, d=16, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32) / 4


@pytest.mark.parametrize("kernel", [Polynomial(), RBF(0.5), Matern(1.5, 2.0), Laplacian(0.2)], ids=str)
def test_products_are_those_of_numpy(kernel):
    n = 600 if isinstance(kernel, Laplacian) else 1500
    x, v = inputs(n), np.random.default_rng(1).standard_normal((n, 5))
    on_gpu = RegularizedGram(cupy.asarray(x), kernel, 0.1, block_rows=n // 3)
    in_memory = RegularizedGram(x, kernel, 0.1)
    scale = np.abs(in_memory.matmul(v)).max()
    np.testing.assert_allclose(on_gpu.matmul(v), in_memory.matmul(v), atol=1e-5 * scale)
    np.testing.assert_allclose(on_gpu.cross(x[:50], v), in_memory.cross(x[:50], v), atol=1e-5 * scale)
    indices = np.array([0, 5, n - 1])
    np.testing.assert_allclose(on_gpu.gram_columns(indices), in_memory.gram_columns(indices), atol=1e-5)


@pytest.mark.parametrize("solver", [ConjugateGradient(1e-6), Nystrom(400)], ids=lambda solver: type(solver).__name__)
def test_solutions_are_those_of_numpy(solver):
    x, rhs = inputs(6000), np.random.default_rng(1).standard_normal((6000, 8))
    values = [
        solver.solve(solver.prepare(operator), rhs).value
        for operator in (
            RegularizedGram(cupy.asarray(x), Polynomial(), 0.1),
            RegularizedGram(x, Polynomial(), 0.1),
        )
    ]
    assert np.linalg.norm(values[0] - values[1]) <= 1e-4 * np.linalg.norm(values[1])


@pytest.mark.parametrize("at_query", [False, True])
@pytest.mark.parametrize(
    ("kernel", "n"),
    [
        (Polynomial(), 700),
        (Polynomial(), 5200),
        (Sum((RBF(0.5), Polynomial())), 700),
        (Product((RBF(0.5), Polynomial())), 700),
    ],
    ids=str,
)
def test_an_evaluation_with_its_floor_is_that_of_numpy(kernel, n, at_query):
    x, rng = inputs(n, 8), np.random.default_rng(1)
    query = inputs(30, 8, seed=2) if at_query else None
    y, model = x[:, 0] + rng.standard_normal(n), Normal(x[:, 0], np.ones(n))
    on_gpu, in_memory = (
        prepare(move(x), query=None if query is None else move(query), input_kernel=kernel)
        for move in (cupy.asarray, np.asarray)
    )
    device, host = (prepared.conditional_congruence_error(y, model) for prepared in (on_gpu, in_memory))
    np.testing.assert_allclose(device.values, host.values, rtol=2e-3)
    np.testing.assert_allclose(device.noise_floor_values, host.noise_floor_values, rtol=2e-2)


@pytest.mark.parametrize(("kind", "n"), [("local", 1600), ("cuda", 10_000)])
def test_a_cluster_with_its_tiles_on_gpus_factors_and_iterates(kind, n):
    if kind == "cuda":
        pytest.importorskip("dask_cuda")
    x, rhs = inputs(n), np.random.default_rng(1).standard_normal((n, 8))
    exact = np.linalg.solve(Polynomial()(x.astype(float)) + 0.1 * n * np.eye(n), rhs)
    with dask_client(ClusterSettings(kind=kind, workers=2 if kind == "local" else None)) as client:
        points = PointsOnCluster(client, x, Polynomial(), gpu=True, given_rows=n // 4)
        operator = RegularizedGram(points, Polynomial(), 0.1)
        transfers = getattr(cupy, "transfers", {"get": 0})
        transfers["get"] = 0
        for solver in (ConjugateGradient(1e-6), Nystrom(600), TiledCholesky(tile_rows=n // 3, tolerance=1e-6)):
            solution = solver.solve(solver.prepare(operator), rhs)
            assert np.linalg.norm(solution.value - exact) <= 1e-4 * np.linalg.norm(exact)
    assert transfers["get"] == 0  # the client has nothing on a card
