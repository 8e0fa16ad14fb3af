"""Whatever holds a split, the same rows give the same inputs, targets, frames and digests; a source is one function."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr
from encoder_inputs import encoder_inputs, of_features
from source_forms import FORMS, ROWS, described, forms, table

from congruence.tasks.data import sources
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SourceFile, source
from congruence.tasks.data.sources.tables import _streamed
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import first_rows
from congruence.tasks.runtime.errors import SplitChangedError, SplitError


@pytest.mark.parametrize("form", forms("rows"))
def test_every_source_gives_the_rows_that_were_written(form: str, tmp_path: Path) -> None:
    frame = table()
    split: Split = pickle.loads(pickle.dumps(open_split(described(tmp_path / "data", form), tmp_path / "index")))
    assert split.rows == ROWS
    assert [shard.rows for shard in split.shards] == [30, 30, 10]
    assert split.keys().tolist() == frame["id"].tolist()
    np.testing.assert_array_equal(split.targets(), frame["y"])
    read = [split.features(shard, missing=True)[0] for shard in split.shards]
    np.testing.assert_array_equal(np.concatenate(read), frame[["a", "b"]].to_numpy())
    assert split.features(split.shards[0])[1] == {3: "feature 'a' is nan", 7: "target 'y' is nan, not a finite number"}
    middle = split.frame(split.shards[1])
    assert middle["group"].tolist() == frame["group"][30:60].tolist()
    b = split.settings.input_columns[1]
    assert (middle[b].dtype.kind, middle[b].tolist()) == ("i", frame["b"][30:60].tolist())
    assert middle.index.tolist() == list(range(30, 60))
    if form == "hive":
        assert middle["year"].tolist() == [2021] * 30
    assert first_rows(split.settings.uri, 5).num_rows == 5


def test_the_digests_are_those_of_the_content(tmp_path: Path) -> None:
    splits = {form: open_split(described(tmp_path / form, form)) for form in forms("rows")}
    assert len({tuple(shard.digest for shard in split.shards) for split in splits.values()}) == 1
    named_alike = {split.digest for form, split in splits.items() if form not in ("tar", "hive")}
    assert len(named_alike) == 1
    assert splits["tar"].digest not in named_alike


@pytest.mark.parametrize("form", forms("rows"))
def test_a_second_look_opens_no_file_of_the_source(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = described(tmp_path / "data", form)
    made = open_split(asked, tmp_path / "index")
    closed = {name: replace(each, read=None) for name, each in sources.all_sources().items()}
    monkeypatch.setattr(sources, "_SOURCES", closed)
    found: Split = pickle.loads(pickle.dumps(open_split(asked, tmp_path / "index")))
    assert (found.digest, found.shards) == (made.digest, made.shards)
    np.testing.assert_array_equal(found.targets(), made.targets())
    assert found.keys(*found.shards[:1]).tolist() == made.keys(made.shards[0]).tolist()
    assert len(list(found.input_readers(found.shards[0]))) == 30


def _replace(folder: Path, other: Path) -> None:
    """Another content under the same names and with the times of the first, renamed over them."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        before, renamed = path.stat(), other / path.relative_to(folder)
        os.utime(renamed, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(renamed, path)


@pytest.mark.parametrize("form", forms("files"))
def test_a_source_that_is_replaced_ends_the_run(form: str, tmp_path: Path) -> None:
    asked = described(tmp_path / "data", form)
    split = open_split(asked, tmp_path / "index")
    described(tmp_path / "other", form, table(seed=1))
    _replace(tmp_path / "data", tmp_path / "other")
    elsewhere: Split = pickle.loads(pickle.dumps(split))
    for reader in (split, elsewhere):
        with pytest.raises(SplitChangedError, match="was replaced or written to since the split was opened"):
            reader.features(reader.shards[1])
        with pytest.raises(SplitChangedError):
            list(reader.input_readers(reader.shards[1]))
        with pytest.raises(SplitChangedError):
            reader.frame(reader.shards[1])
    # What does not come from there again is of the first content, and stays readable.
    np.testing.assert_array_equal(elsewhere.targets(elsewhere.shards[0]), table()["y"][:30])
    assert open_split(asked, tmp_path / "index").digest != split.digest
    described(tmp_path / "first", form)
    _replace(tmp_path / "data", tmp_path / "first")
    assert open_split(asked, tmp_path / "index").digest == split.digest


def test_an_object_that_is_replaced_or_gone_is_noticed(tmp_path: Path) -> None:
    asked = described(tmp_path / "memory", "memory")
    split, files = open_split(asked, tmp_path / "index"), fsspec.filesystem("memory")
    split.features(split.shards[0])
    (path,) = files.find(asked.uri.removeprefix("memory:/"))
    files.pipe_file(path, files.cat_file(path))
    with pytest.raises(SplitChangedError, match=r"rows\.csv"):
        split.features(split.shards[0])
    files.rm_file(path)
    with pytest.raises(SplitChangedError, match="is gone since the split was opened; put it back"):
        split.features(split.shards[0])


def test_a_new_source_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SOURCES", sources.all_sources())

    @source("pickled", suffixes=(".pickled",))
    def read_pickled(file: SourceFile) -> Iterator[pa.RecordBatch]:
        with file.open() as stream:
            while rows := stream.read(1) and pickle.load(stream):
                yield pa.RecordBatch.from_pylist(rows)

    def write(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
        rows = [pa.Table.from_pandas(frame[at : at + 20], preserve_index=False).to_pylist() for at in (0, 20, 40, 60)]
        (folder / "rows.pickled").write_bytes(b"".join(b"+" + pickle.dumps(each) for each in rows))
        return {}

    monkeypatch.setitem(FORMS, "pickled", ("rows", write))
    split = open_split(described(tmp_path / "new", "pickled"))
    assert split.digest == open_split(described(tmp_path / "known", "parquet")).digest
    with pytest.raises(SplitError, match=r"format: 'pickles' is none of auto, arrow, csv, .*pickled"):
        open_split(split.settings.model_copy(update={"format": "pickles"}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ragged.csv", "key,image,angle\na,b,1\nc,d\n", r"row 1: has 2 fields, but the header names 3; .*'c'"),
        ("twice.csv", "key,image,image,angle\n", r"names the column 'image' twice"),
        ("empty.csv", "", r"is empty; the first line names each column once"),
        ("latin.csv", "key,image,angle\n\xe4,b,1\n", r"row 0: is not UTF-8"),
        ("quote.csv", 'key,image,angle\n"a,b,1\n', r"row 0: is not CSV .*quote the field"),
        ("broken.jsonl", '{"key": 1}\n{"key": \n', r"row 1: is not JSON"),
        ("list.jsonl", "[1, 2]\n", r"row 0: holds a JSON list, expected an object"),
        ("cut.parquet", "PAR1 but no more", r"not readable as Parquet"),
        ("cut.arrow", "ARROW1 but no more", r"not readable as an Arrow file"),
        ("cut.tar", "x" * 1000, r"not readable as tar"),
        ("cut.npz", "PK nothing", r"not readable as \.npz"),
        ("table.xlsx", "", r"the format does not show in the name; set format"),
    ],
)
def test_a_damaged_container_is_named_with_its_place(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(SplitError, match=message):
        open_split(SplitSettings(uri=str(tmp_path / name), input="image", target="angle"))


def test_a_missing_split_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"no such file or folder; check the path"):
        open_split(SplitSettings(uri=str(tmp_path / "nowhere"), input="image", target="angle"))


def test_a_server_that_does_not_answer_is_named() -> None:
    """It ended with the traceback of a library."""
    with pytest.raises(SplitError, match=r"^http://127.0.0.1:9/rows.csv: is not reached \(.*Cannot connect"):
        first_rows("http://127.0.0.1:9/rows.csv", 1)


def test_pickled_objects_in_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(SplitError, match="holds Python objects, which are never unpickled"):
        open_split(of_features(tmp_path / "objects.npz", "x"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_beside_those_of_the_split_may_be_anything(tmp_path: Path, save: Callable[..., None]) -> None:
    """A frame's numbers lie by columns; training rows, names as objects and a date are no part of the split."""
    x = np.random.default_rng(0).normal(size=(3000, 4))
    others = {"x_train": np.zeros((7, 4)), "names": np.array(["a", None], dtype=object), "made": np.float64(2026)}
    save(tmp_path / "split.npz", **others, x=np.asfortranarray(x), y=x[:, 0])
    settings = of_features(tmp_path / "split.npz", "x")
    split = open_split(settings)
    np.testing.assert_array_equal(np.concatenate([split.features(shard)[0] for shard in split.shards]), x)
    with pytest.raises(SplitError, match=r"no column 'X' \(input\); .*the columns are: x_train, x, y$"):
        open_split(settings.model_copy(update={"input": "X"}))
    with pytest.raises(SplitError, match="the arrays differ in rows"):
        open_split(settings.model_copy(update={"input": "x_train"}))


@pytest.mark.parametrize("shape", [(3000, 4), (2500, 3, 2)])
def test_a_file_that_lies_by_columns_is_read_by_blocks(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame's matrix of ten million rows was read into memory as a whole."""
    monkeypatch.setattr("congruence.tasks.data.sources.tables._HELD_BYTES", 2**14)
    given = np.asfortranarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    np.save(tmp_path / "x.npy", given)
    with (tmp_path / "x.npy").open("rb") as stream:
        blocks = list(_streamed(stream, "x.npy", seeks=True).blocks(200))
        np.testing.assert_array_equal(np.concatenate(blocks), given)
        held = [block.base for block in blocks]
        assert max(len(block) for block in blocks) == 200 < len(given)
        assert max(each.nbytes for each in held if each is not None) <= 2**14
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-40])
    with (tmp_path / "x.npy").open("rb") as stream, pytest.raises(SplitError, match="the file is cut off"):
        list(_streamed(stream, "x.npy", seeks=True).blocks(200))


def test_damaged_bytes_of_an_array_are_named(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3000, 4))
    np.savez_compressed(tmp_path / "split.npz", x=x, y=x[:, 0])
    content = bytearray((tmp_path / "split.npz").read_bytes())
    content[40_000] ^= 0xFF
    (tmp_path / "split.npz").write_bytes(content)
    with pytest.raises(SplitError, match=r"split\.npz, member 'x\.npy': is damaged"):
        open_split(of_features(tmp_path / "split.npz", "x"))


@pytest.mark.parametrize("form", ["npz", "npy", "zarr", "parquet", "jsonl", "arrow"])
def test_vectors_come_from_arrays_and_columns_alike(form: str, tmp_path: Path) -> None:
    x, y = np.random.default_rng(5).normal(size=(ROWS, 4)), np.arange(float(ROWS))
    uri = tmp_path / f"rows.{form}"
    vectors = pa.table({"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 4), "y": y})
    match form:
        case "npz":
            np.savez(uri, x=x, y=y)
        case "npy":
            uri = tmp_path
            np.save(tmp_path / "x.npy", x)
            np.save(tmp_path / "y.npy", y)
        case "zarr":
            group = zarr.open_group(uri, mode="w")
            group.create_array("x", data=x.astype(">f8"), chunks=(17, 4))
            group.create_array("y", data=y)
        case "jsonl":
            pd.DataFrame({"x": x.tolist(), "y": y}).to_json(uri, orient="records", lines=True, double_precision=15)
        case "arrow":
            pyarrow.feather.write_feather(vectors, str(uri))
        case _:
            pq.write_table(vectors, uri)
    asked = of_features(uri, "x", shard_rows=31)
    split = open_split(asked)
    read = [value for shard in split.shards for value in encoder_inputs(split, shard)]
    np.testing.assert_allclose(np.stack(read), x, rtol=0.0, atol=1e-14)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.stack(split.frame(split.shards[2])["x"]), x[62:], rtol=0.0, atol=1e-14)
    assert split.frame(split.shards[1])["row"].tolist() == [str(row) for row in range(31, 62)]
    if form != "jsonl":
        pq.write_table(pa.table({f"x{i}": x[:, i] for i in range(4)} | {"y": y}), tmp_path / "columns.parquet")
        columns = asked.model_copy(update={"uri": str(tmp_path / "columns.parquet"), "input": ["x0", "x1", "x2", "x3"]})
        assert [shard.digest for shard in open_split(columns).shards] == [shard.digest for shard in split.shards]


LEFT_EARLY = """
import io, sys, time
from congruence.tasks.data.sources import SourceFile, text
from congruence.tasks.data.usable import first_rows

class Slow(io.FileIO):
    def read(self, size=-1):
        time.sleep(0.1)
        return super().read(size)

text._BLOCK = 4096
SourceFile.open = lambda self, **options: Slow(self.path)
print(first_rows(sys.argv[1], 5).num_rows)
"""


def test_a_table_of_which_the_first_rows_are_read_lets_the_process_end(tmp_path: Path) -> None:
    """Arrow reads ahead on a thread of its own, which ended the process by SIGABRT."""
    pd.DataFrame({"x": np.arange(20_000), "y": 0.5}).to_csv(tmp_path / "rows.csv", index=False)
    command = [sys.executable, "-c", LEFT_EARLY, str(tmp_path / "rows.csv")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
