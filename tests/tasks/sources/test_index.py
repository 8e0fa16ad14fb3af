"""The index of a split: made file by file and once, the same however the rows are divided, believed only when whole."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.tasks.data import index
from congruence.tasks.data import settings as split_settings
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.index import check_files, describe_file, index_file, source_files
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.parts import DIGEST
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split

ROWS = 60
Write = Callable[[Path, pd.DataFrame], None]


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": [f"row {row}" for row in range(rows)],
            "a": rng.normal(size=rows).astype(np.float32),
            "b": rng.integers(-5, 5, rows),
            "y": rng.normal(size=rows),
            "group": np.where(rng.random(rows) < 0.5, "left", "right"),
        }
    )


def described(uri: Path, **changes: Any) -> SplitSettings:
    base = {"uri": str(uri), "input": ["a", "b"], "input_kind": "features", "target": "y", "key": "id"}
    return SplitSettings.model_validate(base | {"slices": ["group"], "shard_rows": 16} | changes)


def parquet(folder: Path, frame: pd.DataFrame, files: int = 1, group: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(frame), files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        part = pa.Table.from_pandas(frame[start:stop], preserve_index=False)
        pq.write_table(part, folder / f"{number:03d}.parquet", row_group_size=group)
    return folder


def csv(folder: Path, frame: pd.DataFrame, files: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(frame), files + 1).astype(int)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        frame[start:stop].to_csv(folder / f"{number:03d}.csv", index=False)
    return folder


def seen(split: Split) -> dict[str, Any]:
    """Everything that a split says of its rows."""
    features = [split.features(shard) for shard in split.shards]
    return {
        "digest": split.digest,
        "shards": [shard.digest for shard in split.shards],
        "targets": split.targets_of(split.shards).tolist(),
        "keys": split.keys_of(split.shards).tolist(),
        "slices": [split.frame(shard, split.settings.slices).to_dict("list") for shard in split.shards],
        "features": np.concatenate([matrix for matrix, _ in features]).tolist(),
        "reasons": [reasons for _, reasons in features],
    }


def parts_written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    written: list[str] = []
    write_part = index.write_part

    def noted(path: Path, asked: SplitSettings, rows: Any, *others: Any) -> Any:
        written.append(rows.place(0).rpartition(",")[0])
        return write_part(path, asked, rows, *others)

    monkeypatch.setattr(index, "write_part", noted)
    return written


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 70), cuts=st.lists(st.integers(0, 70), max_size=3), shard=st.integers(1, 40), csv_=st.booleans()
)
def test_files_have_the_index_of_their_concatenation(
    tmp_path_factory: pytest.TempPathFactory, rows: int, cuts: list[int], shard: int, csv_: bool
) -> None:
    folder = tmp_path_factory.mktemp("split")
    frame = table(rows, seed=rows)
    bounds = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        if csv_ and stop > start:
            csv(folder / "many", frame[start:stop])
            (folder / "many" / "000.csv").rename(folder / "many" / f"{number}.csv.part")
        if not csv_:
            parquet(folder / "many", frame[start:stop], group=7)
            (folder / "many" / "000.parquet").rename(folder / "many" / f"{number}.part")
    for path in (folder / "many").iterdir():
        path.rename(path.with_name(path.name.split(".")[0] + (".csv" if csv_ else ".parquet")))
    one = csv(folder / "one", frame) if csv_ else parquet(folder / "one", frame, group=1000)
    many, whole = (open_split(described(uri, shard_rows=shard)) for uri in (folder / "many", one))
    assert seen(many) == seen(whole)
    np.testing.assert_array_equal(many.targets_of(many.shards), frame["y"])
    assert many.keys_of(many.shards).tolist() == frame["id"].tolist()


def test_a_long_table_has_longer_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_settings, "LONG_TABLE", 20_000)
    for rows, size in ((19_999, 2048), (20_000, 16_384)):
        uri = parquet(tmp_path / str(rows), table(rows), group=5_000)
        for _ in range(2):  # made, and found as it was made
            shards = open_split(described(uri, shard_rows=None), tmp_path / "plans").shards
            assert [shard.rows for shard in shards[:-1]] == [size] * (len(shards) - 1)
            assert shards[-1].stop == rows
        assert open_split(described(uri, shard_rows=100), tmp_path / "plans").shards[0].rows == 100


def _tar(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for row in range(20):
            for extension, content in (("txt", b"text %d" % row), ("json", json.dumps({"y": row / 7}).encode())):
                member = tarfile.TarInfo(f"{row}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def _source(form: str, folder: Path) -> SplitSettings:
    frame = table(ROWS)
    columns = {"a": frame["a"].to_numpy(), "y": frame["y"].to_numpy()}
    arrays = {"input": "a", "key": None, "slices": []}
    match form:
        case "parquet":
            return described(parquet(folder / "data", frame, files=2))
        case "csv":
            return described(csv(folder / "data", frame, files=2))
        case "jsonl":
            frame.to_json(folder / "rows.jsonl", orient="records", lines=True)
            return described(folder / "rows.jsonl")
        case "tar":
            path = _tar(folder / "rows.tar")
            return described(path, input="txt", input_kind="text", key=None, slices=[])
        case "npz":
            np.savez(folder / "rows.npz", **columns)
            return described(folder / "rows.npz", **arrays)
        case "npy":
            (folder / "data").mkdir()
            for name, column in columns.items():
                np.save(folder / "data" / f"{name}.npy", column)
            return described(folder / "data", **arrays)
        case _:
            group = zarr.open_group(folder / "rows.zarr", mode="w")
            for name, column in columns.items():
                group.create_array(name, data=column)
            return described(folder / "rows.zarr", **arrays)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl", "tar", "npz", "npy", "zarr"])
def test_a_second_look_opens_no_file_of_the_source(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _source(form, tmp_path)
    made = open_split(asked, tmp_path / "index")
    opened: list[str] = []
    open_file, open_group = LocalFileSystem.open, zarr.open_group

    def noted(self: Any, path: str, *args: Any, **options: Any) -> Any:
        opened.append(path) if "/index/" not in path else None
        return open_file(self, path, *args, **options)

    monkeypatch.setattr(LocalFileSystem, "open", noted)
    monkeypatch.setattr(zarr, "open_group", lambda *a, **o: opened.append(str(a)) or open_group(*a, **o))
    found: Split = pickle.loads(pickle.dumps(open_split(asked, tmp_path / "index")))
    assert (found.digest, found.shards) == (made.digest, made.shards)
    np.testing.assert_array_equal(found.targets_of(found.shards), made.targets_of(made.shards))
    assert found.keys_of(found.shards[:1]).tolist() == made.keys(made.shards[0])
    assert opened == []
    assert len(list(found.input_readers(found.shards[0]))) == found.shards[0].rows
    assert opened or form in ("npz", "npy")  # which are read without fsspec


def test_only_a_changed_or_a_new_file_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = parquet(tmp_path / "data", table(ROWS), files=3)
    before = open_split(described(folder), tmp_path / "index")
    written = parts_written(monkeypatch)
    more = table(20, seed=9).assign(id=[f"more {row}" for row in range(20)])
    pq.write_table(pa.Table.from_pandas(more, preserve_index=False), folder / "003.parquet")
    after = open_split(described(folder), tmp_path / "index")
    assert written == [str(folder / "003.parquet")]
    assert [s.digest for s in after.shards[:3]] == [s.digest for s in before.shards[:3]]
    relabelled = table(ROWS)[20:40].assign(y=0.25)
    pq.write_table(pa.Table.from_pandas(relabelled, preserve_index=False), folder / "001.parquet")
    again = open_split(described(folder), tmp_path / "index")
    assert written[1:] == [str(folder / "001.parquet")]
    assert again.shards == after.shards
    assert again.digest != after.digest
    open_split(described(folder, shard_rows=7), tmp_path / "index")
    assert len(written) == 2


def test_only_images_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from congruence.tasks.data.files import ImageFolder

    for row in range(ROWS):
        (tmp_path / f"{row}.jpg").write_bytes(b"image %d" % row)
    pd.DataFrame({"image": [f"{row}.jpg" for row in range(ROWS)], "y": range(ROWS)}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    asked = described(tmp_path / "rows.csv", input="image", input_kind="image", key=None, slices=[])
    open_split(asked, tmp_path / "index")
    read: list[str] = []
    read_image = ImageFolder.read
    monkeypatch.setattr(ImageFolder, "read", lambda self, name: read.append(name) or read_image(self, name))
    (tmp_path / "7.jpg").write_bytes(b"another")
    (tmp_path / "41.jpg").unlink()
    changed = open_split(asked, tmp_path / "index")
    assert sorted(read) == ["41.jpg", "7.jpg"]
    assert changed.digest == open_split(asked).digest


def test_files_are_indexed_by_address_on_whatever_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(ROWS)
    frame["group"] = ["1"] * 40 + ["text"] * 20
    asked = described(csv(tmp_path / "data", frame, files=3), model_inputs=["a", "b", "group"])
    files = source_files(asked)
    for file in files:
        describe_file(asked, file, tmp_path / "index")
    kinds = check_files(asked, tmp_path / "index")
    paths = [index_file(asked, file, tmp_path / "index", kinds) for file in reversed(files)]
    written = parts_written(monkeypatch)
    split = open_split(asked, tmp_path / "index")
    assert written == []
    assert seen(split) == seen(open_split(asked))
    groups = [split.frame(shard, ["group"])["group"] for shard in split.shards]
    assert pd.concat(groups).tolist() == frame["group"].tolist()
    kept = pq.read_table(paths[-1])
    assert kept["id"].to_pylist() == frame["id"][:20].tolist()
    assert {"id", "y", "group", DIGEST} <= set(kept.column_names)


def test_a_row_group_is_decoded_once_by_who_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(4000)
    split = open_split(described(parquet(tmp_path / "data", frame, group=4000), shard_rows=100), tmp_path / "index")
    begun: list[int] = []
    stream = index.ParquetTable._open

    def counted(self: Any, path: str, *args: Any) -> Any:
        begun.append(1) if "/data/" in path else None
        return stream(self, path, *args)

    monkeypatch.setattr(index.ParquetTable, "_open", counted)
    for shard in split.shards[:20]:
        read = np.array([reader() for reader in split.input_readers(shard)])
        np.testing.assert_array_equal(read[:, 0], frame["a"][shard.start : shard.stop])
    for shard in split.shards[20:30]:
        next(split.input_readers(shard))  # and one that stops in the middle leaves nothing wrong
    travelled: Split = pickle.loads(pickle.dumps(split))
    for shard in travelled.shards[30:]:
        assert len(travelled.features(shard)[0]) == 100
    assert len(begun) == 1


def test_any_order_of_shards_gives_the_same_rows(tmp_path: Path) -> None:
    frame = table(500)
    split = open_split(described(parquet(tmp_path / "data", frame, files=3, group=37), shard_rows=11))
    rng = np.random.default_rng(3)
    for number in rng.integers(0, len(split.shards), 60).tolist():
        shard = split.shards[number]
        rows = slice(shard.start, shard.stop)
        readers = split.input_readers(shard)
        taken = [next(readers)() for _ in range(int(rng.integers(1, shard.rows + 1)))]
        np.testing.assert_array_equal(np.array(taken)[:, 0], frame["a"][rows][: len(taken)])
        assert split.frame(shard, ["b", "y"])["b"].tolist() == frame["b"][rows].tolist()
        assert split.targets(shard).tolist() == frame["y"][rows].tolist()


def test_a_split_travels_as_an_address(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "data", table(900), files=2)
    split = open_split(described(folder, shard_rows=1), tmp_path / "index")
    sent = pickle.dumps(split)
    assert len(sent) < 2000
    shutil.rmtree(tmp_path / "index")  # a worker that does not see the folder makes the index again
    assert pickle.loads(sent).shards == split.shards
    parquet(folder, table(900, seed=1), files=2)
    shutil.rmtree(tmp_path / "index")
    from congruence.tasks.data import split as split_module

    split_module._here.clear()
    with pytest.raises(SplitError, match="has changed since it was opened; open it again"):
        _ = pickle.loads(sent).shards


def test_threads_read_the_same_row_group_at_once(tmp_path: Path) -> None:
    frame = table(3000)
    split = open_split(described(parquet(tmp_path / "data", frame, group=3000), shard_rows=50))
    with ThreadPoolExecutor(4) as threads:
        read = list(threads.map(lambda shard: split.features(shard)[0][:, 0], split.shards))
    np.testing.assert_array_equal(np.concatenate(read), frame["a"])


def test_relative_paths_mean_the_same_to_a_worker_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(ROWS)
    parquet(tmp_path / "data", frame)
    monkeypatch.chdir(tmp_path)
    split = open_split(described(Path("data")), "index")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    travelled: Split = pickle.loads(pickle.dumps(split))
    assert seen(travelled)["keys"] == frame["id"].tolist()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kept", ["layouts", "parts", "splits"])
def test_a_damaged_index_is_made_again(kept: str, tmp_path: Path) -> None:
    asked = described(parquet(tmp_path / "data", table(ROWS), files=2))
    expected = seen(open_split(asked, tmp_path / "index"))
    rng = np.random.default_rng(5)
    for trial in range(12):
        for path in (tmp_path / "index" / kept).iterdir():
            content = bytearray(path.read_bytes())
            at = int(rng.integers(0, len(content)))
            content[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(bytes(content[:at] if trial % 3 == 0 else content))
        assert seen(open_split(asked, tmp_path / "index")) == expected
        assert seen(open_split(asked, tmp_path / "index")) == expected


def test_an_index_that_is_damaged_while_in_use_is_replaced_by_the_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = table(ROWS)
    split = open_split(described(parquet(tmp_path / "data", frame)), tmp_path / "index")
    (part,) = (tmp_path / "index" / "parts").glob("*.parquet")
    content = bytearray(part.read_bytes())
    for at in range(20, len(content) // 2, 7):
        content[at] ^= 0x55
    part.write_bytes(content)
    for shard in split.shards:
        assert split.targets(shard).tolist() == frame["y"][shard.start : shard.stop].tolist()
    assert caplog.text.count("is damaged, its source is read instead") == 1
    assert not part.exists()


def test_a_source_that_is_gone_while_in_use_is_named(tmp_path: Path) -> None:
    split = open_split(described(parquet(tmp_path / "data", table(ROWS))), tmp_path / "index")
    for path in (tmp_path / "data").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(SplitError, match="is gone since the split was opened; put it back"):
        list(split.input_readers(split.shards[0]))


MAKE = """
import sys
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
print(open_split(SplitSettings.model_validate_json(sys.argv[1]), sys.argv[2]).digest)
"""


def _process(asked: SplitSettings, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKE, asked.model_dump_json(), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_may_index_at_once_and_a_killed_one_leaves_nothing_wrong(tmp_path: Path) -> None:
    asked = described(parquet(tmp_path / "data", table(15_000), files=15, group=1000))
    killed = _process(asked, tmp_path / "index")
    parts, deadline = tmp_path / "index" / "parts", time.monotonic() + 60
    while not (parts.exists() and any(parts.glob("*.parquet"))) and time.monotonic() < deadline:
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "index" / "splits").exists()
    other = _process(asked, tmp_path / "index")
    split = open_split(asked, tmp_path / "index")
    assert other.communicate(timeout=60)[0].strip() == split.digest == open_split(asked).digest
    left = list(parts.glob(".*"))
    assert len(left) <= 1  # what the killed one was writing, under a name that nobody reads
    assert len(list(parts.glob("*.parquet"))) == 15


def test_a_slice_column_of_lists_is_refused_before_any_work(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["r", "s"], "a": [1.0, 2.0], "b": 0.0, "y": [0.5, 1.5], "group": [[1], [2]]})
    with pytest.raises(SplitError, match=r"column 'group' \(slices\) holds list.*by which rows cannot be grouped"):
        open_split(described(parquet(tmp_path / "data", frame)))


def test_the_types_of_text_files_are_those_of_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "0.csv").write_text("id,a,b,y,group\n0,1,1,1,7\n1,2,,2,08\n")
    (folder / "1.csv").write_text("id,a,b,y,group\nx,1.5,2,3,\n")
    split = open_split(described(folder), tmp_path / "index")
    assert split.keys_of(split.shards).tolist() == ["0", "1", "x"]
    assert split.frame(split.shards[0], ["group"])["group"].tolist()[:2] == ["7", "08"]
    (folder / "2.csv").write_text("id,a,b,y,group\nz,text,2,3,\n")
    with pytest.raises(SplitError, match=r"column 'a' \(input\) holds string, not numbers"):
        open_split(described(folder), tmp_path / "index")
    (folder / "2.csv").write_text("id,a,b,y,group\nz,9,2,4,g\n")
    assert open_split(described(folder), tmp_path / "index").digest == open_split(described(folder)).digest


def test_an_unchanged_file_with_other_times_is_another_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = parquet(tmp_path / "data", table(ROWS))
    first = open_split(described(folder), tmp_path / "index")
    written = parts_written(monkeypatch)
    os.utime(folder / "000.parquet", (1, 1))
    assert open_split(described(folder), tmp_path / "index").digest == first.digest
    assert len(written) == 1
