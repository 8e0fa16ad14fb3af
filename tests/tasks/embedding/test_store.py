"""The store keeps what is written, whole and checked, and never shows anything else."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from broken_shards import broken_shards
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.arrays import encoded
from congruence.tasks.embeddings.store import EmbeddingStore, StoreError
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.runtime.files import content_digest, sealed, unsealed

DIMENSION = 5
SHARD_ROWS = 7


@dataclass
class PlannedSplit:
    """A split as the store sees it: a plan of shards."""

    shards: list[Shard]
    name: str = "test"

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def digest(self) -> str:
        return f"{self.rows:032x}"


def plan(rows: int) -> PlannedSplit:
    starts = range(0, rows, SHARD_ROWS)
    counts = [min(SHARD_ROWS, rows - start) for start in starts]
    return PlannedSplit(
        [Shard(i, start, n, f"{start:016x}{n:016x}") for i, (start, n) in enumerate(zip(starts, counts, strict=True))]
    )


def open_store(uri: str | Path, rows: int = 20, **changes: Any) -> EmbeddingStore:
    keys = {"encoder_id": "clip", "preprocessing_digest": "resize", "dimension": DIMENSION}
    return EmbeddingStore.open(str(uri), split=plan(rows), **(keys | changes))  # type: ignore[arg-type]


def embeddings(shard: Shard) -> np.ndarray:
    return np.random.default_rng(shard.start).normal(size=(shard.rows, DIMENSION)).astype(np.float32)


def write(store: EmbeddingStore, shard: Shard, invalid: dict[int, str] | None = None) -> None:
    reasons = {} if invalid is None else invalid
    store.write(shard, embeddings(shard), reasons)


def objects(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def data_object(folder: Path) -> Path:
    """The stored embeddings of the last shard that was written."""
    return max(folder.rglob("0.0"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def full(tmp_path: Path) -> tuple[EmbeddingStore, Path]:
    store = open_store(tmp_path)
    for shard in plan(20).shards:
        write(store, shard, {1: "not an image"} if shard.index == 1 else None)
    return store, tmp_path


def test_rows_come_back_in_the_order_of_the_split(full: tuple[EmbeddingStore, Path]) -> None:
    store, _ = full
    expected = np.concatenate([embeddings(shard) for shard in plan(20).shards])
    expected[8] = np.nan
    np.testing.assert_array_equal(store.read(), expected)
    for rows in (slice(3, 4), slice(6, 15), slice(-2, None), slice(9, 9)):
        np.testing.assert_array_equal(store.read(rows), expected[rows])
    assert np.flatnonzero(~store.valid()).tolist() == [8]
    assert store.reasons() == {8: "not an image"}
    assert store.reasons(slice(9, 20)) == {}
    assert store.valid(slice(7, 10)).tolist() == [True, False, True]
    assert store.pending() == []
    assert broken_shards(store) == []


def test_any_zarr_reader_opens_the_arrays(full: tuple[EmbeddingStore, Path]) -> None:
    store, folder = full
    group = zarr.open_group(folder / store.encoder_key, mode="r")
    assert group.attrs["encoder_id"] == "clip"
    digest = plan(20).shards[1].digest
    marker = json.loads((folder / store.encoder_key / "done" / f"{digest}.json").read_text())
    array = group[f"shards/{digest}-{marker['content']}"]
    assert isinstance(array, zarr.Array)
    assert array.metadata.zarr_format == 3
    assert array.shards == (7, DIMENSION)
    assert np.isnan(array.fill_value)
    np.testing.assert_array_equal(np.asarray(array[2:]), embeddings(plan(20).shards[1])[2:])
    assert np.isnan(np.asarray(array[1])).all()
    assert sorted(name for name, _ in group["shards"].arrays()) == sorted(  # type: ignore[union-attr]
        path.name for path in (folder / store.encoder_key / "shards").iterdir() if path.is_dir()
    )


def test_writing_again_changes_no_byte(full: tuple[EmbeddingStore, Path]) -> None:
    _, folder = full
    before = objects(folder)
    for shard in plan(20).shards:
        write(open_store(folder), shard, {1: "not an image"} if shard.index == 1 else None)
    assert objects(folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "emptied", "one bit", "removed"],
)
def test_every_kind_of_damage_to_every_object_is_noticed_and_redone(
    damage: Callable[[Path], Any], full: tuple[EmbeddingStore, Path]
) -> None:
    _, folder = full
    before = objects(folder)
    shard = plan(20).shards[1]
    stored = [name for name in before if shard.digest in name and "zarr.json" not in name]
    assert len(stored) == 2
    for name in stored:
        damage(folder / name)
        assert broken_shards(open_store(folder)) == [1]
        store = open_store(folder)
        assert store.pending() == [shard], name
        with pytest.raises(StoreError, match=r"shard 1 \(rows 7 to 14\) .*; rerun"):
            store.read()
        write(store, shard, {1: "not an image"})
        assert objects(folder) == before


def test_embeddings_of_another_width_under_a_marker_that_fits_them_are_made_again(
    full: tuple[EmbeddingStore, Path],
) -> None:
    store, folder = full
    shard = plan(20).shards[0]
    data = encoded(np.zeros((shard.rows, DIMENSION - 2), np.float32))
    marker = folder / store.encoder_key / "done" / f"{shard.digest}.json"
    marker.write_bytes(sealed(unsealed(marker.read_bytes()) | {"content": content_digest(data), "size": len(data)}))
    place = folder / store.encoder_key / "shards" / f"{shard.digest}-{content_digest(data)}" / "0.0"
    place.parent.mkdir()
    place.write_bytes(data)
    again = open_store(folder)
    with pytest.raises(StoreError, match=f"holds no {shard.rows} x {DIMENSION} embeddings"):
        again.read()
    assert [item.index for item in again.pending()] == [0]


def test_a_changed_reason_or_row_count_in_the_marker_is_noticed(full: tuple[EmbeddingStore, Path]) -> None:
    _, folder = full
    marker = next(folder.rglob(f"done/{plan(20).shards[1].digest}.json"))
    for change in ({"reasons": {}}, {"rows": 6}, {"encoder_key": "other"}, {"content": ""}, {"reasons": None}):
        content = marker.read_text()
        marker.write_text(json.dumps(json.loads(content) | change))
        assert [shard.index for shard in open_store(folder).pending()] == [1], change
        marker.write_text(content)
    assert open_store(folder).pending() == []


@pytest.mark.parametrize(
    "other", [{"encoder_id": "dino"}, {"preprocessing_digest": "crop"}, {"dtype": "float16"}, {"dimension": 4}]
)
def test_other_settings_never_meet(other: dict[str, Any], full: tuple[EmbeddingStore, Path]) -> None:
    store, folder = full
    strange = open_store(folder, **other)
    assert [shard.index for shard in strange.pending()] == [0, 1, 2]
    with pytest.raises(StoreError, match="is not embedded yet"):
        strange.read()
    assert store.pending() == []


def test_appended_rows_find_the_full_shards_done(full: tuple[EmbeddingStore, Path]) -> None:
    _, folder = full
    longer = open_store(folder, rows=30)
    assert [shard.index for shard in longer.pending()] == [2, 3, 4]
    for shard in longer.pending():
        write(longer, shard)
    assert longer.read().shape == (30, DIMENSION)
    assert open_store(folder, rows=20).pending() == []


def test_half_precision_rounds_and_refuses_to_overflow(tmp_path: Path) -> None:
    store = open_store(tmp_path, rows=7, dtype="float16")
    (shard,) = plan(7).shards
    write(store, shard)
    np.testing.assert_allclose(store.read(), embeddings(shard), rtol=2**-11)
    assert (store.read() != embeddings(shard)).any()
    with pytest.raises(StoreError, match="row 0: 70000 overflows float16; use float32"):
        store.write(shard, np.full((7, DIMENSION), 7e4), {})


def test_two_writers_with_unequal_bytes_leave_one_whole_shard(tmp_path: Path) -> None:
    """As when two machines round differently: the readers of the first keep reading until the second's marker."""
    shard = plan(7).shards[0]
    first, second = open_store(tmp_path, rows=7), open_store(tmp_path, rows=7)
    write(first, shard)
    second.write(shard, embeddings(shard) * 2, {})
    np.testing.assert_array_equal(open_store(tmp_path, rows=7).read(), embeddings(shard) * 2)
    assert broken_shards(open_store(tmp_path, rows=7)) == []


def test_many_threads_write_and_read_the_same_shards(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            store = open_store(tmp_path)
            for _ in range(3):
                for shard in plan(20).shards:
                    write(store, shard)
                    assert store.is_done(shard)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert broken_shards(open_store(tmp_path)) == []


def test_what_a_dead_writer_left_is_swept_and_a_living_one_is_left_alone(full: tuple[EmbeddingStore, Path]) -> None:
    _, folder = full
    incoming = folder / ".incoming"
    host = os.uname().nodename
    (incoming / f".0.0.{host}~4194304.dead.partial").write_bytes(b"half")
    (incoming / f".0.0.{host}~{os.getpid()}.alive.partial").write_bytes(b"half")
    (incoming / ".0.0.elsewhere~1.recent.partial").write_bytes(b"half")
    old = incoming / ".0.0.elsewhere~1.old.partial"
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    open_store(folder)
    assert {path.name.split(".")[-2] for path in incoming.iterdir()} == {"alive", "recent"}


def settled_by_many(uri: str | Path, **changes: Any) -> set[int]:
    """The batch sizes that eight workers go by, each of which found another one, all at once."""
    stores = [open_store(uri, **changes) for _ in range(8)]
    start = threading.Barrier(len(stores))

    def settle(number: int) -> int:
        start.wait()
        return stores[number].settle_batch_size("cpu", 16 + number)

    with ThreadPoolExecutor(len(stores)) as pool:
        return set(pool.map(settle, range(len(stores))))


def test_the_first_batch_size_is_everybodys(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.batch_size("cpu") is None
    (size,) = settled_by_many(tmp_path)
    assert store.batch_size("cpu") == size
    assert store.batch_size("cuda") is None
    assert open_store(tmp_path, encoder_id="another").batch_size("cpu") is None
    assert list((tmp_path / ".incoming").iterdir()) == []
    (settled,) = tmp_path.rglob("batch_size/cpu.json")
    whole = settled.read_bytes()
    for damaged in (b"", whole[:-5], whole.replace(str(size).encode(), b"99"), b"[]"):
        settled.write_bytes(damaged)
        assert store.batch_size("cpu") is None
        assert store.settle_batch_size("cpu", 48) == 48
        assert store.batch_size("cpu") == 48


class StoreMachine(RuleBasedStateMachine):
    """Any order of writes, damage, new processes and appended rows against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.folder = Path(self.home.name)
        self.rows = 20
        self.store = open_store(self.folder, self.rows)
        self.written: dict[str, dict[int, str]] = {}

    def teardown(self) -> None:
        self.home.cleanup()

    @rule(data=st.data(), reasons=st.dictionaries(st.integers(0, 5), st.text(max_size=9), max_size=3))
    def write_shard(self, data: st.DataObject, reasons: dict[int, str]) -> None:
        shard = data.draw(st.sampled_from(plan(self.rows).shards))
        held = {row: reason for row, reason in reasons.items() if row < shard.rows}
        write(open_store(self.folder, self.rows), shard, held)
        self.written[shard.digest] = held
        self.store = open_store(self.folder, self.rows)

    @precondition(lambda self: self.written)
    @rule(at=st.integers(0, 10**6), how=st.sampled_from(["cut", "flip", "remove"]))
    def damage(self, at: int, how: str) -> None:
        path = data_object(self.folder)
        content = path.read_bytes()
        if not content:
            return
        position = at % len(content)
        changed = content[:position] + (
            bytes([content[position] ^ 255]) + content[position + 1 :] if how == "flip" else b""
        )
        path.unlink() if how == "remove" else path.write_bytes(changed)
        digest, content = path.parent.name.split("-")
        marker = self.folder / self.store.encoder_key / "done" / f"{digest}.json"
        if marker.exists() and json.loads(marker.read_text())["content"] == content:
            self.written.pop(digest, None)
        for rows in (20, 40):
            broken_shards(open_store(self.folder, rows))  # damage is noticed when data are read
        self.store = open_store(self.folder, self.rows)

    @rule(rows=st.sampled_from([20, 40]))
    def append(self, rows: int) -> None:
        self.rows = rows
        self.store = open_store(self.folder, rows)

    @invariant()
    def shows_exactly_what_was_written(self) -> None:
        shards = plan(self.rows).shards
        assert self.store.pending() == [shard for shard in shards if shard.digest not in self.written]
        for shard in shards:
            if shard.digest in self.written:
                expected = embeddings(shard)
                expected[list(self.written[shard.digest])] = np.nan
                rows = slice(shard.start, shard.stop)
                np.testing.assert_array_equal(self.store.read(rows), expected)
                assert self.store.reasons(rows) == {
                    shard.start + row: reason for row, reason in self.written[shard.digest].items()
                }


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=5, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_store_lives_in_s3(s3: dict[str, Any]) -> None:
    import s3fs

    uri = "s3://congruence/store"
    store = open_store(uri, storage_options=s3)
    for shard in plan(20).shards:
        write(store, shard, {2: "why"} if shard.index == 2 else None)
    again = open_store(uri, storage_options=s3)
    assert again.pending() == []
    assert again.reasons() == {16: "why"}
    expected = np.concatenate([embeddings(shard) for shard in plan(20).shards])
    expected[16] = np.nan
    np.testing.assert_array_equal(again.read(), expected)
    files = s3fs.S3FileSystem(**s3)
    (path,) = [
        path for path in files.find("congruence/store") if plan(20).shards[1].digest in path and path.endswith("0.0")
    ]
    files.pipe_file(path, files.cat_file(path)[:-3])
    with pytest.raises(StoreError, match=r"shard 1 .* is damaged"):
        open_store(uri, storage_options=s3).read()
    assert [shard.index for shard in open_store(uri, storage_options=s3).pending()] == [1]
    write(again, plan(20).shards[1])
    assert broken_shards(open_store(uri, storage_options=s3)) == []


def test_the_first_batch_size_is_everybodys_in_s3(s3: dict[str, Any]) -> None:
    (size,) = settled_by_many("s3://congruence/settled", storage_options=s3)
    assert open_store("s3://congruence/settled", storage_options=s3).settle_batch_size("cpu", 999) == size


def test_a_split_is_read_from_s3(s3: dict[str, Any], image_split: Any, embed_process: Any, tmp_path: Path) -> None:
    import s3fs

    from congruence.tasks.data.opening import open_split

    local = image_split(45)
    s3fs.S3FileSystem(**s3).put(local.uri + "/0.parquet", "congruence/split/0.parquet")
    there = open_split(local.model_copy(update={"uri": "s3://congruence/split", "storage_options": s3}))
    here = open_split(local)
    assert there.digest == here.digest
    assert there.shards == here.shards
    store = embed_process.open_store("s3://congruence/from-s3", there, storage_options=s3)
    embed_process.embed_all(there, store, embed_process.PixelEncoder())
    on_disk = embed_process.open_store(str(tmp_path / "store"), here)
    embed_process.embed_all(here, on_disk, embed_process.PixelEncoder())
    np.testing.assert_array_equal(store.read(), on_disk.read())


def test_manifests_tars_and_arrays_are_read_from_s3_as_from_a_disk(
    s3: dict[str, Any], jpegs: list[bytes], tmp_path: Path
) -> None:
    import s3fs

    from congruence.tasks.data.opening import open_split
    from congruence.tasks.data.settings import SplitSettings

    (tmp_path / "manifest").mkdir()
    for row in range(5):
        (tmp_path / "manifest" / f"{row}.jpg").write_bytes(jpegs[row])
    lines = "".join(f"{row}.jpg,{row}\n" for row in (0, 1, 2, 3, 4, 9))
    (tmp_path / "manifest" / "rows.csv").write_text("image,y\n" + lines + "../secret.jpg,7\n")
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        for row in range(5):
            for extension, content in (("jpg", jpegs[row]), ("cls", b"1")):
                member = tarfile.TarInfo(f"{row}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    np.savez(tmp_path / "rows.npz", x=np.eye(5), y=np.arange(5.0))
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("x", data=np.eye(5))
    group.create_array("y", data=np.arange(5.0))
    s3fs.S3FileSystem(**s3).put(f"{tmp_path}/", "congruence/sources/", recursive=True)
    columns = {
        "manifest/rows.csv": {"input": "image", "target": "y"},
        "rows.tar": {"input": "jpg", "target": "cls"},
        "rows.npz": {"input": "x", "target": "y", "input_kind": "features"},
        "rows.zarr": {"input": "x", "target": "y", "input_kind": "features"},
    }
    for name, roles in columns.items():
        here = open_split(SplitSettings.model_validate({"uri": str(tmp_path / name), **roles}))
        remote = {"uri": f"s3://congruence/sources/{name}", "storage_options": s3, **roles}
        there = open_split(SplitSettings.model_validate(remote), tmp_path / "plans")
        assert (there.digest, there.shards) == (here.digest, here.shards), name
        kept = open_split(SplitSettings.model_validate(remote), tmp_path / "plans")
        assert (kept.digest, kept.shards) == (here.digest, here.shards), name
        for mine, other in zip(
            here.read_encoder_inputs(here.shards[0]), there.read_encoder_inputs(there.shards[0]), strict=True
        ):
            if isinstance(mine, InvalidRow):
                assert isinstance(other, InvalidRow)
                assert mine.reason == other.reason
            else:
                np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))
