"""Embeds a split in a process of its own, that tests can kill: python embed_process.py SPLIT.json STORE PAUSE."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.base import Encoder, InputKind
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.evaluate.embed import embed_each
from congruence.tasks.store.embeddings import EmbeddingStore


class PixelEncoder(Encoder):
    """The sixteen brightness values of the image at 4 x 4 pixels: an encoder that needs no weights."""

    id = "pixels"
    preprocessing_digest = "4x4"
    dimension = 16
    input_kind: InputKind = "image"
    batch_size = 16

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.encoded_rows = 0

    def preprocess(self, raw: bytes) -> npt.NDArray[np.float32]:
        image = decode_image(raw, max_pixels=2**26).convert("L").resize((4, 4))
        return np.asarray(image, dtype=np.float32).ravel() / 255

    def encode(self, batch: list[Any]) -> npt.NDArray[np.float32]:
        time.sleep(self.pause)
        self.encoded_rows += len(batch)
        return np.stack(batch)


def open_store(uri: str, split: Split, **settings: Any) -> EmbeddingStore:
    return EmbeddingStore.open(uri, split, PixelEncoder(), **settings)


def embed_all(split: Split, store: EmbeddingStore, encoder: PixelEncoder) -> None:
    for shard in split.shards:
        embed_each(split, [shard], encoder, store, threads=2)


if __name__ == "__main__":
    split = open_split(SplitSettings.model_validate_json(Path(sys.argv[1]).read_text()))
    print("started", flush=True)
    embed_all(split, open_store(sys.argv[2], split), PixelEncoder(float(sys.argv[3])))
