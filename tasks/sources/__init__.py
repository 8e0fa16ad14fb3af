"""Labelled splits of any size, read in shards from Parquet, manifests, tar shards, arrays or Hugging Face folders."""

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.planning import open_split
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.split import Shard, Split

__all__ = ["Shard", "Split", "SplitError", "SplitSettings", "open_split"]
