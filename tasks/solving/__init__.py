"""The linear algebra of a reference split on a Dask cluster: the operator, its columns, and a tiled factorisation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.solving.capacity import Capacity, cluster_capacity
    from congruence.tasks.solving.checkpoint import CheckpointFile, sweep_iterates
    from congruence.tasks.solving.points_on_cluster import PointsOnCluster
    from congruence.tasks.solving.prepare import prepare_on_dask
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Capacity",
    "CheckpointFile",
    "PointsOnCluster",
    "TiledCholesky",
    "cluster_capacity",
    "prepare_on_dask",
    "sweep_iterates",
]
