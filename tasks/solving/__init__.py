"""The linear algebra of a reference split on a Dask cluster: the operator, its columns, and a tiled factorisation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.solving.capacity import Capacity as Capacity
    from congruence.tasks.solving.capacity import cluster_capacity as cluster_capacity
    from congruence.tasks.solving.checkpoint import CheckpointFile as CheckpointFile
    from congruence.tasks.solving.checkpoint import sweep_iterates as sweep_iterates
    from congruence.tasks.solving.points_on_cluster import PointsOnCluster as PointsOnCluster
    from congruence.tasks.solving.prepare import prepare_on_dask as prepare_on_dask
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky as TiledCholesky
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
