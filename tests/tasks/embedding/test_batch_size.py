"""The batch size of a store: measured once, then the same for every worker and later run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from congruence.tasks.data.split import Split, open_split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.worker import open_store, settle_batch_size
from congruence.tasks.encoders.batch_search import BatchSearch
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.encoders.torch_encoder import TorchEncoder
from congruence.tasks.settings.evaluation import StoreSettings
from congruence.tasks.store.embeddings import EmbeddingStore


class Thumbnails(TorchEncoder):
    """Images at 4 x 4 pixels, with room for `room` of them; counts how often it is measured."""

    def __init__(self, room: int = 10**6, batch_size: int | Literal["auto"] | None = "auto") -> None:
        super().__init__(EncoderSettings(device="cpu", batch_size=batch_size))
        self.id, self.preprocessing_digest, self.input_kind = "thumbnails", "4x4", "image"
        self.room, self.searches = room, 0
        self.dimension = self.measure_dimension(torch.zeros(16))

    def preprocess(self, raw: Any) -> torch.Tensor:
        image = decode_image(raw, max_pixels=2**26).convert("L").resize((4, 4))
        return torch.from_numpy(np.asarray(image, dtype=np.float32).ravel() / 255)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > self.room:
            raise torch.OutOfMemoryError("no room")
        return batch

    def search_batch_size(self) -> BatchSearch:
        self.searches += 1
        return super().search_batch_size()


@pytest.fixture
def split(image_split: Callable[..., Any]) -> Split:
    return open_split(image_split(70))


def opened(folder: Path, split: Split, encoder: TorchEncoder) -> EmbeddingStore:
    return open_store(str(folder), StoreSettings(), split, encoder)


def test_the_first_worker_measures_and_the_others_follow(split: Split, tmp_path: Path) -> None:
    first, second = Thumbnails(), Thumbnails()
    line = settle_batch_size(first, opened(tmp_path, split, first))
    assert line is not None
    assert line.endswith(f"{first.batch_size} it is")
    assert settle_batch_size(second, opened(tmp_path, split, second)) is None
    assert (first.searches, second.searches) == (1, 0)
    assert second.batch_size == first.batch_size


def test_a_number_is_taken_at_its_word(split: Split, tmp_path: Path) -> None:
    encoder = Thumbnails(batch_size=7)
    assert settle_batch_size(encoder, opened(tmp_path, split, encoder)) is None
    assert (encoder.batch_size, encoder.searches) == (7, 0)
    assert list(tmp_path.rglob("batch_size")) == []


def test_who_has_less_memory_leaves_the_others_theirs(split: Split, tmp_path: Path) -> None:
    store = opened(tmp_path, split, Thumbnails())
    store.settle_batch_size("cpu", 16)
    small = Thumbnails(room=9)
    settle_batch_size(small, store)
    embed_each(split, [split.shards[0]], small, store, threads=1)
    settle_batch_size(small, store)
    assert small.batch_size == 8
    assert store.batch_size("cpu") == 16
