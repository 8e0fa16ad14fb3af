"""Which rows of a table of stored predictions are evaluated, and with which label."""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features

from congruence.tasks.data.split import open_split
from congruence.tasks.data.stored import StoredTable, read_stored
from congruence.tasks.evaluate.stored import rows_in_frame, write_parts
from congruence.tasks.runtime.errors import SettingsError, SplitError
from congruence.tasks.settings.production import StoredPredictions


def table(folder: Path, rows: dict[str, Any], labels: dict[str, Any] | None = None, **named: Any) -> StoredTable:
    frame = pd.DataFrame(rows)
    half = len(frame) // 2
    frame[:half].to_parquet(folder / "a.parquet", index=False)
    frame[half:].to_parquet(folder / "b.parquet", index=False)
    split = of_features(f"{folder}/[ab].parquet", ["x"], name="p", key="k")
    if labels is not None:
        pd.DataFrame(labels).to_csv(folder / "labels.csv", index=False)
        named["targets"] = {"uri": str(folder / "labels.csv"), "key": "id", "target": "y"} | named.get("targets", {})
    said = StoredPredictions.model_validate({"from": split.uri, "key": "k", "version": "v"} | named)
    return read_stored(split, ["mu"], said)


ROWS = {"k": [1, 2, 3, 4], "v": ["a", "a", "b", "b"], "x": [0.1, 0.2, 0.3, 0.4], "mu": [1.0, 2.0, 3.0, 4.0]}


def test_the_latest_label_of_a_key_counts_and_equal_ones_are_one(tmp_path: Path) -> None:
    labels = {"id": [1, 2, 2, 1, 3, 3], "y": [10.0, 20.0, 20.0, 11.0, 30.0, np.nan]}
    found = table(tmp_path, ROWS, labels)
    assert found.labels[:, 0].tolist()[:3] == [11.0, 20.0, 30.0]
    assert found.corrected == 1
    assert found.said() == (
        "p: 3 of 4 stored predictions are evaluated; 1 has no label yet. 1 key has several labels that differ: the "
        "latest counts"
    )
    by_time = table(
        tmp_path, ROWS, labels | {"at": [f"2026-01-0{n}" for n in (9, 1, 2, 3, 1, 1)]}, targets={"time": "at"}
    )
    assert by_time.labels[0, 0] == 10.0


def test_of_rows_of_one_key_and_version_the_latest_with_label_and_prediction_counts(tmp_path: Path) -> None:
    rows = {
        "k": ["r", "r", "r", "s", "s", "t"],
        "v": ["a", "a", "a", "a", "b", None],
        "x": [0.0] * 6,
        "y": [1.0, 2.0, np.nan, 4.0, 4.0, 5.0],
        "mu": [1.0, 2.0, 3.0, np.nan, 5.0, 6.0],
    }
    found = table(tmp_path, rows)
    assert {name: own.tolist() for name, own in found.rows_of().items()} == {"a": [1], "b": [4]}
    assert found.said() == (
        "p: 2 of 6 stored predictions are evaluated; 1 has no label yet, 1 has a label and no prediction, 1 names no "
        "version, 1 is repeated for the same key and version, of which the last in the files' order counts"
    )
    at = {"t": pd.to_datetime([f"2026-01-0{n}" for n in (5, 4, 3, 2, 2, 2)])}
    timed = table(tmp_path, rows | at, time="t")
    assert timed.rows_of()["a"].tolist() == [0]
    assert timed.said().endswith("1 is repeated for the same key and version, of which the latest counts")


def test_versions_of_the_same_keys_are_one_split_with_the_predictions_of_both(tmp_path: Path) -> None:
    rows = {"k": [1, 2, 3, 3, 1, 2], "v": list("aaabbb"), "x": [0.1, 0.2, 0.3, 0.3, 0.1, 0.2]}
    rows |= {"y": [1.0, 2.0, 3.0, 3.0, 1.0, 2.0], "mu": [10.0, 20.0, 30.0, 33.0, 11.0, 22.0]}
    found = table(tmp_path, rows)
    parts = found.parts(found.rows_of())
    assert len(parts) == 1
    assert found.shared(found.rows_of(), least=1) == []
    (split,) = write_parts(found, parts, {"a": "A", "b": "B"}, str(tmp_path / "made"), {})
    opened = open_split(split)
    frame = opened.frame(opened.shards[0], ["k", "y", "A mu", "B mu"])
    assert frame.to_numpy().tolist() == [[1, 1, 10, 11], [2, 2, 20, 22], [3, 3, 30, 33]]
    before = split.stored["A"].digest, split.stored["B"].digest
    assert write_parts(found, parts, {"a": "A", "b": "B"}, str(tmp_path / "made"), {}) == [split]
    changed = table(tmp_path, rows | {"mu": [10.0, 20.0, 30.0, 33.0, 11.0, 99.0]})
    (other,) = write_parts(changed, changed.parts(changed.rows_of()), {"a": "A", "b": "B"}, str(tmp_path / "made"), {})
    assert open_split(other).digest == opened.digest
    assert [other.stored[name].digest == digest for name, digest in zip("AB", before, strict=True)] == [True, False]


def test_keys_that_are_numbers_here_and_texts_there_are_joined_and_others_are_told(tmp_path: Path) -> None:
    texts = ROWS | {"k": ["1", "2", "3", "4"]}
    assert table(tmp_path, texts, {"id": [4, 1], "y": [4.0, 1.0]}).labelled.tolist() == [True, False, False, True]
    floats = table(tmp_path, ROWS, {"id": [2.0, 1.0], "y": [1.0, 4.0]})  # as pandas writes them beside a missing one
    assert floats.labels[:2, 0].tolist() == [4.0, 1.0]
    with pytest.raises(SplitError, match=r"none of its 1 keys \(id, for example '7'\) is a key of the predictions"):
        table(tmp_path, ROWS, {"id": [7], "y": [1.0]})
    with pytest.raises(SplitError, match=r"b.parquet, row 1: column 'k' \(key\) is missing"):
        table(tmp_path, ROWS | {"k": ["1", "2", "3", None]}, {"id": [1], "y": [1.0]})


def test_a_time_that_is_none_is_named_by_its_row(tmp_path: Path) -> None:
    rows = ROWS | {"y": [1.0] * 4, "t": ["2026-01-01", None, "2026-01-02T12:00", "soon"]}
    with pytest.raises(SplitError, match=r"b.parquet, row 1: column 't' \(time\) is 'soon', no ISO 8601 time such as"):
        table(tmp_path, rows, time="t")
    with pytest.raises(SplitError, match=r"column 'x' \(time\) holds double; give timestamps, dates or ISO 8601 texts"):
        table(tmp_path, rows, time="x")
    found = table(tmp_path, rows | {"t": [*rows["t"][:3], "2026-01-03T00:00+02:00"]}, time="t")
    assert np.isnat(found.times).tolist() == [False, True, False, False]
    assert found.times[2:].tolist() == [datetime(2026, 1, 2, 12), datetime(2026, 1, 2, 22)]


def test_a_frame_in_memory_gives_the_rows_and_laws_of_each_version() -> None:
    frame = pd.DataFrame({"k": [1, 2, 2, 3], "v": ["a", "a", "b", "b"], "x": [0.1, 0.2, 0.2, 0.3]})
    frame = frame.assign(y=[1.0, 2.0, 2.0, np.nan], mean=[1.0, 2.5, 2.1, 3.0], std=0.5)
    said = StoredPredictions.model_validate({"from": "frame", "key": "k", "version": "v"})
    split = of_features("frame", ["x"])
    found = rows_in_frame(frame, said, split)
    assert {name: rows.rows.index.tolist() for name, rows in found.items()} == {"a": [0, 1], "b": [2]}
    assert found["a"].targets.tolist() == [1.0, 2.0]
    assert found["a"].predictive.mean().tolist() == [1.0, 2.5]
    with pytest.raises(SettingsError, match="no columns are called as those of a distribution"):
        rows_in_frame(frame.drop(columns="std"), said, split)


def test_columns_of_predictions_that_hold_no_numbers_or_are_inputs_are_told_as_that() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "mu": ["1", "abc"], "sd": [1.0, 1.0], "y": [1.0, 2.0]})
    said = StoredPredictions.model_validate({"from": "f", "family": "normal", "columns": {"loc": "mu", "scale": "sd"}})
    split = of_features("f", ["x"])
    at = "of the frame holds text, not numbers, for example 'abc' in row 1"
    with pytest.raises(SettingsError, match=rf"predictions.columns.loc: column 'mu' {at}"):
        rows_in_frame(frame, said, split)
    with pytest.raises(SettingsError, match=rf"predictions: column 'mu' {at}; convert it to numbers"):
        rows_in_frame(frame, StoredPredictions.model_validate({"from": "f"}), split)
    with pytest.raises(SettingsError, match=r"column 'mu' of the frame holds numbers written as text"):
        rows_in_frame(frame.assign(mu=["1", "2"]), said, split)
    with pytest.raises(SettingsError, match=r"column 'mu' of the frame is named as input, slice, key or target, too"):
        rows_in_frame(frame.assign(mu=1.0), said, split.model_copy(update={"input": ["x", "mu"]}))


@pytest.mark.parametrize("gap", [[1.0, np.nan], [1.0, None], [], None])
def test_a_row_whose_list_of_draws_has_a_gap_has_no_prediction_as_one_of_columns_has(gap: Any) -> None:
    """The whole version failed."""
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": 0.0, "draws": [[1.0, 2.0], gap, [3.0, 4.0]]})
    said = StoredPredictions.model_validate({"from": "frame", "family": "samples", "columns": {"values": "draws"}})
    found = rows_in_frame(frame, said, of_features("frame", ["x"]))[""]
    np.testing.assert_array_equal(found.predictive.draws, [[1.0, 2.0], [3.0, 4.0]])
    assert found.rows["x"].tolist() == [1.0, 3.0]
