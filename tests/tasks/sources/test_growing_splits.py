"""Splits that come day by day: dates in the names of files, the window, and some of their rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features
from pydantic import ValidationError

from congruence.tasks.data.settings import DatedPath
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import dates_of, split_of_rows
from congruence.tasks.runtime.errors import SplitError


def _write(path: Path, keys: list[str] | None, x: list[float], y: list[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {"x": x, "y": y}
    pd.DataFrame(columns if keys is None else columns | {"key": keys}).to_parquet(path)


def _open(uri: str, **changes: Any) -> Split:
    return open_split(of_features(uri, ["x"], key="key", **changes))


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
    assert (window.period, everything.period) == ("2026-03-01/2026-03-02", "2026-02-27/2026-03-02")
    assert [str(day) for day in dates_of(window.settings)] == ["2026-03-01", "2026-03-02"]
    between = _open(f"{tmp_path}/{form}", since="2026-02-28", until="2026-03-01")
    assert (between.rows, between.period) == (6, "2026-02-28/2026-03-01")
    assert between.digest != window.digest
    assert _open(f"{tmp_path}/{form}", last="1 week").rows == 12
    assert {key[:10] for key in window.keys().tolist()} == {"2026-03-01", "2026-03-02"}


def test_a_name_without_a_date_is_refused_by_name(tmp_path: Path) -> None:
    _write(tmp_path / "day=2026-03-01" / "a.parquet", ["a"], [1.0], [1.0])
    _write(tmp_path / "day=2026-13-01" / "a.parquet", ["b"], [1.0], [1.0])
    with pytest.raises(SplitError, match="day=2026-13-01"):
        _open(f"{tmp_path}/day={{date}}/*.parquet")
    with pytest.raises(SplitError, match="names no day"):
        DatedPath.of("month={date:%Y-%m}/*.parquet")
    with pytest.raises(ValidationError, match="no \\{date\\}"):
        _open(f"{tmp_path}/*.parquet", last="3 days")
    with pytest.raises(ValidationError, match="new_dates_only: uri has no \\{date\\}"):
        _open(f"{tmp_path}/*.parquet", new_dates_only=True)
    with pytest.raises(ValidationError, match="30 days"):
        _open(f"{tmp_path}/day={{date}}/*.parquet", last="a month")


def test_chosen_rows_are_a_split_with_the_same_rows(tmp_path: Path) -> None:
    keys = [f"k{row}" for row in range(10)]
    _write(tmp_path / "all.parquet", keys, np.arange(10.0).tolist(), np.arange(10.0).tolist())
    whole = _open(str(tmp_path / "all.parquet"), shard_rows=3)
    numbers = np.array([1, 4, 9])
    part = open_split(split_of_rows(whole, numbers, tmp_path / "part.parquet", "part"))
    assert list(part.keys()) == ["k1", "k4", "k9"]
    assert part.targets().tolist() == [1.0, 4.0, 9.0]
    assert part.digest == open_split(split_of_rows(whole, numbers, tmp_path / "again.parquet", "part")).digest
