"""Groups, times, weights and exposures of a split: read with its rows, checked before any work, part of its digest."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features

from congruence.tasks.data.split import Split, open_split
from congruence.tasks.runtime.errors import SplitError

ROWS = 60
NAMED = {"groups": "patient", "time": "seen", "weight": "w", "exposure": "years"}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "x": rng.normal(size=ROWS),
            "y": rng.poisson(1.0, ROWS),
            "patient": [f"p{row // 3}" for row in range(ROWS)],
            "seen": pd.date_range("2024-01-01", periods=ROWS, freq="h"),
            "w": np.where(np.arange(ROWS) % 4 == 0, 0.0, 1.5),
            "years": rng.uniform(0.1, 1.0, ROWS),
        }
    )


def opened(folder: Path, rows: pd.DataFrame, form: str = "parquet", **changes: Any) -> Split:
    folder.mkdir(exist_ok=True, parents=True)
    for number in range(2):
        part = rows.iloc[number * len(rows) // 2 : (number + 1) * len(rows) // 2]
        if form == "parquet":
            part.to_parquet(folder / f"{number}.parquet", index=False)
        else:
            part.to_csv(folder / f"{number}.csv", index=False)
    return open_split(of_features(folder, ["x"], **{"shard_rows": 16, **NAMED} | changes))


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_the_columns_of_any_rows_are_those_of_the_whole(tmp_path: Path, form: str) -> None:
    rows = table()
    split = opened(tmp_path / "rows", rows, form)
    whole = split.design()
    assert whole.groups.dtype == np.int64
    assert np.array_equal(whole.groups[:, None] == whole.groups, np.equal.outer(*[rows["patient"].to_numpy()] * 2))
    assert np.array_equal(np.diff(whole.time), np.full(ROWS - 1, 3600 * 10**6))
    np.testing.assert_array_equal(whole.weight, rows["w"])
    np.testing.assert_array_equal(whole.exposure, rows["years"])
    some = split.design([split.shards[1], split.shards[3]])
    chosen = np.r_[16:32, 48:60]
    for role, values in vars(some).items():
        np.testing.assert_array_equal(values, getattr(whole, role)[chosen])


def test_a_column_may_be_an_input_as_well_and_numbers_are_groups_and_times(tmp_path: Path) -> None:
    rows = table().assign(patient=np.arange(ROWS) // 3, seen=np.arange(ROWS) / 2.0)
    found = opened(tmp_path / "rows", rows, input=["x", "years"]).design()
    assert len(np.unique(found.groups)) == 20
    np.testing.assert_array_equal(found.time, rows["seen"])
    np.testing.assert_array_equal(found.exposure, rows["years"])


def test_what_is_named_is_in_the_digest(tmp_path: Path) -> None:
    rows = table()
    digests = {
        opened(tmp_path / "rows", rows, **changes).digest
        for changes in (
            dict.fromkeys(NAMED),
            {},
            {"weight": None},
            {"weight": "years", "exposure": "w"} | {"exposure": None},
            {"groups": None},
        )
    }
    assert len(digests) == 5
    heavier = opened(tmp_path / "other", rows.assign(w=rows["w"] + (np.arange(ROWS) == 7)))
    assert heavier.digest not in digests
    assert of_features("a", ["x"]).design_columns == {}
    assert opened(tmp_path / "rows", rows, **dict.fromkeys(NAMED)).design().weight is None


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("w", -1.0, "column 'w' (weight) is -1; give a finite number of at least 0"),
        ("w", None, "column 'w' (weight) is empty; give every row a weight"),
        ("w", np.inf, "column 'w' (weight) is inf; give a finite number"),
        ("years", 0.0, "column 'years' (exposure) is 0; give a finite number above 0"),
        ("patient", None, "column 'patient' (groups) is empty; say which rows it belongs to"),
        ("seen", None, "column 'seen' (time) is empty; give every row a time"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_row(tmp_path: Path, column: str, value: Any, said: str) -> None:
    rows = table()
    rows[column] = rows[column].astype(object)
    rows.loc[41, column] = value
    with pytest.raises(SplitError, match=r"1\.parquet, row 11") as raised:
        opened(tmp_path / "rows", rows)
    assert said in str(raised.value)


def test_columns_that_cannot_be_what_they_are_named_are_refused(tmp_path: Path) -> None:
    rows = table().assign(none=0.0)
    for changes, said in (
        ({"weight": "none"}, "column 'none' (weight) is 0 in all 60 rows; at least one row must count"),
        ({"weight": "patient"}, "column 'patient' (weight) holds "),
        ({"exposure": "y"}, "column 'y' (exposure) is the target; name another column"),
        ({"slices": ["patient", "y"]}, "column 'y' (slices) is the target; name another column"),
        ({"input": ["x", "y"]}, "column 'y' (input) is the target; name another column"),
        ({"groups": "patiens"}, "there is no column 'patiens' (groups); did you mean 'patient'?"),
        ({"time": "patient"}, "column 'patient' (time) is 'p0', no ISO 8601 time such as 2024-05-31"),
    ):
        with pytest.raises(SplitError) as raised:
            opened(tmp_path / "rows", rows, **changes)
        assert said in str(raised.value)


def test_the_index_knows_how_many_rows_the_weights_are_worth(tmp_path: Path) -> None:
    total, squares = opened(tmp_path / "rows", table()).facts.weights
    assert total**2 / squares == pytest.approx(45.0)
