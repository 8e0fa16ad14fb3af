"""Batches through a card: two in flight, in order; and memory that runs out by any name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from congruence.tasks.encoders import torch_encoder
from congruence.tasks.encoders.torch_encoder import DevicePipeline, TorchEncoder, is_out_of_memory
from congruence.tasks.settings.sections import EncoderSettings


class _Event:
    def record(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Stream:
    def __init__(self, device: object = None) -> None:
        self.waited: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited.append(other)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda's streams and events where there is no card: everything happens at once."""

    @contextmanager
    def stream(_: object) -> Iterator[None]:
        yield

    here = _Stream()
    stand_ins: dict[str, Any] = {
        "Stream": _Stream,
        "Event": _Event,
        "stream": stream,
        "current_stream": lambda _: here,
        "synchronize": lambda _: None,
        "empty_cache": lambda: None,
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)


def rows_of(first: int, count: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(first + row)) for row in range(count)]


def test_batches_of_any_size_are_in_flight_together_and_keep_their_results(streams: None) -> None:
    pipeline = DevicePipeline(torch.device("cpu"), lambda batch: 2 * batch)
    sizes = ((0, 4), (10, 4), (20, 2), (30, 7), (40, 1))
    flying = [(first, count, pipeline.begin(rows_of(first, count))) for first, count in sizes]
    for first, count, result in flying:
        np.testing.assert_array_equal(result()[:, 0], 2.0 * (first + np.arange(count)))


def test_what_is_computed_waits_for_what_is_copied(streams: None) -> None:
    pipeline = DevicePipeline(torch.device("cpu"), lambda batch: batch)
    pipeline.begin(rows_of(0, 2))
    here: Any = torch.cuda.current_stream(None)
    assert here.waited == [pipeline._copies]


class _OnCard(TorchEncoder):
    """An encoder that takes the path of a card, with room for some rows."""

    def __init__(self, room: int, failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(EncoderSettings(device="cpu", batch_size=8))
        self.id, self.dimension, self.input_kind = "on card", 3, "features"
        self.room, self.failure, self.seen = room, failure, [0]
        pipeline = DevicePipeline(torch.device("cpu"), self._embeddings)
        monkeypatch.setitem(self.__dict__, "_pipeline", pipeline)
        monkeypatch.setattr(torch_encoder.torch, "autocast", lambda *_, **__: torch.no_grad())
        self.device = torch.device("cuda")

    def preprocess(self, raw: object) -> torch.Tensor:
        return torch.as_tensor(raw, dtype=torch.float32)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(batch))
        if len(batch) > self.room:
            raise self.failure
        return 2 * batch


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        MemoryError("std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp"),
        RuntimeError(
            "std::bad_alloc: out_of_memory: RMM failure at: pool_memory_resource.hpp: Maximum pool size exceeded"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["torch", "rmm in Python", "rmm through torch", "cuBLAS"],
)
def test_memory_that_runs_out_on_a_card_halves_the_batch(
    streams: None, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    encoder = _OnCard(4, failure, monkeypatch)
    first = encoder.begin(rows_of(0, 4))
    second = encoder.begin(rows_of(4, 8))
    np.testing.assert_array_equal(first()[:, 0], 2.0 * np.arange(4))
    np.testing.assert_array_equal(second()[:, 0], 2.0 * np.arange(4, 12))
    assert encoder.batch_size == 4


def test_other_failures_on_a_card_are_raised(streams: None, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = _OnCard(0, RuntimeError("CUDA error: an illegal memory access was encountered"), monkeypatch)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        encoder.begin(rows_of(0, 4))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_every_name_of_torch_exists_here() -> None:
    assert all(hasattr(torch.cuda, name) for name in ("Stream", "Event", "stream", "current_stream", "synchronize"))
    assert hasattr(torch.cuda.Stream, "wait_stream")
    assert hasattr(torch.backends.cudnn, "allow_tf32")
    assert {"channels_last", "preserve_format", "contiguous_format"} <= set(dir(torch))
