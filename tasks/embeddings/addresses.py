"""Where embeddings by an encoder lie, small enough to travel with every piece of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from congruence.tasks.embeddings.precision import DType


@dataclass(frozen=True)
class StoreAddress:
    """What a worker needs to open the embeddings by one encoder; a few hundred bytes.

    It carries the options of the store's file system, keys included, as the settings in every task do: a scheduler
    forgets them with the task, and they appear in no ``repr``. `store.open_store_cached` opens it for a split.

    Attributes:
        uri: of the store.
        options: of its file system.
        encoder_key: the encoder, preprocessing, dimension and dtype, by digest.
        dimension: of the embeddings.
        dtype: of the stored values.
    """

    uri: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    encoder_key: str
    dimension: int
    dtype: DType = "float32"
