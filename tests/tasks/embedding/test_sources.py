"""Whatever holds a split, the same rows give the same inputs, targets, frames and digests."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.errors import InvalidRow

ROWS = 70
Write = Callable[[Path, pd.DataFrame], dict[str, Any]]


def _parquet(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    for number, start in enumerate(range(0, len(frame), 33)):
        table = pa.Table.from_pandas(frame[start : start + 33], preserve_index=False)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=10)
    return {}


def _with_files(folder: Path, frame: pd.DataFrame) -> pd.DataFrame:
    (folder / "images").mkdir()
    paths = [f"images/{key}.jpg" for key in frame["key"]]
    for path, image in zip(paths, frame["image"], strict=True):
        (folder / path).write_bytes(image)
    return frame.assign(image=paths)


def _parquet_of_paths(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    return _parquet(folder, _with_files(folder, frame))


def _csv(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    named = _with_files(folder, frame)
    named[:40].to_csv(folder / "0.csv", index=False)
    named[40:].to_csv(folder / "1.csv", index=False, encoding="utf-8-sig", lineterminator="\r\n")
    return {}


def _jsonl(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    _with_files(folder, frame).to_json(folder / "manifest.jsonl", orient="records", lines=True, double_precision=15)
    return {"uri": str(folder / "manifest.jsonl")}


def _tar(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    for number, start in enumerate(range(0, len(frame), 25)):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as archive:
            for row in frame[start : start + 25].itertuples():
                label = json.dumps({"angle": row.angle, "digit": row.digit}).encode()
                for extension, content in (("jpg", row.image), ("json", label)):
                    member = tarfile.TarInfo(f"{row.key}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return {"input": "jpeg;jpg", "key": "__key__"}


def _huggingface(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        key=datasets.Value("string"),
        image=datasets.Image(),
        angle=datasets.Value("float64"),
        digit=datasets.Value("int64"),
    )
    columns = {name: frame[name].tolist() for name in ("key", "angle", "digit")}
    columns["image"] = [{"bytes": image, "path": None} for image in frame["image"]]
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "saved"), num_shards=3)
    return {"uri": str(folder / "saved")}


FORMATS: dict[str, Write] = {
    "parquet": _parquet,
    "parquet of paths": _parquet_of_paths,
    "csv": _csv,
    "jsonl": _jsonl,
    "tar": _tar,
    "huggingface": _huggingface,
}


def _open(folder: Path, frame: pd.DataFrame, write: Write, **changes: Any) -> Split:
    folder.mkdir(exist_ok=True)
    base = {
        "uri": str(folder),
        "key": "key",
        "input": "image",
        "target": "angle",
        "slices": ["digit"],
        "shard_rows": 30,
    }
    return open_split(SplitSettings.model_validate(base | write(folder, frame) | changes))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_rows_that_were_written(form: str, tmp_path: Path, rows: Any) -> None:
    frame = rows(ROWS)
    split = pickle.loads(pickle.dumps(_open(tmp_path / "data", frame, FORMATS[form])))
    assert split.rows == ROWS
    assert [shard.rows for shard in split.shards] == [30, 30, 10]
    read = [value for shard in split.shards for value in split.read_encoder_inputs(shard)]
    assert read == frame["image"].tolist()
    np.testing.assert_allclose(np.concatenate([split.targets(s) for s in split.shards]), frame["angle"], atol=1e-12)
    assert [key for shard in split.shards for key in split.keys(shard)] == frame["key"].tolist()
    middle = split.frame(split.shards[1])
    assert middle["digit"].tolist() == frame["digit"][30:60].tolist()
    assert middle[split.settings.input].tolist() == frame["image"][30:60].tolist()
    assert middle.index.tolist() == list(range(30, 60))


def test_the_shards_have_the_same_digests_in_every_format(tmp_path: Path, rows: Any) -> None:
    digests = {}
    for number, (form, write) in enumerate(FORMATS.items()):
        split = _open(tmp_path / str(number), rows(ROWS), write)
        digests[form] = tuple(shard.digest for shard in split.shards)
    assert len(set(digests.values())) == 1


def test_the_place_of_a_row_is_where_a_person_finds_it(tmp_path: Path, rows: Any) -> None:
    names = {form: tmp_path / str(number) for number, form in enumerate(FORMATS)}
    places = {form: _open(folder, rows(ROWS), FORMATS[form]).place(45) for form, folder in names.items()}
    assert places["parquet"].endswith("1.parquet, row 12")
    assert places["csv"].endswith("1.csv, line 7")
    assert places["jsonl"].endswith("manifest.jsonl, line 46")
    assert places["tar"].endswith("00001.tar, sample 'image-45'")


def _features(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 4)), rng.normal(size=rows), np.array([f"group {row % 2}" for row in range(rows)])


def _npz(folder: Path, save: Callable[..., None]) -> str:
    x, y, group = _features(ROWS)
    save(folder / "arrays.npz", x=x, y=y, group=group)
    return str(folder / "arrays.npz")


def _npy(folder: Path) -> str:
    for name, array in zip(("x", "y", "group"), _features(ROWS), strict=True):
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def _zarr(folder: Path) -> str:
    group = zarr.open_group(folder / "split.zarr", mode="w")
    for name, array in zip(("x", "y"), _features(ROWS)[:2], strict=True):
        group.create_array(name, shape=array.shape, chunks=(17, *array.shape[1:]), dtype=array.dtype)[:] = array
    group.create_array("group", data=np.arange(ROWS) % 2)
    return str(folder / "split.zarr")


def _feature_parquet(folder: Path) -> str:
    x, y, group = _features(ROWS)
    pq.write_table(pa.table({"x": list(x), "y": y, "group": group}), folder / "features.parquet")
    return str(folder / "features.parquet")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: _npz(folder, np.savez),
        lambda folder: _npz(folder, np.savez_compressed),
        _npy,
        _zarr,
        _feature_parquet,
    ],
    ids=["npz", "compressed npz", "npy", "zarr", "parquet"],
)
def test_feature_vectors_come_from_arrays_and_columns_alike(write: Callable[[Path], str], tmp_path: Path) -> None:
    x, y, _ = _features(ROWS)
    settings = SplitSettings(
        uri=write(tmp_path), input="x", input_kind="features", target="y", slices=["group"], shard_rows=31
    )
    split = open_split(settings)
    read = [value for shard in split.shards for value in split.read_encoder_inputs(shard)]
    np.testing.assert_array_equal(np.stack(read), x)
    np.testing.assert_array_equal(np.concatenate([split.targets(shard) for shard in split.shards]), y)
    assert split.frame(split.shards[1])["row"].tolist() == [str(row) for row in range(31, 62)]
    np.testing.assert_array_equal(np.stack(split.frame(split.shards[2])["x"]), x[62:])
    columns = tmp_path / "columns.parquet"
    pq.write_table(pa.table({f"x{i}": x[:, i] for i in range(4)} | {"y": y}), columns)
    names = [f"x{i}" for i in range(4)]
    by_column = open_split(
        SplitSettings(uri=str(columns), input=names, input_kind="features", target="y", shard_rows=31)
    )
    assert [shard.digest for shard in by_column.shards] == [shard.digest for shard in split.shards]


def test_images_in_an_array_reach_the_encoder_without_loss(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", image=pixels, y=np.arange(5.0))
    split = open_split(SplitSettings(uri=str(tmp_path / "images.npz"), input="image", target="y"))
    read = [np.asarray(Image.open(io.BytesIO(value))) for value in split.read_encoder_inputs(split.shards[0])]
    np.testing.assert_array_equal(np.stack(read), pixels)


def test_texts_are_kept_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text('text,y\n"two\nlines, and a comma",1\n1e5,2\n,3\n007,4\n')
    split = open_split(SplitSettings(uri=str(tmp_path / "texts.csv"), input="text", input_kind="text", target="y"))
    first, second, third, fourth = split.read_encoder_inputs(split.shards[0])
    assert (first, second, fourth) == ("two\nlines, and a comma", "1e5", "007")
    assert isinstance(third, InvalidRow)
    assert "column 'text' holds no text" in third.reason


def test_appended_rows_leave_the_full_shards_before_them_as_they_were(tmp_path: Path, rows: Any) -> None:
    before = _open(tmp_path / "before", rows(75), _parquet)
    after = _open(tmp_path / "after", rows(130), _tar)
    assert [s.digest for s in after.shards[:2]] == [s.digest for s in before.shards[:2]]
    assert after.shards[2].digest != before.shards[2].digest
    assert after.digest != before.digest


def test_the_digest_sees_content_and_not_names_or_partition(tmp_path: Path, rows: Any) -> None:
    frame = rows(ROWS)
    original = _open(tmp_path / "a", frame, _parquet)
    assert _open(tmp_path / "b", frame, _parquet, shard_rows=7).digest == original.digest
    changed = frame.copy()
    image = changed.loc[41, "image"]
    changed.at[41, "image"] = image[:-1] + bytes([image[-1] ^ 1])  # noqa: PD008
    other = _open(tmp_path / "c", changed, _parquet_of_paths)
    assert other.digest != original.digest
    assert [a.digest == b.digest for a, b in zip(other.shards, original.shards, strict=True)] == [True, False, True]
    relabelled = _open(tmp_path / "d", frame.assign(angle=frame["angle"].where(frame.index != 3, 0.5)), _parquet)
    assert relabelled.digest != original.digest
    assert relabelled.shards == original.shards


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=40), cut=st.integers(0, 40))
def test_the_digest_of_a_column_does_not_depend_on_its_batches(values: list[int | None], cut: int) -> None:
    from congruence.tasks.data.digests import canonical_bytes

    whole = canonical_bytes(pa.array(values, pa.int64()))
    assert (
        canonical_bytes(pa.array(values[:cut], pa.int64())) + canonical_bytes(pa.array(values[cut:], pa.int64()))
        == whole
    )
    small = [None if value is None else value % 1000 for value in values]
    assert canonical_bytes(pa.array(small, pa.int64())) == canonical_bytes(pa.array(small, pa.float64()))


REFUSED = {
    "a column that does not exist": (
        {"target": "angel"},
        lambda frame: frame,
        r"no column 'angel' \(target\); did you mean 'angle'\? .*key, image, angle, digit",
    ),
    "a target that is text": (
        {"target": "key"},
        lambda frame: frame,
        r"column 'key' \(target\) holds .*string, not numbers, for example 'image-0'",
    ),
    "a key that occurs twice": (
        {},
        lambda frame: frame.assign(key=frame["key"].where(frame.index != 44, "image-2")),
        r"column 'key' \(key\) holds 'image-2' twice: .*0\.parquet, row 2 and .*1\.parquet, row 11",
    ),
    "an empty key": (
        {},
        lambda frame: frame.assign(key=frame["key"].where(frame.index != 40)),
        r"1\.parquet, row 7: column 'key' \(key\) is empty",
    ),
    "an input of another kind": (
        {"input": "angle"},
        lambda frame: frame,
        r"column 'angle' \(input\) holds double, not encoded image bytes or paths",
    ),
    "no rows": ({}, lambda frame: frame[:0].assign(angle=pd.Series(dtype=float)), r"no rows|ends in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_split_that_cannot_be_evaluated_is_refused_before_any_work(case: str, tmp_path: Path, rows: Any) -> None:
    changes, damage, message = REFUSED[case]
    with pytest.raises(SplitError, match=f"(?s){message}"):
        _open(tmp_path / "data", damage(rows(ROWS)), _parquet, **changes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ragged.csv", "key,image,angle\na,b,1\nc,d\n", r"line 3: has 2 fields, but the header names 3"),
        ("twice.csv", "key,image,image,angle\n", r"names the column 'image' twice"),
        ("latin.csv", "key,image,angle\n\xe4,b,1\n", r"line 2: is not UTF-8"),
        ("broken.jsonl", '{"key": 1}\n{"key": \n', r"line 2: is not JSON"),
        ("list.jsonl", "[1, 2]\n", r"line 1: holds a JSON list, expected an object"),
        ("cut.parquet", "PAR1 but no more", r"not readable as Parquet"),
        ("cut.tar", "x" * 1000, r"not readable as tar"),
        ("cut.npz", "PK nothing", r"not readable as \.npz"),
        ("table.xlsx", "", r"the format does not show in the name; set format"),
    ],
)
def test_a_damaged_container_is_named_with_its_place(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(SplitError, match=message):
        open_split(SplitSettings(uri=str(tmp_path / name), input="image", target="angle"))


def test_pickled_objects_in_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(SplitError, match="holds Python objects, which are never unpickled"):
        open_split(SplitSettings(uri=str(tmp_path / "objects.npz"), input="x", input_kind="features", target="y"))


def test_a_missing_split_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"no such file or folder; check the split's uri"):
        open_split(SplitSettings(uri=str(tmp_path / "nowhere"), input="image", target="angle"))
