"""Every form in which a split may lie, each with what holds of it: for tests of sources."""

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable
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

from congruence.tasks.data.settings import SplitSettings

ROWS = 70
Write = Callable[[Path, pd.DataFrame], dict[str, Any]]


def table(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Keys, a number that two rows lack, whole numbers, targets of which one is missing, and groups."""
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=rows).round(6), rng.normal(size=rows).round(6)
    a[[3, 40]], y[7] = np.nan, np.nan
    keys = [f"row {row:03d}" for row in range(rows)]
    return pd.DataFrame(
        {"id": keys, "a": a, "b": rng.integers(-5, 5, rows), "y": y, "group": [f"g{row % 3}" for row in range(rows)]}
    )


def pictures(rows: int = ROWS) -> pd.DataFrame:
    """The same with whole targets and pictures; nobody decodes them here."""
    images = [b"picture %d " % row * 500 for row in range(rows)]
    return table(rows).assign(y=np.arange(rows) / 7.0, image=images)


def _parquet(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    """Two files: of other widths, another order of columns, dictionaries, and an index of pandas."""
    first = pa.Table.from_pandas(frame[:40].set_index("id"))
    pq.write_table(first.set_column(1, "b", first["b"].cast(pa.int16())), folder / "0.parquet", row_group_size=7)
    second = pa.Table.from_pandas(frame[40:].astype({"group": "category"}), preserve_index=False)
    second = second.set_column(0, "id", second["id"].cast(pa.large_string()))
    pq.write_table(second.select(second.column_names[::-1]), folder / "1.parquet", row_group_size=10)
    return {}


def _hive(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    for number, (start, stop) in enumerate(((0, 30), (30, 70))):
        part = folder / f"year={2020 + number}" / "part.parquet"
        part.parent.mkdir()
        frame[start:stop].to_parquet(part, index=False)
    return {"slices": ["group", "year"]}


def _bytes_or_paths(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    images: list[dict[str, Any]] = []
    for row, image in enumerate(frame["image"]):
        (folder / f"{row}.jpg").write_bytes(image)
        images.append({"bytes": image if row % 2 else None, "path": None if row % 2 else f"{row}.jpg"})
    return _parquet(folder, frame.assign(image=images))


def _parquet_of_paths(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    return _parquet(folder, _with_files(folder, frame))


def _with_files(folder: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Pictures, where there are some, in files of their own beside the table."""
    if "image" not in frame:
        return frame
    (folder / "images").mkdir()
    paths = [f"images/{row}.jpg" for row in range(len(frame))]
    for path, image in zip(paths, frame["image"], strict=True):
        (folder / path).write_bytes(image)
    return frame.assign(image=paths)


def _arrow(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    feather = pa.Table.from_pandas(frame[:30], preserve_index=False)
    pyarrow.feather.write_feather(feather, str(folder / "0.feather"), compression="lz4", chunksize=11)
    stream = pa.Table.from_pandas(frame[30:], preserve_index=False)
    with pa.OSFile(str(folder / "1.arrow"), "wb") as sink, pa.ipc.new_stream(sink, stream.schema) as writer:
        writer.write_table(stream, max_chunksize=9)
    return {}


def _feather(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    whole = pa.Table.from_pandas(frame, preserve_index=False)
    pyarrow.feather.write_feather(whole, str(folder / "rows.feather"), chunksize=16, compression="uncompressed")
    return {}


def _huggingface(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_pandas(frame.drop(columns="image", errors="ignore"), preserve_index=False)
    if "image" in frame:
        made = made.add_column("image", frame["image"].tolist()).cast_column("image", datasets.Image())
    made.save_to_disk(str(folder / "saved"), num_shards=3)
    return {"uri": str(folder / "saved")}


def _csv(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    rows = _with_files(folder, frame)
    rows[:40].to_csv(folder / "0.csv", index=False)
    rows[40:][rows.columns[::-1]].to_csv(
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
    rows = _with_files(folder, frame)
    rows.to_json(folder / "rows.jsonl", orient="records", lines=True, double_precision=15)
    return {"uri": str(folder / "rows.jsonl")}


def add(archive: tarfile.TarFile, name: str, content: bytes, **changes: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in changes.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content) if member.isreg() else None)


def _tar(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    for start in range(0, len(rows), 25):
        with tarfile.open(folder / f"{start:05d}.tar", "w") as archive:
            for row in rows[start : start + 25]:
                fields = {name: row[name] for name in ("a", "y", "group")}
                add(archive, f"._{row['id']}.json", b"what macOS adds")
                add(archive, f"{row['id']}.json", json.dumps(fields).encode())
                add(archive, f"{row['id']}.cls", str(row["b"]).encode())
                if "image" in row:
                    add(archive, f"{row['id']}.jpg", row["image"])
    return {"key": "__key__", "input": "jpeg;jpg" if "image" in frame else ["a", "cls"]}


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


FORMS: dict[str, tuple[str, Write]] = {
    "parquet": ("rows files pictures within", _parquet),
    "hive": ("rows files", _hive),
    "arrow": ("rows files pictures within", _arrow),
    "feather": ("rows files pictures within", _feather),
    "csv": ("rows files pictures", _csv),
    "csv of a spreadsheet": ("rows files", _csv_of_a_spreadsheet),
    "tsv": ("rows files", _tsv),
    "jsonl": ("rows files pictures", _jsonl),
    "huggingface": ("rows files pictures", _huggingface),
    "tar": ("rows files pictures within", _tar),
    "npz": ("rows files", _npz),
    "compressed npz": ("rows files", _compressed_npz),
    "npy": ("rows files", _npy),
    "zarr": ("rows files", _zarr),
    "memory": ("rows", _memory),
    "bytes or paths": ("pictures", _bytes_or_paths),
    "parquet of paths": ("pictures", _parquet_of_paths),
}
"""By name what holds of a form, and what writes it.

rows: it holds tables of numbers and texts. files: on this machine's disk. pictures: it holds these, too. within: in the
very files that are read.
"""


def forms(what: str) -> list[str]:
    """The forms of which something holds."""
    return [name for name, (said, _) in FORMS.items() if what in said.split()]


def described(folder: Path, form: str, frame: pd.DataFrame | None = None, **changes: Any) -> SplitSettings:
    """The settings of rows that are written here; of pictures, where the frame has some."""
    folder.mkdir(exist_ok=True, parents=True)
    rows = table() if frame is None else frame
    given = {"input": "image"} if "image" in rows else {"input": ["a", "b"], "input_kind": "features"}
    base = {"uri": str(folder), "target": "y", "key": "id", "slices": ["group"], "shard_rows": 30}
    return SplitSettings.model_validate(base | given | FORMS[form][1](folder, rows) | changes)
