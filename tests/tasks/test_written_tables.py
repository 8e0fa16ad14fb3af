"""Long splits: tables are written a part at a time, and correlation is looked for in runs of neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from congruence.tasks.mlflow import tables
from congruence.tasks.scores import dependence
from congruence.tasks.scores.summary import slice_groups


@pytest.mark.parametrize("written", [4, 7, 100])
def test_a_table_written_in_parts_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    monkeypatch.setattr(tables, "_WRITTEN_ROWS", written)
    frame = pd.DataFrame(
        {
            "key": [f"row {row}" for row in range(10)],
            "valid": np.arange(10) != 9,
            "reason": np.array([None] * 9 + ["no target"], dtype=object),
            "none": np.full(10, None, dtype=object),
            "score": np.linspace(0.0, 1.0, 10),
            "count": np.arange(10),
        }
    )
    for single, dtype in (([], "float64"), (["score"], "float32")):
        tables.write_parquet(frame, tmp_path / "table.parquet", single=single)
        found = pd.read_parquet(tmp_path / "table.parquet")
        assert found["score"].dtype == dtype
        assert found["count"].dtype == "int64"
        assert found["reason"].tolist()[-1] == "no target"
        assert found["none"].isna().all()
        assert found["reason"].isna().tolist() == [True] * 9 + [False]
        pd.testing.assert_frame_equal(
            found[["key", "valid", "score", "count"]],
            frame[["key", "valid", "score", "count"]].astype({"score": dtype}),
        )


def test_texts_by_their_code_are_texts_in_the_file(tmp_path: Path) -> None:
    texts = ["", "bias", None] * 4
    tables.write_parquet(pd.DataFrame({"fault": pd.Categorical(texts)}), tmp_path / "coded.parquet")
    tables.write_parquet(pd.DataFrame({"fault": texts}), tmp_path / "texts.parquet")
    assert (tmp_path / "coded.parquet").read_bytes() == (tmp_path / "texts.parquet").read_bytes()


def test_runs_of_neighbours_stand_for_a_long_split() -> None:
    assert np.array_equal(dependence.runs_looked_at(1000), np.arange(1000))
    rows = dependence.runs_looked_at(3_000_000)
    assert len(np.unique(rows)) == len(rows) == 250_000
    assert (rows[0], rows[-1]) == (0, 2_999_999)
    assert np.sum(np.diff(rows) != 1) == 15


def test_groups_of_a_slice_column_take_four_bytes_a_row() -> None:
    codes, names = slice_groups(pd.Series(["b", None, "a", "b", "missing"]))
    assert codes.dtype == np.int32
    assert names[codes].tolist() == ["b", "missing", "a", "b", "missing"]
