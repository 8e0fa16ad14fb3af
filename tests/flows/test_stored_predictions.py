"""Predictions that production stored, with labels that came later, judged without the models that made them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.special import ndtr, ndtri
from stored_table import content, predict, requests, scored, write

from congruence.flows.operations.compare import compare, compare_stored
from congruence.flows.operations.gate import gate as judge
from congruence.flows.operations.gate import gate_outcomes
from congruence.flows.operations.listing import report_address
from congruence.flows.operations.score_inputs import score
from congruence.flows.operations.validate import validate
from congruence.kernels.distributions import Histogram, Samples
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.data import usable
from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.mlflow.reading import list_evaluations, read_scores, read_version
from congruence.tasks.runtime.errors import SettingsError, TooManyInvalidRowsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import TrackingSettings


def run(given: dict[str, Any], home: Path) -> tuple[list[VersionOutcome], list[str]]:
    said: list[str] = []
    plan = Plan(EvaluationSettings.model_validate({**given, "home": str(home)}))
    return evaluate(plan, LocalExecutor, Observer(said.append)), said


def log_law(rows: pd.DataFrame) -> None:
    example = rows[["x1", "x2"]].head(2)
    log_predictive_model(predict, name="law", family="normal", input_example=example, registered_model_name="law")


def test_the_numbers_are_those_of_the_model_by_its_own_address(tmp_path: Path, home: Path) -> None:
    rows = requests()
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    log_law(rows)
    given = content(tmp_path)
    split = {**given["splits"][0], "uri": str(tmp_path / "rows.parquet"), "key": "request", "target": "y"}
    (by_model,), _ = run({**given, "predictions": None, "splits": [split], "models": ["law"]}, home)
    write(tmp_path, rows, scored(rows, "1"))
    (stored,), said = run(given, home)
    assert [by_model.status, stored.status] == ["evaluated", "evaluated"]
    assert stored.metrics.keys() == by_model.metrics.keys()
    for name, metric in stored.metrics.items():
        assert metric == by_model.metrics[name], name
    assert stored.wrong == by_model.wrong
    frames = [read_scores(str(outcome.run_id)) for outcome in (by_model, stored)]
    pd.testing.assert_frame_equal(*frames)
    assert said[0] == "production: 300 of 300 stored predictions are evaluated"
    again, _ = run(given, home)
    assert [(outcome.label, outcome.status) for outcome in again] == [("1", "found")]
    with pytest.raises(SettingsError, match="`congruence score` asks models, and stored predictions bring none"):
        score(EvaluationSettings.model_validate(given), "stored:1", str(tmp_path / "rows.parquet"))


def test_versions_that_mlflow_has_get_their_tags(tmp_path: Path, home: Path) -> None:
    rows = requests(60)
    log_law(rows)
    write(tmp_path, rows, scored(rows, "v1"), scored(rows, "v2", 2.0))
    given = content(tmp_path)
    given["predictions"]["model"] = "law"
    outcomes, _ = run(given, home)
    assert [outcome.label for outcome in outcomes] == ["law/1", "law v2"]
    version = mlflow.MlflowClient().get_model_version("law", "1")
    assert version.tags["cce_run"] == outcomes[0].run_id
    tracking = TrackingSettings(uri=mlflow.get_tracking_uri())
    listed = {item.model.label: len(item.evaluations) for item in list_evaluations([], tracking)}
    assert listed == {"law/1": 1, "law v2": 1}
    assert [item.model.uri for item in list_evaluations(["law v?"], tracking)] == ["stored:law v2"]
    with pytest.raises(SettingsError, match="law v2 on production: its run holds no report"):
        report_address("law v2", None, tracking)
    found = compare("production", ["models:/law/1", "law v2"], tracking, baseline="law v2")
    assert [version.label for version in found.comparison.versions] == ["law/1", "law v2"]
    assert found.comparison.baseline.label == "law v2"


def test_quantiles_are_read_by_the_names_of_their_columns(tmp_path: Path, home: Path) -> None:
    rows = requests(80)
    levels = {"q0.1": -1.2816, "q0.5": 0.0, "q0.9": 1.2816}
    table = rows.drop(columns="y").assign(y=rows["y"].where(rows.index < 60), other="text")
    for name, z in levels.items():
        table[name] = rows["x1"] + z * (0.5 + rows["x2"])
    table.to_parquet(tmp_path / "inference.parquet", index=False)
    given = content(tmp_path, predictions={"from": str(tmp_path / "inference.parquet"), "key": "request"})
    given["splits"][0]["target"] = "y"
    (outcome,), said = run(given, home)
    assert (outcome.label, outcome.status) == ("predictions", "evaluated")
    assert said[0] == "production: 60 of 80 stored predictions are evaluated; 20 have no label yet"
    scores = read_scores(str(outcome.run_id))
    assert scores["mean"].iloc[0] == pytest.approx(rows["x1"].iloc[0], abs=0.05)
    tracking = TrackingSettings(uri=mlflow.get_tracking_uri())
    assert read_version(str(outcome.run_id), tracking).stated == "quantiles"


NORMAL = ndtri(np.arange(0.5, 20) / 20)
BORDERS = [-9.0, -3.0, -1.0, 0.0, 1.0, 3.0, 9.0]
KINDS: dict[str, tuple[dict[str, Any], Callable[[pd.DataFrame], dict[str, Any]], Callable[[dict[str, Any]], Any]]] = {
    "draws in numbered columns": (
        {"family": "samples"},
        lambda law: {f"values_{k}": law["loc"] + z * law["scale"] for k, z in enumerate(NORMAL)},
        lambda stored: Samples(np.column_stack(list(stored.values()))),
    ),
    "draws in a column of lists": (
        {"family": "samples", "columns": {"values": "drawn"}},
        lambda law: {"drawn": list(np.add.outer(np.zeros(len(law)), NORMAL) * law[["scale"]].to_numpy())},
        lambda stored: Samples(np.stack(stored["drawn"])),
    ),
    "a histogram": (
        {"family": "histogram", "borders": BORDERS},
        lambda law: {
            f"probabilities_{k}": share
            for k, share in enumerate(np.diff(ndtr(np.subtract.outer(BORDERS, law["loc"].to_numpy())), axis=0))
        },
        lambda stored: Histogram(np.array(BORDERS), np.column_stack(list(stored.values()))),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_of_any_kind_are_read_as_those_of_models_are(kind: str, tmp_path: Path, home: Path) -> None:
    said, columns, law = KINDS[kind]
    rows = requests(80)
    stored = columns(predict(rows))
    written = rows[["request", "x1", "x2"]].assign(version="v1", other=1.0, **stored)
    write(tmp_path, rows.assign(y=rows["y"].clip(-8.9, 8.9)), written)
    given = content(tmp_path, metrics=["cce", "crps"])
    del given["predictions"]["family"], given["predictions"]["columns"]
    given["predictions"] |= said
    (outcome,), _ = run(given, home)
    assert outcome.status == "evaluated", outcome.error
    scores = read_scores(str(outcome.run_id))
    np.testing.assert_allclose(scores["crps"], law(stored).crps(scores["target"].to_numpy()), rtol=1e-5)


PICTURES: dict[str, Any] = {
    "splits": [{"name": "production", "input": "photo", "input_kind": "image"}],
    "encoder": {"kind": "statistics"},
}


def photographed(folder: Path) -> tuple[pd.DataFrame, pd.Series]:
    """Requests, and the paths of their pictures below the folder."""
    rows = requests(60)
    paths = "photos/" + rows["request"] + ".png"
    (folder / "photos").mkdir()
    for path, x in zip(paths, rows["x2"], strict=True):
        Image.new("RGB", (8, 8), (int(255 * x), 0, 0)).save(folder / path)
    return rows, paths


@pytest.mark.parametrize("where", ["paths", "bytes"])
def test_pictures_whose_predictions_were_stored_are_embedded_where_they_lie(
    where: str, tmp_path: Path, home: Path
) -> None:
    rows, paths = photographed(tmp_path)
    photos = paths if where == "paths" else [(tmp_path / path).read_bytes() for path in paths]
    write(tmp_path, rows, scored(rows[:40], "v1").assign(photo=photos[:40]), scored(rows, "v2").assign(photo=photos))
    given = content(tmp_path, **PICTURES, metrics=["cce", "crps"])
    outcomes, _ = run(given, home)
    assert [(outcome.label, outcome.split, outcome.status) for outcome in outcomes] == [
        ("v1", "production", "evaluated"),
        ("v2", "production", "evaluated"),
        ("v1", "production-shared-v1-v2", "evaluated"),
        ("v2", "production-shared-v1-v2", "evaluated"),
    ]
    assert {len(read_scores(str(outcome.run_id))) for outcome in outcomes} == {40, 60}


def test_pictures_that_are_not_there_are_told_before_the_work(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, paths = photographed(tmp_path)
    write(tmp_path, rows, scored(rows, "v1").assign(photo=paths))
    (tmp_path / "photos" / "r7.png").unlink()
    (tmp_path / "photos" / "r9.png").write_bytes(b"no picture")
    given = content(tmp_path, home=str(home), **PICTURES)
    with pytest.raises(TooManyInvalidRowsError, match=r"(?s)2 of 60 .*row 7 .*does not exist.*row 9 .*not an image"):
        validate(EvaluationSettings.model_validate(given))
    monkeypatch.setattr(usable, "LOOKED_AT", 20)  # every third row, so that the ninth stands for three
    found = validate(EvaluationSettings.model_validate(given | {"max_invalid": 0.1}))
    assert [(version.label, version.status) for version in found.versions] == [("v1", "to do")]
    assert "split 'production': about 4 of 60 rows have no picture (6.67%) and are left out:" in found.notes


def test_versions_are_judged_on_their_own_rows_and_compared_on_those_that_they_share(
    tmp_path: Path, home: Path
) -> None:
    rows = requests(500)
    early, late, shadowed = rows[:200], rows[200:], rows[350:]
    write(tmp_path, rows, scored(early, "v1"), scored(late, "v2"), scored(shadowed, "v3", 0.4))
    gate = {"baseline": "v2", "not_worse_on": ["nll_mean"]}
    given = content(tmp_path, gate=gate)
    settings = EvaluationSettings.model_validate({**given, "home": str(home)})
    outcomes, _ = run(given, home)
    shared = "production-shared-v2-v3"
    assert {(outcome.label, outcome.split): outcome.status for outcome in outcomes} == {
        ("v1", "production"): "evaluated",
        ("v2", "production"): "evaluated",
        ("v3", "production"): "evaluated",
        ("v2", shared): "evaluated",
        ("v3", shared): "evaluated",
    }
    runs = {(each.label, each.split): read_scores(str(each.run_id)) for each in outcomes}
    assert list(runs["v2", "production"]["key"]) == list(late["request"])
    one, two = runs["v2", shared], runs["v3", shared]
    assert list(one["key"]) == list(two["key"]) == list(shadowed["request"])
    assert (one["target"] == two["target"]).all()
    assert two["nll"].mean() > one["nll"].mean()
    only, _ = run(content(tmp_path, models=["v1"]), home)
    assert [(outcome.label, outcome.split) for outcome in only] == [("v1", "production")]
    with pytest.raises(SettingsError, match="v9: no labelled row is of this version; the versions are v1, v2, v3"):
        run(content(tmp_path, models=["v9"]), home)
    (paired,) = compare_stored(settings, ["v3", "v2"])
    assert paired.comparison.split.name == shared
    of_both = compare_stored(settings, ["v3"], baseline="v2")[0].comparison.pairs["v3"]
    assert of_both.rows == 150
    assert of_both.differences["nll_mean"].low > 0.0
    assert "cce_mean" in of_both.differences
    (apart,) = compare_stored(settings, ["v1"], baseline="v2")
    pair = apart.comparison.pairs["v1"]
    assert "judged on different rows (200 and 300)" in pair.notes[0]
    for name in ("nll_mean", "cce_mean"):
        assert pair.differences[name].low < 0.0 < pair.differences[name].high
    assert len(compare_stored(settings, [])) == 2  # each against the first version
    against = compare_stored(settings, [], baseline="v2")
    assert [[*each.comparison.pairs] for each in against] == [["v1"], ["v3"]], "the others are compared, too"
    decided = {decision.candidate.label: decision for decision in gate_outcomes(settings, outcomes)}
    assert decided["v3"].outcome == "failed"
    assert shared in decided["v3"].reasons[0]
    assert decided["v1"].outcome in ("undecided", "passed")
    assert "nll_mean" in decided["v1"].reasons[0]
    assert "each on rows of its own" in decided["v1"].reasons[0]
    again = {decision.candidate.label: decision.outcome for decision in judge(settings)}
    assert again == {label: decision.outcome for label, decision in decided.items()}
