"""One rule for rows that lack a number: left out and said; what cannot be measured is refused before any work."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import encoder_inputs, of_features

from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.evaluate.evaluation import index
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import with_statistics
from congruence.tasks.runtime.errors import SplitError, TooManyInvalidRowsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import EncoderSettings

ROWS = 600


def opened(folder: Path, frame: pd.DataFrame, files: int = 2, **changes: Any) -> Split:
    folder.mkdir(exist_ok=True)
    cut = len(frame) // files
    for number in range(files):
        stop = len(frame) if number == files - 1 else (number + 1) * cut
        frame[number * cut : stop].to_parquet(folder / f"{number}.parquet", index=False)
    return open_split(of_features(folder, **{"inputs": ["a", "b"], "shard_rows": 100} | changes))


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({"a": rng.normal(size=rows), "b": rng.normal(size=rows), "y": rng.normal(size=rows)})


def reasons(split: Split, **options: Any) -> dict[int, str]:
    """Why rows cannot be used, by their numbers in the split."""
    of_shards = ((shard.start, split.features(shard, **options)[1]) for shard in split.shards)
    return {start + row: reason for start, found in of_shards for row, reason in found.items()}


def test_rows_that_lack_a_feature_or_a_target_are_left_out_alike_and_said(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[[17, 399], "a"] = [np.nan, np.inf]
    rows.loc[[18, 400], "y"] = [np.nan, np.inf]
    rows.loc[[399, 400], "b"] = np.nan
    split = opened(tmp_path / "split", rows)
    said = split.require_measurable()
    assert "4 of 600 rows lack a finite number and are left out (2 in the features, 2 in the targets)" in said
    assert f"row 17 ({tmp_path}/split/0.parquet, row 17): feature 'a' is nan" in said
    assert f"row 18 ({tmp_path}/split/0.parquet, row 18): target 'y' is nan, not a finite number" in said
    assert f"row 399 ({tmp_path}/split/1.parquet, row 99)" in said
    assert said.endswith("and 1 more")
    read = [row for shard in split.shards for row in encoder_inputs(split, shard)]
    invalid = {number: row.reason for number, row in enumerate(read) if isinstance(row, InvalidRow)}
    assert sorted(invalid) == [17, 18, 399, 400]
    assert invalid[399] == "feature 'a' is inf, and 1 more"
    assert invalid[400] == "target 'y' is inf, not a finite number"
    assert reasons(split) == invalid
    assert opened(tmp_path / "whole", frame()).require_measurable() is None


@pytest.mark.parametrize(("column", "why"), [("y", "target 'y' is nan"), ("b", "feature 'b' is nan")])
def test_a_column_without_any_value_is_named_before_features_are_standardised(
    tmp_path: Path, column: str, why: str
) -> None:
    split = opened(tmp_path / "split", frame().assign(**{column: np.nan}))
    with pytest.raises(SplitError, match=rf"no row has all its features and a finite target, .*because {why}"):
        with_statistics(EncoderSettings(kind="identity"), split)


def test_a_target_that_is_repaired_gives_its_shard_another_digest(tmp_path: Path) -> None:
    """Else the store would go on calling the row invalid."""
    rows = frame()
    whole = opened(tmp_path / "whole", rows)
    rows.loc[150, "y"] = np.nan
    lacking = opened(tmp_path / "lacking", rows)
    assert [a == b for a, b in zip(whole.shards, lacking.shards, strict=True)] == [True, False, *[True] * 4]


def test_too_many_rows_without_a_number_are_refused_before_embedding(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[:6, "y"] = np.nan
    split = opened(tmp_path / "split", rows)
    with pytest.raises(
        TooManyInvalidRowsError,
        match=r"split 'test': 7 of 600 rows .*row 0 .*row 1 .*row 2 .*and 4 more; at most 1.00%",
    ):
        split.require_measurable()
    assert split.require_measurable(0.02) is not None


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (frame(1), {}, r"split 'test' \(.*\): holds 1 row, of which 1 can be used; .*at least two"),
        (frame().assign(y=3.0), {}, r"split 'test' \(.*\), .*0\.parquet, row 0 .*the target 'y' is 3 in every row"),
        (frame().assign(y=3.0, z=1), {"target": ["y", "z"]}, r"the target 'y' is 3, 'z' is 1 in every row"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    rows: pd.DataFrame, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    split = opened(tmp_path / "split", rows, files=1, **changes)
    with pytest.raises(SplitError, match=message):
        split.require_measurable()


def test_one_of_several_targets_may_be_constant(tmp_path: Path) -> None:
    assert opened(tmp_path / "split", frame().assign(z=1.0), target=["y", "z"]).require_measurable() is None
    assert opened(tmp_path / "inputs", frame(), target=None).require_measurable() is None


def test_rows_that_lack_a_feature_stay_where_the_encoder_takes_them(tmp_path: Path) -> None:
    rows = frame()
    rows.loc[:119, "a"] = np.nan
    rows.loc[[18, 400], "y"] = np.nan
    rows.loc[500, "b"] = np.inf
    split = opened(tmp_path / "split", rows)
    with pytest.raises(TooManyInvalidRowsError, match=r"122 of 600.*set missing: mean \(or indicator\) under encoder"):
        split.require_measurable()
    said = split.require_measurable(missing="indicator")
    left_out, staying = said.splitlines()
    assert "3 of 600 rows lack a finite number and are left out (1 in the features, 2 in the targets)" in left_out
    assert "119 of 600 rows lack a feature and stay: the models are given them as they are" in staying
    assert "a feature that is 1 where it is missing (encoder.missing: indicator): row 0 (" in staying
    assert staying.endswith("feature 'a' is nan; and 116 more")
    assert sorted(reasons(split, missing=True)) == [18, 400, 500]


def test_a_vector_that_is_too_short_lacks_no_values(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0]] * 10 + [[3.0], [np.nan, 1.0]]
    split = opened(tmp_path / "split", pd.DataFrame({"v": vectors, "y": np.arange(12.0)}), 1, inputs="v")
    assert split.features(split.shards[0], missing=True)[1] == {10: "the features have shape (1,); expected (2,)"}


def test_one_large_file_is_announced_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congruence.tasks.evaluate.evaluation.MOST_BYTES_IN_SILENCE", 1000)
    frame().to_csv(tmp_path / "rows.csv", index=False)
    split = of_features(tmp_path / "rows.csv", ["a", "b"])
    content = {"models": ["m"], "splits": [split], "encoder": {"kind": "identity"}, "home": str(tmp_path / "home")}
    settings, said = EvaluationSettings.model_validate(content), list[str]()
    for _ in range(2):  # read once, kept then
        index(settings, settings.splits[0], LocalExecutor, Observer(said.append))
    assert said == ["reading test: one file of 0.0 GiB, from end to end"]
