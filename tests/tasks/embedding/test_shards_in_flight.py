"""The encoder has the next shard's rows before the last one's are back, and what is finished is written behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.embeddings.shard import BATCHES_IN_FLIGHT, embed_each
from congruence.tasks.encoders import loading
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.encoders.torch_encoder import TorchEncoder
from congruence.tasks.store.embeddings import EmbeddingStore


class InFlight(Encoder):
    """Embeds an image as its size in bytes and a constant; notes what was begun and asked for."""

    dimension, batch_size = 2, 8

    def __init__(self) -> None:
        self.events: list[str] = []
        self.begun = self.landed = 0

    def preprocess(self, raw: Any) -> Any:
        return float(len(raw))

    def encode(self, batch: list[Any]) -> npt.NDArray[np.float32]:
        return np.column_stack([batch, np.ones(len(batch))]).astype(np.float32)

    def begin(self, batch: list[Any]) -> Callable[[], npt.NDArray[np.float32]]:
        number, values = self.begun, self.encode(batch)
        self.begun += 1
        self.events.append(f"begin {number}")
        assert self.begun - self.landed <= BATCHES_IN_FLIGHT

        def result() -> npt.NDArray[np.float32]:
            assert number == self.landed
            self.landed += 1
            self.events.append(f"result {number}")
            return values

        return result


class OneByOne(InFlight):
    begin = None  # type: ignore[assignment]


def store_of(folder: Path, split: Any) -> EmbeddingStore:
    return EmbeddingStore.open(str(folder), split=split, encoder_id="size", preprocessing_digest="none", dimension=2)


def test_the_encoder_does_not_wait_at_the_end_of_a_shard(
    image_split: Callable[..., SplitSettings], tmp_path: Path
) -> None:
    split = open_split(image_split(60))
    encoder, alone = InFlight(), OneByOne()
    store, other = store_of(tmp_path / "a", split), store_of(tmp_path / "b", split)
    reports = embed_each(split, split.shards, encoder, store, threads=2)
    # 20 rows a shard are batches of 8, 8 and 4: batch 3 is the next shard's first.
    assert encoder.events.index("begin 3") < encoder.events.index("result 2")
    assert len(reports) == 3
    assert all(report.embedded and report.valid_rows == 20 for report in reports)
    for shard in split.shards:
        embed_each(split, [shard], alone, other, threads=1)
    np.testing.assert_array_equal(store.read(), other.read())
    assert not any(report.embedded for report in embed_each(split, split.shards, encoder, store))


def test_what_is_finished_is_written_by_another_thread_and_kept_when_a_later_shard_fails(
    image_split: Callable[..., SplitSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = open_split(image_split(60))
    store, writers = store_of(tmp_path / "a", split), []
    write = store.write

    def noting(*args: Any, **kwargs: Any) -> None:
        writers.append(threading.current_thread().name)
        write(*args, **kwargs)

    monkeypatch.setattr(store, "write", noting)

    class Breaking(InFlight):
        def preprocess(self, raw: Any) -> Any:
            return super().preprocess(raw)

        def begin(self, batch: list[Any]) -> Callable[[], npt.NDArray[np.float32]]:
            if self.begun == 7:  # of the third shard
                raise ConnectionError("the device is lost")
            return super().begin(batch)

    with pytest.raises(ConnectionError, match="device is lost"):
        embed_each(split, split.shards, Breaking(), store, threads=2)
    assert writers
    assert all(name.startswith("write-behind") for name in writers)
    assert len(store.pending()) in (1, 2)


def test_a_shard_that_cannot_be_written_is_not_reported_as_done(
    image_split: Callable[..., SplitSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = open_split(image_split(40))
    store = store_of(tmp_path / "a", split)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "write", full)
    with pytest.raises(OSError, match="no space left"):
        embed_each(split, split.shards, InFlight(), store, threads=1)


def test_a_process_that_embeds_nothing_takes_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EncoderSettings] = []
    monkeypatch.setattr(loading, "warm_encoder", asked.append)
    for device, has_card in (("auto", False), ("auto", True), ("cuda:1", False), ("cpu", True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_card=has_card: has_card)
        loading.asking_encoder(EncoderSettings(model="compact", device=device))
    assert [settings.device for settings in asked] == ["auto", "cpu", "cpu", "cpu"]
    loading.asking_encoder(EncoderSettings(kind="identity", dimension=2, standardise=False))
    assert "device" not in asked[-1].model_fields_set


def test_a_model_is_placed_on_a_card_in_the_order_of_its_convolutions() -> None:
    class Placed(TorchEncoder):
        def preprocess(self, raw: Any) -> Any:
            return raw

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch

    encoder = Placed(EncoderSettings(device="cpu"))
    convolution = encoder.placed(torch.nn.Conv2d(3, 4, 2))
    assert convolution.weight.is_contiguous()
    encoder.device = type("Device", (), {"type": "cuda"})()  # the order is chosen by the kind of device alone
    moved: dict[str, Any] = {}
    model = type("Model", (), {"to": lambda self, device, **options: moved.update(options)})()
    encoder.placed(model)
    assert moved == {"memory_format": torch.channels_last}
