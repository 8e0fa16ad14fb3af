"""The embeddings of a split: kept whole, open to any Zarr reader, and never shown half, wherever the store lies."""

import pickle
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stored_places import DAMAGE, Place

from congruence.tasks.data.settings import Shard
from congruence.tasks.store.embeddings import EmbeddingStore, StoreAddress, StoreError, open_store_cached
from congruence.tasks.store.objects import ObjectStore

DIMENSION = 5
SHARD_ROWS = 7
SAID = {"split": "test", "key": "key", "targets": ["y", "z"]}


@dataclass
class Plan:
    """A split as the store sees it: rows cut into shards, named by what they hold."""

    rows: int = 20
    size: int = SHARD_ROWS

    @property
    def digest(self) -> str:
        return f"{self.rows:032x}"

    @property
    def shards(self) -> list[Shard]:
        counts = ((start, min(self.size, self.rows - start)) for start in range(0, self.rows, self.size))
        return [Shard(i, start, n, f"{start:016x}{n:016x}") for i, (start, n) in enumerate(counts)]


def opened(place: Place | Path, rows: int = 20, size: int = SHARD_ROWS, **changes: Any) -> EmbeddingStore:
    where = place if isinstance(place, Place) else Place(str(place))
    named = {name: changes.pop(name) for name in ("id", "preprocessing_digest", "dimension") if name in changes}
    encoder: Any = SimpleNamespace(**({"id": "clip", "preprocessing_digest": "resize", "dimension": DIMENSION} | named))
    options = {"storage_options": where.options, "describe": SAID}
    return EmbeddingStore.open(where.uri, Plan(rows, size), encoder, **(options | changes))  # type: ignore[arg-type]


def embeddings(shard: Shard) -> np.ndarray:
    return np.random.default_rng(shard.start).normal(size=(shard.rows, DIMENSION)).astype(np.float32)


def write(store: EmbeddingStore, shard: Shard, invalid: dict[int, str] | None = None) -> None:
    numbers = np.arange(shard.start, shard.stop)
    targets = np.column_stack([numbers, -numbers])
    store.write(shard, embeddings(shard), invalid or {}, keys=[f"row {n}" for n in numbers], targets=targets)


def filled(place: Place | Path, rows: int = 20, **changes: Any) -> EmbeddingStore:
    store = opened(place, rows, **changes)
    for shard in Plan(rows).shards:
        write(store, shard, {1: "not an image"} if shard.index == 1 else None)
    return store


EXPECTED = np.concatenate([embeddings(shard) for shard in Plan().shards])
EXPECTED[8] = np.nan


def test_rows_come_back_in_the_order_of_the_split(place: Place) -> None:
    filled(place)
    store = opened(place)
    np.testing.assert_array_equal(store.read(), EXPECTED)
    for rows in (slice(3, 4), slice(6, 15), slice(-2, None), slice(9, 9)):
        np.testing.assert_array_equal(store.read(rows), EXPECTED[rows])
    assert np.flatnonzero(~store.valid()).tolist() == [8]
    assert store.reasons() == {8: "not an image"}
    assert store.reasons(slice(9, 20)) == {}
    assert store.valid(slice(7, 10)).tolist() == [True, False, True]
    assert store.pending() == []
    with pytest.raises(StoreError, match="only step 1 is read"):
        store.read(slice(0, 9, 2))


def test_any_zarr_reader_opens_them(place: Place) -> None:
    """By the address and the library alone."""
    store = filled(place)
    options = {"storage_options": place.options} if "://" in place.uri else {}
    group: Any = zarr.open(f"{place.uri}/{store.folder}", mode="r", **options)
    assert group.attrs["encoder_id"] == "clip"
    assert {name: group.attrs[name] for name in ("split", "rows", "shard_rows", "split_digest")} == {
        "split": "test",
        "rows": 20,
        "shard_rows": SHARD_ROWS,
        "split_digest": Plan().digest,
    }
    assert group.attrs["shards"] == [shard.digest for shard in Plan().shards]
    array = group["embeddings"]
    assert (array.shape, array.shards, array.metadata.zarr_format) == ((20, DIMENSION), (SHARD_ROWS, DIMENSION), 3)
    np.testing.assert_array_equal(array[:], EXPECTED)
    assert np.flatnonzero(~group["valid"][:]).tolist() == [8]
    assert [str(text) for text in group["reason"][7:10]] == ["", "not an image", ""]
    assert [str(text) for text in group["key"][6:8]] == ["row 6", "row 7"]
    np.testing.assert_array_equal(group["target"][:], np.column_stack([np.arange(20), -np.arange(20)]))


def test_writing_again_changes_no_byte(place: Place) -> None:
    filled(place)
    before = place.content()
    filled(place)
    assert place.content() == before


@pytest.mark.parametrize(
    ("array", "place"), [("embeddings", "folder"), ("valid", "memory"), ("reason", "s3")], indirect=["place"]
)
def test_damage_is_named_and_what_is_deleted_is_made_again(array: str, place: Place) -> None:
    store = filled(place)
    before, shard = place.content(), Plan().shards[1]
    error = damaged(place, before, array, lambda data: data[:-1])
    named = [name for name in before if f"{place.uri}/{name} " in f"{error} "]
    assert f"{store.folder}/embeddings/c.1.0" in named
    place.objects.remove(named)
    assert opened(place).pending() == [shard]
    with pytest.raises(StoreError, match=r"shard 1 \(rows 7 to 13\) is not embedded yet; run again"):
        opened(place).read()
    write(opened(place), shard, {1: "not an image"})
    assert place.content() == before


@pytest.mark.parametrize("array", ["embeddings", "valid", "reason"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_kind_of_damage_is_noticed(array: str, damage: str, tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    filled(place)
    damaged(place, place.content(), array, DAMAGE[damage])


def damaged(place: Place, before: dict[str, bytes], array: str, how: Callable[[bytes], bytes]) -> StoreError:
    """What is said of a damaged object of shard 1."""
    (key,) = [key for key in before if f"{array}/c.1" in key]
    place.objects.put(key, how(before[key]))
    read = EmbeddingStore.reasons if array == "reason" else EmbeddingStore.read
    with pytest.raises(StoreError, match=rf"{key} is damaged \(.*; delete this file.* again: rows 7 to 13") as error:
        read(opened(place))
    return error.value


@pytest.mark.parametrize(
    ("how", "place"), [("emptied", "folder"), ("removed", "memory"), ("emptied", "s3")], indirect=["place"]
)
def test_what_is_gone_is_pending(how: str, place: Place) -> None:
    """Empty files are what a disk may leave of the last ones when the power fails."""
    store = filled(place)
    key = f"{store.folder}/embeddings/c.1.0"
    place.objects.put(key, b"") if how == "emptied" else place.objects.remove(key)
    assert opened(place).pending() == [Plan().shards[1]]
    assert not opened(place).is_done(Plan().shards[1])
    with pytest.raises(StoreError, match="not embedded yet"):
        opened(place).read()


def test_embeddings_that_contradict_the_reasons_are_named(place: Place) -> None:
    store = filled(place)
    place.objects.remove(f"{store.folder}/valid/c.1")
    with pytest.raises(StoreError, match=r"embeddings/c\.1\.0 contradicts what is said of row 7; delete this file"):
        opened(place).read()
    with pytest.raises(StoreError, match=r"embeddings/c\.1\.0 contradicts what is said of row 7"):
        opened(place).reasons()


def test_damaged_metadata_are_named_and_written_again(place: Place) -> None:
    store = filled(place)
    place.objects.put(f"{store.folder}/valid/zarr.json", b"{")
    with pytest.raises(StoreError, match=r"/zarr\.json describes no array 'valid' \(.*delete this file and run again"):
        opened(place).read()
    place.objects.remove(f"{store.folder}/zarr.json")
    np.testing.assert_array_equal(opened(place).read(), EXPECTED)


@pytest.mark.parametrize(
    ("other", "place"),
    [
        *[({"id": "dino"}, "folder"), ({"preprocessing_digest": "crop"}, "memory")],
        *[({"dtype": "float16"}, "s3"), ({"size": 10}, "folder")],
    ],
    indirect=["place"],
)
def test_other_settings_never_meet(other: dict[str, Any], place: Place) -> None:
    store = filled(place)
    strange = opened(place, **other)
    assert strange.pending() == Plan(size=other.get("size", SHARD_ROWS)).shards
    assert not any(strange.adopt(shard) for shard in strange.pending())
    with pytest.raises(StoreError, match="is not embedded yet"):
        strange.read()
    assert store.pending() == []


def test_a_longer_split_takes_over_the_shards_that_it_shares(place: Place) -> None:
    filled(place)
    longer = opened(place, rows=30)
    plan = Plan(30).shards
    assert [longer.adopt(shard, keys=["k"] * shard.rows) for shard in plan] == [True, True, False, False, False]
    assert longer.pending() == plan[2:]
    for shard in plan[2:]:
        write(longer, shard)
    np.testing.assert_array_equal(longer.read(slice(0, 14)), EXPECTED[:14])
    assert longer.reasons() == {8: "not an image"}
    assert opened(place, rows=20).pending() == []


def test_what_is_damaged_is_not_taken_over(place: Place) -> None:
    store = filled(place)
    key = f"{store.folder}/embeddings/c.0.0"
    place.objects.put(key, (place.objects.get(key) or b"")[:-1])
    longer = opened(place, rows=30)
    assert [longer.adopt(shard) for shard in Plan(30).shards[:2]] == [False, True]
    place.objects.put(f"{store.folder}/zarr.json", b"{")
    assert [opened(place, rows=40).adopt(shard) for shard in Plan(40).shards[:2]] == [False, True]


def test_a_shard_without_a_valid_row_is_done(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for shard in Plan().shards:
        write(store, shard, {row: f"why \ud800 {row}" for row in range(shard.rows)} if shard.index == 2 else None)
    assert store.pending() == []
    again = opened(tmp_path)
    assert np.isnan(again.read(slice(14, 20))).all()
    assert again.reasons() == {14 + row: f"why ? {row}" for row in range(6)}


def test_half_precision_rounds_and_refuses_to_overflow(tmp_path: Path) -> None:
    store = opened(tmp_path, rows=7, dtype="float16")
    (shard,) = Plan(7).shards
    write(store, shard)
    assert store.read().dtype == np.float32
    np.testing.assert_allclose(store.read(), embeddings(shard), rtol=2**-11)
    assert (store.read() != embeddings(shard)).any()
    with pytest.raises(StoreError, match="row 0: 70000 overflows float16; use float32"):
        store.write(shard, np.full((7, DIMENSION), 7e4), {})


def test_two_writers_with_unequal_bytes_leave_one_whole_shard(place: Place) -> None:
    """As when two machines round differently."""
    shard = Plan(7).shards[0]
    write(opened(place, rows=7), shard)
    opened(place, rows=7).write(shard, embeddings(shard) * 2, {})
    np.testing.assert_array_equal(opened(place, rows=7).read(), embeddings(shard) * 2)


def test_many_threads_write_and_read_the_same_shards(place: Place) -> None:
    def work(_: int) -> None:
        store = opened(place, rows=14)
        for shard in Plan(14).shards:
            write(store, shard)
            assert store.is_done(shard)
            np.testing.assert_array_equal(store.read(slice(shard.start, shard.stop)), embeddings(shard))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert opened(place, rows=14).pending() == []


def test_the_first_batch_size_is_everybodys(place: Place) -> None:
    stores = [opened(place) for _ in range(8)]
    start = threading.Barrier(len(stores))

    def settle(number: int) -> int:
        start.wait()
        return stores[number].settle_batch_size("cpu", 16 + number)

    assert stores[0].batch_size("cpu") is None
    with ThreadPoolExecutor(len(stores)) as pool:
        found = set(pool.map(settle, range(len(stores))))
    settled = opened(place).batch_size("cpu")
    assert settled in found
    assert found == {settled} or place.uri.startswith("memory")  # which knows no write of the first alone
    assert opened(place).settle_batch_size("cpu", 999) == settled
    assert stores[0].batch_size("cuda") is None
    assert opened(place, id="another").batch_size("cpu") is None
    key = f"{stores[0].encoder_key}/batch_size/cpu.json"
    place.objects.put(key, b"[]")
    with pytest.raises(StoreError, match=rf"{key} holds no batch size .*; delete this file and run again"):
        opened(place).batch_size("cpu")


class StoreMachine(RuleBasedStateMachine):
    """Any order of writes, damage, new processes and appended rows against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.place = Place(self.home.name)
        self.rows = 20
        self.written: dict[int, dict[str, dict[int, str]]] = {20: {}, 40: {}}

    def teardown(self) -> None:
        self.home.cleanup()

    @rule(data=st.data(), reasons=st.dictionaries(st.integers(0, 5), st.text(min_size=1, max_size=9), max_size=3))
    def write_shard(self, data: st.DataObject, reasons: dict[int, str]) -> None:
        shard = data.draw(st.sampled_from(Plan(self.rows).shards))
        held = {row: reason for row, reason in reasons.items() if row < shard.rows}
        write(opened(self.place, self.rows), shard, held)
        self.written[self.rows][shard.digest] = held

    @precondition(lambda self: self.written[self.rows])
    @rule(data=st.data(), at=st.integers(0, 10**6), how=st.sampled_from(["cut", "flip", "remove"]))
    def damage(self, data: st.DataObject, at: int, how: str) -> None:
        written = self.written[self.rows]
        shard = data.draw(st.sampled_from([shard for shard in Plan(self.rows).shards if shard.digest in written]))
        store, objects = opened(self.place, self.rows), self.place.objects
        key = f"{store.folder}/embeddings/c.{shard.index}.0"
        content = objects.get(key) or b""
        position = at % len(content)
        flipped = content[:position] + bytes([content[position] ^ 255]) + content[position + 1 :]
        objects.put(key, flipped if how == "flip" else content[:position])
        if how == "remove":
            objects.remove(key)
        with pytest.raises(StoreError):
            store.read(slice(shard.start, shard.stop))
        objects.remove(key)
        del written[shard.digest]

    @rule(rows=st.sampled_from([20, 40]))
    def append(self, rows: int) -> None:
        self.rows, other = rows, 60 - rows  # which keeps what it has, whichever was asked for last
        store = opened(self.place, rows)
        for shard in store.pending():
            held = self.written[other].get(shard.digest)
            assert store.adopt(shard) == (held is not None)
            if held is not None:
                self.written[rows][shard.digest] = held

    @invariant()
    def shows_exactly_what_was_written(self) -> None:
        store, written = opened(self.place, self.rows), self.written[self.rows]
        assert store.pending() == [shard for shard in Plan(self.rows).shards if shard.digest not in written]
        for shard in Plan(self.rows).shards:
            if shard.digest in written:
                expected = embeddings(shard)
                expected[list(written[shard.digest])] = np.nan
                rows = slice(shard.start, shard.stop)
                np.testing.assert_array_equal(store.read(rows), expected)
                said = {
                    shard.start + row: reason.encode("utf-8", "replace").decode()
                    for row, reason in written[shard.digest].items()
                }
                assert store.reasons(rows) == said


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=5, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_one_listing_tells_what_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 shards, of which nothing is read."""
    plan = Plan(10_000, 2)
    store = opened(tmp_path, 10_000, 2)
    write(store, plan.shards[0])
    folder = tmp_path / store.folder / "embeddings"
    for shard in plan.shards[1:]:
        (folder / f"c.{shard.index}.0").write_bytes(b"1" if shard.index != 8 else b"")
    (folder / "c.7.0").unlink()
    requests: Counter[str] = Counter()
    for name in ("get", "objects", "size", "put"):
        original = getattr(ObjectStore, name)

        def count(self: Any, *args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            requests[name] += 1
            return original(self, *args, **options)

        monkeypatch.setattr(ObjectStore, name, count)
    assert store.pending() == plan.shards[7:9]
    assert requests == {"objects": 1}


def test_an_address_is_small_and_opened_once_for_a_split(tmp_path: Path) -> None:
    plan = Plan(10_000, 2)
    store = opened(Place(str(tmp_path), {"auto_mkdir": True}), 10_000, 2)
    write(store, plan.shards[0])
    data = pickle.dumps(store.address)
    assert len(data) < 1000
    assert "auto_mkdir" not in repr(store.address)
    address: StoreAddress = pickle.loads(data)
    arrived = open_store_cached(address, plan)
    assert arrived is open_store_cached(store.address, Plan(10_000, 2))
    assert arrived is not open_store_cached(address, Plan(10_000, 3))
    np.testing.assert_array_equal(arrived.read(slice(0, 2)), embeddings(plan.shards[0]))
    assert address.options == {"auto_mkdir": True}
