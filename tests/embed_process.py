"""Embeds a split, also in a process of its own, that tests can kill."""

import multiprocessing
import time
from multiprocessing.context import ForkServerProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from congruence.tasks.dask.workers import load_for_workers
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.base import Encoder, InputKind
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.evaluate.pieces import embed_each
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


def start(settings: SplitSettings, store: str, pause: float) -> ForkServerProcess:
    """A process that embeds, a fork of what workers are forks of; it has begun."""
    load_for_workers()
    forks = multiprocessing.get_context("forkserver")
    began = forks.Event()
    process = forks.Process(target=_embed, args=(settings, store, pause, began))
    process.start()
    assert began.wait(60)
    return process


def _embed(settings: SplitSettings, store: str, pause: float, began: Any) -> None:
    split = open_split(settings)
    began.set()
    embed_all(split, open_store(store, split), PixelEncoder(pause))
