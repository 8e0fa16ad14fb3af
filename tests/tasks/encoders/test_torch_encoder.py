"""Batches shrink until they fit into memory; only running out of memory makes them."""

import logging
from typing import Literal

import numpy as np
import pytest
import torch

from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.tasks.encoders.base import search_batch_size
from congruence.tasks.encoders.torch_encoder import TorchEncoder, choose_device, weights_digest
from congruence.tasks.settings.sections import EncoderSettings


class Doubling(TorchEncoder):
    """Doubles its rows, with room for `room` of them."""

    def __init__(self, room: int, batch_size: int | Literal["auto"] | None = 64) -> None:
        super().__init__(EncoderSettings(device="cpu", batch_size=batch_size))
        self.id, self.dimension, self.input_kind = "doubling", 3, "features"
        self.room = room
        self.seen: list[int] = []

    def preprocess(self, raw: object) -> torch.Tensor:
        return torch.as_tensor(raw, dtype=torch.float32)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(batch))
        if len(batch) > self.room:
            self.run_out_of_memory()
        return 2 * batch

    def run_out_of_memory(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


class Allocating(Doubling):
    """Asks the CPU allocator for more than any machine has."""

    def run_out_of_memory(self) -> None:
        torch.empty(2**55, dtype=torch.float32)


@pytest.mark.parametrize("kind", [Doubling, Allocating])
def test_out_of_memory_halves_the_batch_for_good(kind: type[Doubling], caplog: pytest.LogCaptureFixture) -> None:
    encoder = kind(room=20)
    rows = [encoder.preprocess(row) for row in np.arange(150.0).reshape(50, 3)]
    with caplog.at_level(logging.WARNING):
        embeddings = encoder.encode(rows)
    np.testing.assert_array_equal(embeddings, 2 * np.arange(150.0, dtype=np.float32).reshape(50, 3))
    assert encoder.seen == [50, 25, 12, 12, 12, 12, 2]
    assert encoder.batch_size == 12
    assert "out of memory with 50 rows" in caplog.text
    encoder.seen.clear()
    encoder.encode(rows[:30])
    assert encoder.seen == [12, 12, 6]


def test_a_row_that_does_not_fit_is_refused_with_a_remedy() -> None:
    encoder = Doubling(room=0)
    with pytest.raises(BudgetError, match=r"one row does not fit.*encoder\.device: cpu"):
        encoder.encode([encoder.preprocess([1.0, 2.0, 3.0])])


def test_other_failures_are_not_taken_for_lack_of_memory() -> None:
    class Broken(Doubling):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    encoder = Broken(room=8)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        encoder.encode([encoder.preprocess([1.0, 2.0, 3.0])] * 4)
    assert encoder.batch_size == 64


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InvalidInputError, match="no GPU here"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")


def test_the_digest_knows_names_types_and_values() -> None:
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1)}
    digest = weights_digest(state)
    assert digest == weights_digest(dict(reversed(state.items())))
    changes = [
        {"a": state["a"] + 1e-6, "b": state["b"]},
        {"a": state["a"].T.contiguous(), "b": state["b"]},
        {"a": state["a"].double(), "b": state["b"]},
        {"c": state["a"], "b": state["b"]},
    ]
    assert len({digest, *(weights_digest(changed) for changed in changes)}) == 5


def test_the_search_takes_the_smallest_batch_that_is_as_fast_as_any() -> None:
    rates = {8: 10.0, 16: 14.0, 32: 14.5, 64: 14.6}
    found = search_batch_size(lambda size: size / rates[size], largest=1024, budget=1000.0)
    assert (found.batch_size, dict(found.rates)) == (16, pytest.approx(rates))
    assert str(found).startswith("batch 8: 10 rows/s, 16: 14 rows/s, 32: 14.5 rows/s, 64: 14.6 rows/s; 2 doublings")


@pytest.mark.parametrize(
    ("room", "largest", "budget", "chosen", "tried", "ended"),
    [
        (100, 1024, 1e9, 64, [8, 16, 32, 64], "memory ends before 128 rows"),
        (1, 1024, 1e9, 1, [1], "1 rows are the limit"),
        (0, 1024, 1e9, 1, [], "memory ends before 1 rows"),
        (10**6, 32, 1e9, 32, [8, 16, 32], "32 rows are the limit"),
        (10**6, 1024, 3.5, 16, [8, 16], "32 rows would take the search beyond 3.5 s"),
    ],
)
def test_the_search_ends_with_memory_time_or_the_limit(
    room: int, largest: int, budget: float, chosen: int, tried: list[int], ended: str
) -> None:
    def seconds_of(size: int) -> float | None:
        return 1.0 if size <= room else None

    found = search_batch_size(seconds_of, largest=largest, budget=budget)
    assert (found.batch_size, list(found.rates), found.ended) == (chosen, tried, ended)


def test_one_slow_pass_does_not_end_the_search() -> None:
    rates = {8: 10.0, 16: 9.0, 32: 30.0, 64: 60.0, 128: 61.0, 256: 60.0}
    assert search_batch_size(lambda size: size / rates[size], largest=1024, budget=1000.0).batch_size == 64


@pytest.mark.parametrize("kind", [Doubling, Allocating])
def test_an_encoder_measures_itself_up_to_the_memory_that_there_is(kind: type[Doubling]) -> None:
    encoder = kind(room=40, batch_size="auto")
    assert not encoder.searches_batch_size  # nothing to measure with yet
    encoder.measure_dimension(torch.ones(3))
    assert encoder.searches_batch_size
    found = encoder.search_batch_size()
    assert max(encoder.seen) <= 64
    assert found.batch_size <= 32
    assert encoder.batch_size == 64
    on_a_cpu = kind(room=40, batch_size=None)
    on_a_cpu.measure_dimension(torch.zeros(3))
    assert not on_a_cpu.searches_batch_size  # stores made apart are equal byte for byte
    given = kind(room=40, batch_size=16)
    given.measure_dimension(torch.ones(3))
    assert not given.searches_batch_size


def test_a_settled_batch_size_does_not_undo_a_back_off() -> None:
    encoder = Doubling(room=20)
    encoder.encode([torch.ones(3)] * 64)
    assert encoder.batch_size == 16
    encoder.use_batch_size(128)
    assert encoder.batch_size == 16
    encoder.use_batch_size(8)
    assert encoder.batch_size == 8
