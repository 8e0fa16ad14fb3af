"""Embedding a shard: every row in its place, the same bytes whatever the timing, kills, company and batches."""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from embed_process import PixelEncoder, embed_all, open_store, start
from encoder_inputs import encoder_inputs, of_features

from congruence.kernels.threads import usable_cores
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import require_few_invalid
from congruence.tasks.encoders import loading
from congruence.tasks.encoders.base import BatchSearch, Encoder, InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.encoders.torch_encoder import TorchEncoder
from congruence.tasks.evaluate import pieces
from congruence.tasks.evaluate.pieces import (
    BATCHES_AHEAD,
    BATCHES_IN_FLIGHT,
    decode_threads,
    embed_each,
    own_threads,
    settle_batch_size,
)
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.runtime.files import ENDING
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.store.embeddings import EmbeddingStore


def files(folder: Path) -> dict[str, bytes]:
    """All but what killed writers left half-written, which nobody reads and ``clean`` removes."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ENDING)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_row_i_of_the_store_is_row_i_of_the_split(image_split: Any, tmp_path: Path) -> None:
    split = open_split(image_split(70))
    store = open_store(str(tmp_path / "store"), split)
    encoder = PixelEncoder()
    embed_each(split, split.shards, encoder, store)
    raw = [value for shard in split.shards for value in encoder_inputs(split, shard)]
    np.testing.assert_array_equal(store.read(), encoder.encode([encoder.preprocess(value) for value in raw]))
    assert store.pending() == []
    again = PixelEncoder()
    embed_each(split, split.shards, again, store)
    assert again.encoded_rows == 0


class Erratic(Encoder):
    """Decodes out of order: what the threads finish first changes from run to run."""

    id, preprocessing_digest = "numbers", ""
    dimension = 2
    batch_size = 8

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held = 0
        self.most_held = 0
        self.lock = threading.Lock()
        self.batches: list[list[float]] = []

    def preprocess(self, raw: npt.NDArray[np.float64]) -> float:
        with self.lock:
            self.held += 1
            self.most_held = max(self.most_held, self.held)
        time.sleep(self.random.random() * 0.002)
        if raw[0] % 10 == 3:
            raise InvalidRow(f"{raw[0]:.0f} ends in three")
        return float(raw[0])

    def encode(self, batch: list[Any]) -> npt.NDArray[np.float32]:
        self.batches.append(batch)
        with self.lock:
            self.held -= len(batch)
        out = np.array([[value, len(self.batches)] for value in batch], dtype=np.float32)
        out[np.array(batch) == 77, 0] = np.nan
        return out


@pytest.fixture
def numbers(tmp_path: Path) -> Any:
    (tmp_path / "numbers.csv").write_text("x,y\n" + "".join(f"{row},0\n" for row in range(100)))
    return open_split(of_features(tmp_path / "numbers.csv", "x", shard_rows=60))


def opened(folder: Path, split: Split, encoder: Encoder) -> EmbeddingStore:
    return EmbeddingStore.open(str(folder), split, encoder)


def _embed(split: Any, encoder: Any, folder: Path, **options: Any) -> Any:
    store = opened(folder, split, encoder)
    for shard in split.shards:
        embed_each(split, [shard], encoder, store, **options)
    return store


def test_the_bytes_do_not_depend_on_timing_and_invalid_rows_keep_their_place(numbers: Any, tmp_path: Path) -> None:
    stores = []
    for seed in range(3):
        encoder = Erratic(seed)
        store = _embed(numbers, encoder, tmp_path / str(seed), threads=4)
        stores.append(files(tmp_path / str(seed)))
        assert [len(batch) for batch in encoder.batches] == [8] * 6 + [6] + [8] * 4 + [4]
    assert stores[0] == stores[1] == stores[2]
    expected = {row: f"{row} ends in three" for row in range(3, 100, 10)} | {77: "the encoder's output is not finite"}
    assert store.reasons() == dict(sorted(expected.items()))
    embedded = store.read()[:, 0]
    np.testing.assert_array_equal(embedded[store.valid()], np.flatnonzero(store.valid()))
    assert np.isnan(embedded[~store.valid()]).all()


def test_rows_in_flight_are_bounded(numbers: Any, tmp_path: Path) -> None:
    encoder = Erratic(0)
    _embed(numbers, encoder, tmp_path / "store", threads=2)
    # What is ahead, a batch that is filled, and the invalid rows that nobody gives back.
    assert encoder.most_held <= BATCHES_AHEAD * 8 + 8 + 10


@pytest.mark.parametrize("where", ["preprocess", "encode", "read"])
def test_a_failure_that_is_not_the_rows_fault_is_raised_and_nothing_counts_as_done(
    where: str, numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise ConnectionError("the network is gone")

    encoder = Erratic(0)
    if where == "read":
        monkeypatch.setattr(numbers, "input_readers", lambda shard: (fail() for _ in range(5)))
    else:
        monkeypatch.setattr(encoder, where, fail)
    before = threading.active_count()
    with pytest.raises(ConnectionError, match="the network is gone"):
        _embed(numbers, encoder, tmp_path / "store", threads=2)
    assert threading.active_count() == before
    assert not list((tmp_path / "store").rglob("c.*"))


def test_invalid_rows_are_five_lines_and_a_file(numbers: Any, tmp_path: Path) -> None:
    store = _embed(numbers, Erratic(0), tmp_path / "store")
    reasons, folder = store.reasons(), tmp_path / "invalid-rows"
    left_out = require_few_invalid(reasons, numbers, max_invalid=0.11, folder=folder)
    assert "11 of 100 rows have no embedding (11.00%) and are left out" in left_out
    with pytest.raises(TooManyInvalidRowsError) as error:
        require_few_invalid(reasons, numbers, folder=folder)
    said = str(error.value)
    assert "11 of 100 rows have no embedding (11.00%, allowed 1.00%)" in said
    assert f"row 13 ({tmp_path}/numbers.csv, row 13): 13 ends in three" in said
    assert sum(line.startswith("  row ") for line in said.splitlines()) == 5
    (listing,) = folder.iterdir()
    assert f"; all of them: {listing}" in said
    assert [json.loads(line)["row"] for line in listing.read_text().splitlines()] == sorted(reasons)
    assert require_few_invalid({}, numbers) is None


def test_killed_at_any_moment_the_next_run_ends_with_the_same_bytes(image_split: Any, tmp_path: Path) -> None:
    """SIGKILL at random moments of one store until a run gets through; every finished shard is kept."""
    settings = image_split(300, shard_rows=15)
    split = open_split(settings)
    undisturbed = tmp_path / "undisturbed"
    embed_all(split, open_store(str(undisturbed), split), PixelEncoder())
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    store = tmp_path / "killed"
    done_before = 0
    for _ in range(3):
        process = start(settings, str(store), pause=0.02)
        time.sleep(moments.uniform(0.0, 0.6))
        process.kill()
        process.join()
        opened = open_store(str(store), split)
        done = len(split.shards) - len(opened.pending())
        assert done >= done_before
        for shard in split.shards:
            if opened.is_done(shard):
                assert not np.isnan(opened.read(slice(shard.start, shard.stop))).any()
        done_before = done
    pending = open_store(str(store), split).pending()
    encoder = PixelEncoder()
    embed_all(split, open_store(str(store), split), encoder)
    assert encoder.encoded_rows == 15 * len(pending)
    for folder in (store, undisturbed):
        assert open_store(str(folder), split).pending() == []
    assert files(store) == files(undisturbed)


def test_evaluations_at_the_same_time_share_one_store(image_split: Any, tmp_path: Path) -> None:
    settings = image_split(120, shard_rows=15)
    split = open_split(settings)
    processes = [start(settings, str(tmp_path / "shared"), pause=0.005) for _ in range(2)]
    assert [(process.join(), process.exitcode) for process in processes] == [(None, 0), (None, 0)]
    alone = tmp_path / "alone"
    embed_all(split, open_store(str(alone), split), PixelEncoder())
    assert files(tmp_path / "shared") == files(alone)


def test_appended_rows_embed_only_the_new_shards(image_split: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    before = open_split(image_split(100, "before"))
    embed_all(before, open_store(store, before), PixelEncoder())
    after = open_split(image_split(150, "after"))
    encoder = PixelEncoder()
    embed_all(after, open_store(store, after), encoder)
    assert encoder.encoded_rows == 50
    np.testing.assert_array_equal(open_store(store, after).read(slice(0, 100)), open_store(store, before).read())


class InFlight(Encoder):
    """Embeds an image as its size in bytes and a constant; notes what was begun and asked for."""

    id, preprocessing_digest, dimension, batch_size = "size", "none", 2, 8

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
    begin = Encoder.begin


def test_the_encoder_does_not_wait_at_the_end_of_a_shard(
    image_split: Callable[..., SplitSettings], tmp_path: Path
) -> None:
    split = open_split(image_split(60))
    encoder, alone = InFlight(), OneByOne()
    store, other = opened(tmp_path / "a", split, InFlight()), opened(tmp_path / "b", split, InFlight())
    embed_each(split, split.shards, encoder, store, threads=2)
    # 20 rows a shard are batches of 8, 8 and 4: batch 3 is the next shard's first.
    assert encoder.events.index("begin 3") < encoder.events.index("result 2")
    assert store.valid().all()
    for shard in split.shards:
        embed_each(split, [shard], alone, other, threads=1)
    np.testing.assert_array_equal(store.read(), other.read())
    begun = encoder.begun
    embed_each(split, split.shards, encoder, store)
    assert encoder.begun == begun


def test_what_is_finished_is_written_by_another_thread_and_kept_when_a_later_shard_fails(
    image_split: Callable[..., SplitSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = open_split(image_split(60))
    store, writers = opened(tmp_path / "a", split, InFlight()), []
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


def test_a_shard_that_cannot_be_written_is_an_error(
    image_split: Callable[..., SplitSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = open_split(image_split(40))
    store = opened(tmp_path / "a", split, InFlight())

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


def test_the_first_worker_measures_and_the_others_follow(split: Split, tmp_path: Path) -> None:
    first, second = Thumbnails(), Thumbnails()
    line = settle_batch_size(first, opened(tmp_path, split, first))
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


class Cluster:
    """What `decode_threads` asks a client: the workers, and a call on each of them."""

    def __init__(self, hosts: dict[str, tuple[str, int]]) -> None:
        self.hosts = hosts

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        return {"workers": {address: {"host": host, "nthreads": 1} for address, (host, _) in self.hosts.items()}}

    def run(self, function: Any, on_error: str) -> dict[str, int]:
        assert (function, on_error) == (usable_cores, "ignore")
        return {address: cores for address, (_, cores) in self.hosts.items()}


def test_the_cores_of_a_host_are_shared_by_its_workers() -> None:
    big = {f"tcp://big:{port}": ("big", 32) for port in range(4)}
    small = {f"tcp://small:{port}": ("small", 2) for port in range(3)}
    threads = decode_threads(Cluster(big | small))  # type: ignore[arg-type]
    assert threads == dict.fromkeys(big, 8) | dict.fromkeys(small, 1)


def test_a_worker_takes_its_own_and_one_that_came_later_counts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        address = "tcp://big:1"

    monkeypatch.setattr(pieces, "get_worker", Worker)
    assert own_threads({"tcp://big:1": 5, "tcp://big:2": 7}) == 5
    assert own_threads({"tcp://big:2": 7}) == usable_cores()
