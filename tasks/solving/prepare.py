"""Prepare a reference split on a Dask cluster: the same object as in memory, with its Gram matrix on the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers import ConjugateGradient, Solver
from congruence.tasks.solving.points_on_cluster import PointsOnCluster


def prepare_on_dask(
    client: Client,
    x: Any,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    regularization: float = 0.1,
    solver: Solver | None = None,
    dtype: Any = np.float32,
    gpu: bool = False,
    held_bytes: int | None = None,
    scale: Array | None = None,
) -> PreparedCongruence:
    """``congruence.kernels.prepare`` with the n x n work on a cluster.

    Args:
        client: of the cluster.
        x: reference inputs (n, d): a NumPy or Dask array.
        query, input_kernel, regularization: see ``congruence.kernels.prepare``.
        solver: ``ConjugateGradient`` (the default), ``TiledCholesky`` or ``Nystrom``.
        dtype: of the arithmetic inside a tile.
        gpu: keep x and make tiles on the workers' GPUs.
        held_bytes: what the workers may take to keep the Gram matrix between passes, see ``PointsOnCluster``.
        scale: of reference points that count with weights, see ``congruence.kernels.prepare``.

    Raises:
        InvalidInputError: see ``congruence.kernels.prepare``.
    """
    points = PointsOnCluster(client, x, input_kernel, dtype, gpu=gpu, held_bytes=held_bytes)
    return prepare(
        points,
        query=query,
        input_kernel=input_kernel,
        regularization=regularization,
        solver=ConjugateGradient() if solver is None else solver,
        scale=scale,
    )
