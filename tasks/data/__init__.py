"""Labelled splits of any size, read in shards from Parquet, manifests, tar shards, arrays or Hugging Face folders."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.data.errors import SplitError as SplitError
    from congruence.tasks.data.index import check_files as check_files
    from congruence.tasks.data.index import describe_file as describe_file
    from congruence.tasks.data.index import index_file as index_file
    from congruence.tasks.data.index import source_files as source_files
    from congruence.tasks.data.measurable import require_measurable as require_measurable
    from congruence.tasks.data.opening import open_split as open_split
    from congruence.tasks.data.settings import SplitSettings as SplitSettings
    from congruence.tasks.data.split import Shard as Shard
    from congruence.tasks.data.split import Split as Split
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
