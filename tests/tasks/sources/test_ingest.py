"""Ingesting a split: file by file and once, the same however rows are divided; types that hold the values of all."""

import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encoder_inputs import encoder_inputs, of_features
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.tasks.data import ingest, rows
from congruence.tasks.data import split as split_module
from congruence.tasks.data.ingest import ingest_files, require_columns, source_files
from congruence.tasks.data.inputs import ContentDigest
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.runtime.errors import SplitChangedError, SplitError

ROWS = 60


def table(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
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


def described(uri: Path | str, **changes: Any) -> SplitSettings:
    base = {"inputs": changes.pop("input", ["a", "b"]), "key": "id", "slices": ["group"], "shard_rows": 16}
    return of_features(uri, **base | changes)


def write(folder: Path, frame: pd.DataFrame, cuts: list[int] | None = None, suffix: str = ".parquet") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (start, stop) in enumerate(pairwise([0, *(cuts or []), len(frame)])):
        path = folder / f"{number:03d}{suffix}"
        if suffix == ".csv":
            frame[start:stop].to_csv(path, index=False)
        else:
            pq.write_table(pa.Table.from_pandas(frame[start:stop], preserve_index=False), path, row_group_size=7)
    return folder


def seen(split: Split) -> dict[str, Any]:
    """Everything that a split says of its rows."""
    features = [split.features(shard) for shard in split.shards]
    return {
        "digest": split.digest,
        "shards": [shard.digest for shard in split.shards],
        "targets": split.targets().tolist(),
        "keys": split.keys().tolist(),
        "slices": [split.frame(shard, split.settings.slices).to_dict("list") for shard in split.shards],
        "features": np.concatenate([matrix for matrix, _ in features]).tolist(),
        "reasons": [reasons for _, reasons in features],
    }


def parts_written(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    written: list[Path] = []
    original = ingest.write_rows

    def noted(path: Path, *others: Any) -> None:
        written.append(path)
        original(path, *others)

    monkeypatch.setattr(ingest, "write_rows", noted)
    return written


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 70), max_size=3),
    shard=st.integers(1, 40),
    suffix=st.sampled_from([".csv", ".parquet"]),
)
def test_files_give_what_their_concatenation_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: int, cuts: list[int], shard: int, suffix: str
) -> None:
    folder, frame = tmp_path_factory.mktemp("split"), table(rows, seed=rows)
    write(folder / "many", frame, sorted(min(cut, rows) for cut in cuts), suffix)
    write(folder / "one", frame, [], suffix)
    many, one = (open_split(described(folder / name, shard_rows=shard)) for name in ("many", "one"))
    assert seen(many) == seen(one)
    assert many.keys().tolist() == frame["id"].tolist()


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=40), cut=st.integers(0, 40))
def test_the_digest_of_a_column_does_not_depend_on_its_batches(values: list[int | None], cut: int) -> None:
    def digest(*arrays: Any) -> bytes:
        state = ContentDigest()
        for array in arrays:
            state.add_column(array)
        return state.digest()

    small = [None if value is None else value % 1000 for value in values]
    texts = [None if value is None else str(value) for value in values]
    for given_, kind in ((values, pa.int64()), (texts, pa.string()), ([[v] for v in small], pa.list_(pa.int64()))):
        cut_up = digest(pa.array(given_[:cut], kind), pa.array(given_, kind)[cut:])
        assert cut_up == digest(pa.array(given_, kind))
    assert digest(pa.array(small, pa.int64())) == digest(pa.array(small, pa.float64()))


def test_only_a_changed_or_a_new_file_is_ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "data", table(), [20, 40])
    before = open_split(described(folder), tmp_path / "index")
    written = parts_written(monkeypatch)
    more = table(20, seed=9).assign(id=[f"more {row}" for row in range(20)])
    pq.write_table(pa.Table.from_pandas(more, preserve_index=False), folder / "003.parquet")
    after = open_split(described(folder), tmp_path / "index")
    assert len(written) == 1
    assert [s.digest for s in after.shards[:3]] == [s.digest for s in before.shards[:3]]
    relabelled = table()[20:40].assign(y=0.25)
    pq.write_table(pa.Table.from_pandas(relabelled, preserve_index=False), folder / "001.parquet")
    again = open_split(described(folder), tmp_path / "index")
    assert len(written) == 2
    assert again.shards == after.shards
    assert again.digest != after.digest
    open_split(described(folder, shard_rows=7), tmp_path / "index")
    assert len(written) == 2
    (folder / "000.parquet").touch()
    assert open_split(described(folder), tmp_path / "index").digest == again.digest
    assert len(written) == 3


def test_rows_that_are_looked_through_are_counted_and_those_of_a_kept_split_are_not(tmp_path: Path) -> None:
    seen: list[int] = []

    @contextmanager
    def looking(rows: int) -> Iterator[Callable[[int], None]]:
        seen.append(-rows)
        yield seen.append

    split = described(write(tmp_path / "rows", table(), cuts=[20]))
    for _ in range(2):
        open_split(split, tmp_path / "plans", looking)
        assert (seen[0], sum(seen)) == (-ROWS, 0)


def test_appended_rows_leave_shards_alone_whatever_the_number(tmp_path: Path) -> None:
    for kind, size in (("features", 8192), ("text", 2048)):
        asked = described(tmp_path, input="a", input_kind=kind, shard_rows=None)
        assert asked.rows_of_a_shard() == size
    assert described(tmp_path, shard_rows=100).rows_of_a_shard() == 100


def test_files_are_ingested_by_address_on_whatever_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = described(write(tmp_path / "data", table(), [20, 40], ".csv"))
    for file in reversed(source_files(asked)):
        (part,) = ingest_files(asked, str(tmp_path / "index"), [file])
    assert pq.read_table(part)["id"].to_pylist() == table()["id"][:20].tolist()
    written = parts_written(monkeypatch)
    assert seen(open_split(asked, tmp_path / "index")) == seen(open_split(asked))
    assert len(written) == 3  # without a folder


def test_any_order_of_shards_gives_the_same_rows_to_any_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_ROWS", 37)
    frame = table(500)
    split = open_split(described(write(tmp_path / "data", frame, [100, 333]), shard_rows=11))

    def read(number: int) -> None:
        shard = split.shards[number]
        there = slice(shard.start, shard.stop)
        taken = [reader() for reader in split.input_readers(shard)]
        np.testing.assert_array_equal(np.array(taken)[:, 0], frame["a"][there])
        assert split.frame(shard, ["b", "y"])["b"].tolist() == frame["b"][there].tolist()
        assert split.targets(shard).tolist() == frame["y"][there].tolist()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, np.random.default_rng(3).integers(0, len(split.shards), 60).tolist()))
    assert max(batch.num_rows for batch in split._ingested.stored(["y"], 0, 500)) == 37


def test_a_split_travels_as_an_address(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", table(900), [450])
    split = open_split(described(folder, shard_rows=1), tmp_path / "index")
    sent = pickle.dumps(split)
    assert len(sent) < 2000
    shutil.rmtree(tmp_path / "index")  # a worker that does not see the folder ingests the split again
    assert pickle.loads(sent).shards == split.shards
    write(folder, table(900, seed=1), [450])
    shutil.rmtree(tmp_path / "index")
    split_module._here.clear()
    with pytest.raises(SplitError, match="has changed since it was opened; open it again"):
        _ = pickle.loads(sent).shards


def test_relative_paths_mean_the_same_to_a_worker_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", table())
    monkeypatch.chdir(tmp_path)
    split = open_split(described("data"), "index")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    travelled: Split = pickle.loads(pickle.dumps(split))
    assert seen(travelled)["keys"] == table()["id"].tolist()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_damaged_part_is_named_with_what_to_do(tmp_path: Path) -> None:
    split = open_split(described(write(tmp_path / "data", table())), tmp_path / "index")
    (part,) = (tmp_path / "index").rglob("part-*.parquet")
    content = bytearray(part.read_bytes())
    content[20 : len(content) // 2] = bytes(len(content) // 2 - 20)
    part.write_bytes(content)
    with pytest.raises(SplitError, match=rf"(?s){part.name}: is damaged .*delete the file, and run again"):
        split.targets(split.shards[0])
    part.unlink()
    again = open_split(split.settings, tmp_path / "index")
    assert (again.digest, again.targets(again.shards[0]).tolist()) == (split.digest, table()["y"][:16].tolist())


def test_a_file_that_is_replaced_while_it_is_read_is_no_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, original = described(write(tmp_path / "data", table(), [], ".csv")), ingest.write_rows

    def slow(*arguments: Any) -> None:
        original(*arguments)
        write(tmp_path / "data", table(seed=1), [], ".csv")

    monkeypatch.setattr(ingest, "write_rows", slow)
    with pytest.raises(SplitChangedError, match=r"000\.csv"):
        open_split(asked, tmp_path / "index")
    monkeypatch.undo()
    assert open_split(asked, tmp_path / "index").digest == open_split(asked, tmp_path / "fresh").digest


MAKE = """
import sys
from congruence.tasks.data.split import open_split
from congruence.tasks.data.settings import SplitSettings
print(open_split(SplitSettings.model_validate_json(sys.argv[1]), sys.argv[2]).digest)
"""


def _process(asked: SplitSettings, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKE, asked.model_dump_json(), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_may_ingest_at_once_and_a_killed_one_leaves_nothing_wrong(tmp_path: Path) -> None:
    asked = described(write(tmp_path / "data", table(15_000), list(range(1000, 15_000, 1000))))
    killed = _process(asked, tmp_path / "index")
    while killed.poll() is None and not any((tmp_path / "index").rglob("part-*.parquet")):
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list((tmp_path / "index").rglob("split-*"))
    other = _process(asked, tmp_path / "index")
    split = open_split(asked, tmp_path / "index")
    assert other.communicate(timeout=60)[0].strip() == split.digest == open_split(asked).digest
    left = [path for path in (tmp_path / "index").rglob("*") if path.name.startswith(".")]
    assert len(left) <= 1  # what the killed one was writing, under a name that nobody reads
    assert len(list((tmp_path / "index").rglob("part-*.parquet"))) == 15


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "a column that does not exist": (
        {"target": "z"},
        lambda frame: frame.rename(columns={"y": "zz"}),
        r"no column 'z' \(target\); did you mean 'zz'\? .*id, a, b, zz, group",
    ),
    "a target that is text": (
        {"target": "id"},
        lambda frame: frame,
        r"column 'id' \(target\) holds text, not numbers, for example 'row 0' at .*000\.parquet, row 0",
    ),
    "numbers written as text": (
        {},
        lambda frame: frame.assign(y=frame["y"].astype(str)),
        r"column 'y' \(target\) holds numbers written as text \(.*string\); convert it to numbers",
    ),
    "a key that occurs twice": (
        {},
        lambda frame: frame.assign(id=frame["id"].where(frame.index != 44, "row 2")),
        r"column 'id' \(key\) holds 'row 2' twice: .*000\.parquet, row 2 and .*001\.parquet, row 11",
    ),
    "an empty key": (
        {},
        lambda frame: frame.assign(id=frame["id"].where(frame.index != 40)),
        r"001\.parquet, row 7: column 'id' \(key\) is empty",
    ),
    "an input of another kind": (
        {"input": "a", "input_kind": "image"},
        lambda frame: frame,
        r"column 'a' \(input\) holds float, not encoded image bytes or paths",
    ),
    "a slice of lists": (
        {},
        lambda frame: frame.assign(group=[[1]] * len(frame)),
        r"column 'group' \(slices\) holds list.*by which rows cannot be grouped",
    ),
    "no rows": ({}, lambda frame: frame[:0], r"holds no rows; give at least one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_split_that_cannot_be_evaluated_is_refused_before_any_work(case: str, tmp_path: Path) -> None:
    changes, damage, message = REFUSED[case]
    frame = damage(table())
    asked = described(write(tmp_path / "data", frame, [33] if len(frame) else []), **changes)
    with pytest.raises(SplitError, match=f"(?s){message}"):
        open_split(asked)
    if "key" in case or case == "no rows":
        require_columns(asked)
    else:
        with pytest.raises(SplitError, match=f"(?s){message}"):
            require_columns(asked)


def _texts(folder: Path, *contents: str, suffix: str = ".csv") -> Path:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}{suffix}").write_text(content)
    return folder


def test_the_types_of_text_files_are_those_of_all_of_them(tmp_path: Path) -> None:
    folder = _texts(tmp_path / "data", "id,a,b,y,group\n0,1,1,1,7.50\n1,2,,2,08\n", "id,a,b,y,group\nx,1.5,2,3,\n")
    split = open_split(described(folder), tmp_path / "index")
    assert split.keys().tolist() == ["0", "1", "x"]
    assert split.frame(split.shards[0], ["group"])["group"].tolist()[:2] == ["7.50", "08"]
    assert split.facts.missing.rows == 1
    _texts(folder, *(f"id,a,b,y,group\n{row},{row}.5,2,3,{group}\n" for row, group in enumerate(["1.50", "z", "2"])))
    again = open_split(described(folder), tmp_path / "index")
    assert again.frame(again.shards[0], ["group"])["group"].tolist() == ["1.50", "z", "2"]
    (folder / "2.csv").write_text("id,a,b,y,group\nw,NA,2,3,\nz,text,2,3,\n")
    with pytest.raises(
        SplitError, match=r"'a' \(input\) holds text, not numbers, for example 'text' at .*2\.csv, row 1"
    ):
        open_split(described(folder), tmp_path / "index")


def test_numbers_are_read_as_they_are_meant(tmp_path: Path) -> None:
    ids = [2**63 - 1, 2**63 - 2]
    folder = _texts(tmp_path / "data", f"id,a,b,y,group\n{ids[0]}, 1e5 ,true,1,1e400\n{ids[1]},NA,FALSE,-.5,2\n")
    split = open_split(described(folder, model_inputs=["a", "b", "group"]))
    assert split.keys().tolist() == [str(each) for each in ids]
    frame = split.frame(split.shards[0])
    assert frame["b"].tolist() == [True, False]
    assert frame["group"].tolist() == [np.inf, 2.0]
    np.testing.assert_array_equal(frame["a"], [1e5, np.nan])
    long = _texts(tmp_path / "long", f"id,a,b,y,group\n{2**64},1,1,1,1\n{2**64 + 1},2,1,2,0x10\n")
    found = open_split(described(long))
    assert found.keys().tolist() == [str(2**64), str(2**64 + 1)]
    assert found.frame(found.shards[0])["group"].tolist() == ["1", "0x10"]


def test_texts_are_kept_as_they_are_written(tmp_path: Path) -> None:
    folder = _texts(tmp_path / "data", 'text,y\n"two\nlines, and a comma",1\n1e5,2\n,3\n007,4\nNA,5\n')
    asked = SplitSettings(uri=str(folder), input="text", input_kind="text", target="y")
    split = open_split(asked)
    read = list(encoder_inputs(split, split.shards[0]))
    assert [read[0], read[1], *read[3:]] == ["two\nlines, and a comma", "1e5", "007", "NA"]
    assert "column 'text' holds no text" in str(read[2])


def test_values_of_json_that_are_unlike_are_texts(tmp_path: Path) -> None:
    rows = ['{"y": 1, "t": "2020-01-01", "g": 1}', '{"y": 2.5, "t": {"a": [1]}, "g": true}', '{"t": "x", "y": null}']
    folder = _texts(tmp_path / "data", "\n".join(rows[:2]), "\n\n" + rows[2] + "\n", suffix=".jsonl")
    asked = SplitSettings(uri=str(folder), input="t", input_kind="text", target="y", slices=["g"])
    split = open_split(asked.model_copy(update={"slices": []}))
    assert list(encoder_inputs(split, split.shards[0]))[:2] == ["2020-01-01", '{"a": [1]}']
    np.testing.assert_array_equal(split.targets(split.shards[0]), [1.0, 2.5, np.nan])
    with pytest.raises(SplitError, match=r"1\.jsonl: there is no column 'g' \(slices\)"):
        open_split(asked)
    one = open_split(asked.model_copy(update={"uri": str(folder / "0.jsonl")}))
    assert one.frame(one.shards[0])["g"].tolist() == ["1", "true"]


def test_files_of_types_that_nothing_holds_are_told_apart(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", table())
    write(tmp_path / "other", table().assign(group=1.5))
    (tmp_path / "other" / "000.parquet").rename(folder / "001.parquet")
    with pytest.raises(SplitError, match=r"001\.parquet: column 'group' is double, but .*string in .*000\.parquet"):
        open_split(described(folder))
    (folder / "001.parquet").unlink()
    pq.write_table(pq.read_table(folder / "000.parquet").drop_columns("y"), folder / "001.parquet")
    with pytest.raises(SplitError, match=r"001\.parquet: there is no column 'y' \(target\)"):
        open_split(described(folder))


def test_files_whose_columns_differ_in_order_and_width_are_one_split(tmp_path: Path) -> None:
    """arrow 47592."""
    texts = pa.array(["u", "v", "u"])
    for order, text, kind in (
        ("asy", texts, pa.int64()),
        ("yas", texts.cast(pa.large_string()), pa.float64()),
        ("say", texts.dictionary_encode(), pa.int32()),
    ):
        columns = {"a": pa.array([0.1, 0.2, 0.3]), "s": text, "y": pa.array([1, 2, 3]).cast(kind)}
        pq.write_table(pa.table({name: columns[name] for name in order}), tmp_path / f"{order}.parquet")
    split = open_split(of_features(tmp_path, ["a"], model_inputs=["a", "s"]))
    found = split.frame(split.shards[0])
    assert (found["s"].tolist(), found["a"].tolist()) == (["u", "v", "u"] * 3, [0.1, 0.2, 0.3] * 3)


def test_what_exists_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows [a]", table())
    assert open_split(described(folder)).rows == open_split(described(folder / "000.parquet")).rows == ROWS
    assert open_split(described(tmp_path / "rows*" / "*.parquet")).rows == ROWS
