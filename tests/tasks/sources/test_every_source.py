"""Whatever holds a split, the same rows give the same inputs, targets, frames and digests; a source is one function."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import tarfile
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
from encoder_inputs import encoder_inputs

from congruence.tasks.data import sources
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SourceFile, first_rows, source
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.runtime.errors import SplitChangedError, SplitError

ROWS = 70
Write = Callable[[Path, pd.DataFrame], dict[str, Any]]


def table(seed: int = 0) -> pd.DataFrame:
    """Keys, a number that two rows lack, whole numbers, targets of which one is missing, and groups."""
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=ROWS).round(6), rng.normal(size=ROWS).round(6)
    a[[3, 40]], y[7] = np.nan, np.nan
    keys = [f"row {row:03d}" for row in range(ROWS)]
    return pd.DataFrame(
        {"id": keys, "a": a, "b": rng.integers(-5, 5, ROWS), "y": y, "group": [f"g{row % 3}" for row in range(ROWS)]}
    )


def _parquet(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    """Two files: of other widths, another order of columns, dictionaries, and an index of pandas."""
    first = pa.Table.from_pandas(frame[:40].set_index("id"))
    pq.write_table(first.set_column(1, "b", first["b"].cast(pa.int16())), folder / "0.parquet", row_group_size=7)
    second = pa.Table.from_pandas(frame[40:].astype({"group": "category"}), preserve_index=False)
    second = second.set_column(0, "id", second["id"].cast(pa.large_string()))
    pq.write_table(second.select(["y", "group", "b", "a", "id"]), folder / "1.parquet")
    return {}


def _hive(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    for number, (start, stop) in enumerate(((0, 30), (30, 70))):
        part = folder / f"year={2020 + number}" / "part.parquet"
        part.parent.mkdir()
        frame[start:stop].to_parquet(part, index=False)
    return {"slices": ["group", "year"]}


def _arrow(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    feather = pa.Table.from_pandas(frame[:30], preserve_index=False)
    pyarrow.feather.write_feather(feather, str(folder / "0.feather"), compression="lz4", chunksize=11)
    stream = pa.Table.from_pandas(frame[30:], preserve_index=False)
    with pa.OSFile(str(folder / "1.arrow"), "wb") as sink, pa.ipc.new_stream(sink, stream.schema) as writer:
        writer.write_table(stream, max_chunksize=9)
    return {}


def _csv(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    frame[:40].to_csv(folder / "0.csv", index=False)
    frame[40:][["y", "id", "b", "a", "group"]].to_csv(
        folder / "1.csv", index=False, encoding="utf-8-sig", lineterminator="\r\n", na_rep="NA"
    )
    return {}


def _csv_of_a_spreadsheet(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    with gzip.open(folder / "rows.csv.gz", "wt") as stream:
        frame.to_csv(stream, index=False, sep=";", decimal=",", na_rep="#N/A", quoting=csv.QUOTE_NONNUMERIC)
    return {}


def _tsv(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    frame.to_csv(folder / "rows.tsv", index=False, sep="\t")
    return {}


def _jsonl(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    frame.to_json(folder / "rows.jsonl", orient="records", lines=True, double_precision=15)
    return {"uri": str(folder / "rows.jsonl")}


def _huggingface(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_pandas(frame, preserve_index=False).save_to_disk(str(folder / "saved"), num_shards=3)
    return {"uri": str(folder / "saved")}


def _tar(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    with tarfile.open(folder / "0.tar", "w") as archive:
        for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
            fields = {name: row[name] for name in ("a", "y", "group")}
            add(archive, f"{row['id']}.json", json.dumps(fields).encode())
            add(archive, f"._{row['id']}.json", b"what macOS adds")
            add(archive, f"{row['id']}.cls", str(row["b"]).encode())
    return {"key": "__key__", "input": ["a", "cls"]}


def _arrays(frame: pd.DataFrame, text: Any = "U") -> dict[str, np.ndarray]:
    columns = {name: frame[name].to_numpy() for name in ("a", "b", "y")}
    return columns | {name: np.array(frame[name].tolist(), dtype=text) for name in ("id", "group")}


def _npz(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    np.savez(folder / "rows.npz", **_arrays(frame))  # type: ignore[arg-type]
    return {}


def _compressed_npz(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    np.savez_compressed(folder / "rows.npz", **_arrays(frame))  # type: ignore[arg-type]
    return {}


def _npy(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    for name, array in _arrays(frame).items():
        np.save(folder / f"{name}.npy", array)
    return {}


def _zarr(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    group = zarr.open_group(folder / "rows.zarr", mode="w")
    for name, array in _arrays(frame, np.dtypes.StringDType()).items():
        group.create_array(name, shape=array.shape, chunks=(17,), dtype=array.dtype)[:] = array
    return {"uri": str(folder / "rows.zarr")}


def _memory(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    """Another file system."""
    files, at = fsspec.filesystem("memory"), f"/{folder.parent.name}-{folder.name}"
    files.pipe_file(f"{at}/rows.csv", frame.to_csv(index=False).encode())
    return {"uri": f"memory:/{at}"}


FORMS: dict[str, Write] = {
    "parquet": _parquet,
    "hive": _hive,
    "arrow": _arrow,
    "csv": _csv,
    "csv of a spreadsheet": _csv_of_a_spreadsheet,
    "tsv": _tsv,
    "jsonl": _jsonl,
    "huggingface": _huggingface,
    "tar": _tar,
    "npz": _npz,
    "compressed npz": _compressed_npz,
    "npy": _npy,
    "zarr": _zarr,
    "memory": _memory,
}


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def described(folder: Path, form: str, frame: pd.DataFrame | None = None) -> SplitSettings:
    folder.mkdir(exist_ok=True, parents=True)
    base = {"uri": str(folder), "input": ["a", "b"], "input_kind": "features", "target": "y", "key": "id"}
    changes = FORMS[form](folder, table() if frame is None else frame)
    return SplitSettings.model_validate(base | {"slices": ["group"], "shard_rows": 30} | changes)


@pytest.mark.parametrize("form", FORMS)
def test_every_source_gives_the_rows_that_were_written(form: str, tmp_path: Path) -> None:
    frame = table()
    split: Split = pickle.loads(pickle.dumps(open_split(described(tmp_path / "data", form), tmp_path / "index")))
    assert split.rows == ROWS
    assert [shard.rows for shard in split.shards] == [30, 30, 10]
    assert split.keys_of(split.shards).tolist() == frame["id"].tolist()
    np.testing.assert_array_equal(split.targets_of(split.shards), frame["y"])
    read = [split.features(shard, missing=True)[0] for shard in split.shards]
    np.testing.assert_array_equal(np.concatenate(read), frame[["a", "b"]].to_numpy())
    assert split.features(split.shards[0])[1] == {
        3: "feature 'a' is nan",
        7: "target 'y' is nan, not a finite number",
    }
    middle = split.frame(split.shards[1])
    assert middle["group"].tolist() == frame["group"][30:60].tolist()
    b = split.settings.input_columns[1]
    assert (middle[b].dtype.kind, middle[b].tolist()) == ("i", frame["b"][30:60].tolist())
    assert middle.index.tolist() == list(range(30, 60))
    if form == "hive":
        assert middle["year"].tolist() == [2021] * 30
    assert first_rows(split.settings.uri, 5).num_rows == 5


def test_the_digests_are_those_of_the_content(tmp_path: Path) -> None:
    splits = {form: open_split(described(tmp_path / form, form)) for form in FORMS}
    assert len({tuple(shard.digest for shard in split.shards) for split in splits.values()}) == 1
    named_alike = {split.digest for form, split in splits.items() if form not in ("tar", "hive")}
    assert len(named_alike) == 1
    assert splits["tar"].digest not in named_alike


@pytest.mark.parametrize("form", FORMS)
def test_a_second_look_opens_no_file_of_the_source(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = described(tmp_path / "data", form)
    made = open_split(asked, tmp_path / "index")
    closed = {name: replace(each, read=None, rows_from=None) for name, each in sources.all_sources().items()}
    monkeypatch.setattr(sources, "_SOURCES", closed)
    found: Split = pickle.loads(pickle.dumps(open_split(asked, tmp_path / "index")))
    assert (found.digest, found.shards) == (made.digest, made.shards)
    np.testing.assert_array_equal(found.targets_of(found.shards), made.targets_of(made.shards))
    assert found.keys_of(found.shards[:1]).tolist() == made.keys(made.shards[0])
    assert len(list(found.input_readers(found.shards[0]))) == 30


def _replace(folder: Path, other: Path) -> None:
    """Another content under the same names and with the times of the first, renamed over them."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        before, renamed = path.stat(), other / path.relative_to(folder)
        os.utime(renamed, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(renamed, path)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "memory"])
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

    monkeypatch.setitem(FORMS, "pickled", write)
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
    with pytest.raises(SplitError, match=r"no such file or folder; check the split's uri"):
        open_split(SplitSettings(uri=str(tmp_path / "nowhere"), input="image", target="angle"))


def test_pickled_objects_in_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(SplitError, match="holds Python objects, which are never unpickled"):
        open_split(SplitSettings(uri=str(tmp_path / "objects.npz"), input="x", input_kind="features", target="y"))


def test_damaged_bytes_of_an_array_are_named(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3000, 4))
    np.savez_compressed(tmp_path / "split.npz", x=x, y=x[:, 0])
    content = bytearray((tmp_path / "split.npz").read_bytes())
    content[40_000] ^= 0xFF
    (tmp_path / "split.npz").write_bytes(content)
    with pytest.raises(SplitError, match=r"split\.npz, member 'x\.npy': is damaged"):
        open_split(SplitSettings(uri=str(tmp_path / "split.npz"), input="x", input_kind="features", target="y"))


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
    asked = SplitSettings(uri=str(uri), input="x", input_kind="features", target="y", shard_rows=31)
    split = open_split(asked)
    read = [value for shard in split.shards for value in encoder_inputs(split, shard)]
    np.testing.assert_allclose(np.stack(read), x, rtol=0.0, atol=1e-14)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.stack(split.frame(split.shards[2])["x"]), x[62:], rtol=0.0, atol=1e-14)
    assert split.frame(split.shards[1])["row"].tolist() == [str(row) for row in range(31, 62)]
    if form != "jsonl":
        pq.write_table(pa.table({f"x{i}": x[:, i] for i in range(4)} | {"y": y}), tmp_path / "columns.parquet")
        columns = asked.model_copy(update={"uri": str(tmp_path / "columns.parquet"), "input": ["x0", "x1", "x2", "x3"]})
        assert [shard.digest for shard in open_split(columns).shards] == [shard.digest for shard in split.shards]
