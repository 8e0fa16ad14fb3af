"""Tiled Cholesky of K + n lambda I on one card beside cuSOLVER's potrf of the same matrix, single precision."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

ROWS, SMALL_ROWS = 65_536, 1_200
TILE_ROWS, SMALL_TILE_ROWS = 8_192, 400


def run(record: Any, name: str, device: str, small: bool) -> None:
    """The cluster is in this process: RMM and a second process are another piece's matter."""
    import cupy
    from cce_engine import REGULARIZATION, embeddings

    from congruence.kernels.gram.operator import RegularizedGram
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.cluster import ClusterSettings
    from congruence.tasks.solving.points_on_cluster import PointsOnCluster
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky

    n, tile_rows = (SMALL_ROWS, SMALL_TILE_ROWS) if small else (ROWS, TILE_ROWS)
    work = n**3 / 3 / 1e12
    x = embeddings(n)
    gram_work = 2 * n * n / 2 * x.shape[1] / 1e12
    with record.sampler.stage("potrf"):
        rates = [work / seconds for seconds in _potrf_seconds(x, n * REGULARIZATION)]
    record.note(n=n, potrf_tflops=round(max(rates), 3))
    if hasattr(cupy, "get_default_memory_pool") and device == "cuda":
        cupy.get_default_memory_pool().free_all_blocks()
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        points = PointsOnCluster(client, x, Polynomial(), gpu=True, held_bytes=0)
        operator = RegularizedGram(points, Polynomial(), REGULARIZATION)
        solver = TiledCholesky(tile_rows=tile_rows, tolerance=1e-6)
        operator.gram_diagonal()
        found = []
        for _ in range(2):
            with record.sampler.stage("tiled"):
                started = time.perf_counter()
                state = solver.prepare(operator)
                found.append(time.perf_counter() - started)
            record.note(tiled_seconds_with_gram=[round(seconds, 3) for seconds in found], gram_tflop=gram_work)
        record.goal("tiled rate over potrf's", work / min(found) / max(rates), 0.7, at_least=True)
        rhs = np.random.default_rng(0).standard_normal((n, 30))
        with record.sampler.stage("tiled solve"):
            started = time.perf_counter()
            solution = solver.solve(state, rhs)
            seconds = time.perf_counter() - started
    residual = solution.residual_norm() / float(np.linalg.norm(rhs))
    record.note(solve_seconds=round(seconds, 3), relative_residual=residual)


def _potrf_seconds(x: Any, shift: float) -> list[float]:
    """Of three factorisations of one matrix by cuSOLVER."""
    import cupy

    from congruence.kernels.gram.tiles import TileMaker, TilePoints
    from congruence.kernels.kernel_functions import Polynomial

    n, points = len(x), TilePoints(cupy.asarray(x))
    gram = TileMaker(Polynomial(), x.shape[1]).tile(points, slice(0, n), points, slice(0, n))
    gram.reshape(-1)[:: n + 1] += shift
    return [_seconds(lambda: cupy.linalg.cholesky(gram)) for _ in range(3)]


def _seconds(function: Any) -> float:
    import cupy

    cupy.cuda.Device().synchronize()
    started = time.perf_counter()
    result = function()
    cupy.cuda.Device().synchronize()
    seconds = time.perf_counter() - started
    del result
    return seconds
