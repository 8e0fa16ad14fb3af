"""Splits that grow or come day by day: dates in the names of files, the window, and rows that were seen before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from congruence.tasks.data.chosen_rows import split_of_rows
from congruence.tasks.data.dates import DatedPath
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.row_identity import kept_identities, row_identities
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split


def _write(path: Path, keys: list[str] | None, x: list[float], y: list[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {"x": x, "y": y}
    pd.DataFrame(columns if keys is None else columns | {"key": keys}).to_parquet(path)


def _open(uri: str, **changes: Any) -> Split:
    chosen = {"uri": uri, "input": ["x"], "input_kind": "features", "target": "y", "key": "key"} | changes
    return open_split(SplitSettings.model_validate(chosen))


@pytest.mark.parametrize(
    "form", ["day={date}/rows.parquet", "{date:%Y/%m/%d}/rows.parquet", "of-{date:%Y%m%d}.parquet"]
)
def test_a_window_counts_back_from_the_newest_date(tmp_path: Path, form: str) -> None:
    for day in ("2026-02-27", "2026-02-28", "2026-03-01", "2026-03-02"):
        when = pd.Timestamp(day)
        path = form.replace("{date}", day)
        for written in ("%Y/%m/%d", "%Y%m%d"):
            path = path.replace(f"{{date:{written}}}", when.strftime(written))
        _write(tmp_path / path, [f"{day}-{row}" for row in range(3)], [1.0, 2.0, 3.0], [0.0, 1.0, 2.0])
    everything, window = _open(f"{tmp_path}/{form}"), _open(f"{tmp_path}/{form}", last="2 days")
    assert (everything.rows, window.rows) == (12, 6)
    assert [str(window.date_of(row)) for row in (0, 5)] == ["2026-03-01", "2026-03-02"]
    assert _open(f"{tmp_path}/{form}", last="1 week").rows == 12
    assert {key[:10] for key in window.keys_of(window.shards)} == {"2026-03-01", "2026-03-02"}


def test_a_name_without_a_date_is_refused_by_name(tmp_path: Path) -> None:
    _write(tmp_path / "day=2026-03-01" / "a.parquet", ["a"], [1.0], [1.0])
    _write(tmp_path / "day=2026-13-01" / "a.parquet", ["b"], [1.0], [1.0])
    with pytest.raises(SplitError, match="day=2026-13-01"):
        _open(f"{tmp_path}/day={{date}}/*.parquet")
    with pytest.raises(SplitError, match="names no day"):
        DatedPath.of("month={date:%Y-%m}/*.parquet")
    with pytest.raises(ValidationError, match="no \\{date\\}"):
        _open(f"{tmp_path}/*.parquet", last="3 days")
    with pytest.raises(ValidationError, match="30 days"):
        _open(f"{tmp_path}/day={{date}}/*.parquet", last="a month")


def test_a_row_is_known_by_its_key_and_its_input_wherever_it_is(tmp_path: Path) -> None:
    _write(tmp_path / "one.parquet", ["a", "b", "c"], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    _write(tmp_path / "two.parquet", ["c", "d", "b", "a"], [3.0, 4.0, 2.5, 1.0], [0.0, 0.0, 0.0, 9.0])
    one, two = (row_identities(_open(str(tmp_path / f"{name}.parquet"))) for name in ("one", "two"))
    assert np.isin(two, one).tolist() == [True, False, False, True]  # b has another input, a a corrected target
    assert len(set(one.tolist())) == 3
    kept = [kept_identities(_open(str(tmp_path / "one.parquet")), tmp_path) for _ in range(2)]
    np.testing.assert_array_equal(kept, [one, one])


def test_rows_without_a_key_are_known_by_input_and_copy(tmp_path: Path) -> None:
    _write(tmp_path / "one.parquet", None, [1.0, 1.0, 2.0], [0.0, 1.0, 2.0])
    _write(tmp_path / "two.parquet", None, [2.0, 1.0, 1.0, 1.0], [2.0, 0.0, 1.0, 3.0])
    one, two = (row_identities(_open(str(tmp_path / f"{name}.parquet"), key=None)) for name in ("one", "two"))
    assert len(set(one.tolist())) == 3
    assert np.isin(two, one).tolist() == [True, True, True, False]


def test_chosen_rows_are_a_split_with_the_same_rows(tmp_path: Path) -> None:
    keys = [f"k{row}" for row in range(10)]
    _write(tmp_path / "all.parquet", keys, np.arange(10.0).tolist(), np.arange(10.0).tolist())
    whole = _open(str(tmp_path / "all.parquet"), shard_rows=3)
    numbers = np.array([1, 4, 9])
    part = open_split(split_of_rows(whole, numbers, tmp_path / "part.parquet", "part"))
    assert list(part.keys_of(part.shards)) == ["k1", "k4", "k9"]
    np.testing.assert_array_equal(row_identities(part), row_identities(whole)[numbers])
    assert part.digest == open_split(split_of_rows(whole, numbers, tmp_path / "again.parquet", "part")).digest
