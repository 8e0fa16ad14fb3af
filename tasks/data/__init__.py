"""Labelled splits of any size, read in shards from Parquet, manifests, tar shards, arrays or Hugging Face folders."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.data.errors import SplitError
    from congruence.tasks.data.index import check_files, describe_file, index_file, source_files
    from congruence.tasks.data.measurable import require_measurable
    from congruence.tasks.data.opening import open_split
    from congruence.tasks.data.settings import SplitSettings
    from congruence.tasks.data.split import Shard, Split
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Shard",
    "Split",
    "SplitError",
    "SplitSettings",
    "check_files",
    "describe_file",
    "index_file",
    "open_split",
    "require_measurable",
    "source_files",
]
