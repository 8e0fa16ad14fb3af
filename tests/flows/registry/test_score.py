"""New inputs scored by a labelled split: the wrong half and pictures of another kind are withheld."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from PIL import Image

from congruence.flows.operations import score_inputs
from congruence.flows.operations.score_inputs import ScoredInputs, print_scores, score
from congruence.kernels.trust.judgement import CCE, SPREAD, SUPPORT
from congruence.tasks.digits.dataset import encode_png, write_digits
from congruence.tasks.mlflow.comparisons import log_reliability
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.reliability import TABLE
from congruence.tasks.sentences.inputs import withholding_sentence
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

LAW = {"protocol": {"base": "exact", "regularization": 0.01}}


@pytest.fixture(scope="module")
def scored(registry: Any, rows_file: Callable[..., Path], prefect_server: None) -> ScoredInputs:
    """The right half of the law is shifted by 4, which the model does not know; new inputs with labels."""
    rows_file(registry.split, seed=0, rows=300, shift=4.0)
    inputs = rows_file(registry.folder / "new.parquet", seed=1, rows=200, shift=4.0)
    return score(registry.settings(**LAW), registry.register(), str(inputs))


def test_every_input_is_scored_and_the_wrong_half_withheld(scored: ScoredInputs) -> None:
    scores = pd.read_parquet(scored.folder / "scores.parquet")
    assert len(scores) == 200
    assert tuple(scores.columns[:8]) == TABLE
    assert scores[["support_p_value", "effective_rows", "mean", "std"]].notna().all().all()
    usual = scores["support_p_value"] > 0.01
    assert scores.loc[usual, ["cce", "cce_expected", "cce_p_value"]].notna().all().all()
    withheld = scores["withhold"]
    right = scores["half"] == "right"
    assert withheld[right].mean() > 0.9
    assert (withheld & usual)[~right].mean() < 0.1
    assert withheld.sum() == scored.reliability.withheld
    assert scores.loc[right, "cce"].median() > 2 * scores.loc[~right, "cce"].median()
    reasons = scores.loc[withheld & usual & right, "reason"]
    assert reasons.str.contains("predicted spreads above the predictions").mean() > 0.9
    assert scores.loc[~withheld, "reason"].eq("").all()
    table = pd.read_csv(scored.folder / "scores.csv")
    assert tuple(table.columns) == TABLE
    assert table["withhold"].tolist() == withheld.tolist()
    assert withholding_sentence(scored.reliability.judgement).startswith("Withholding where the version is wrong helps")


def test_losses_fall_when_the_worst_are_withheld(scored: ScoredInputs) -> None:
    curves = scored.reliability.curves
    assert set(curves) == {"absolute_error", "nll", "crps"}
    for curve in curves.values():
        half = int(np.argmin(np.abs(curve.withheld - 0.5)))
        assert curve.kept_loss[half] < curve.random_low[half]
    summary = json.loads((scored.folder / "summary.json").read_text())
    assert summary["withheld"] == scored.reliability.withheld
    assert summary["rejection_gain"]["nll"] > 0.2
    assert {path.name for path in scored.folder.glob("*.png")} == {"risk-coverage.png", "rejection.png"}
    page = (scored.folder / "report.html").read_text()
    assert "should be withheld" in page
    assert page.index("Withholding where the version is wrong helps") < page.index("should be withheld")
    drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [panel["loss"] for panel in drawn["labelled"]] == list(scored.reliability.judgement.curves)
    assert {line["name"] for line in drawn["labelled"][0]["lines"]} == {CCE, SPREAD, SUPPORT}
    assert [panel["loss"] for panel in drawn["inputs"]] == ["absolute error", "NLL", "CRPS"]
    assert '<table class="sorts" id="withheld">' in page
    assert "<img" not in page


def test_what_most_inputs_are_withheld_for_is_said(scored: ScoredInputs, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 300 inputs of a city in capitals ten were listed, and 290 more."""
    found = scored.reliability
    why = [f"cos {row}.5: the split holds -1 to 1; nearest rows {row}, 2" for row in range(len(found.scores))]
    alike = replace(found, scores=found.scores.assign(withhold=np.arange(len(why)) > 4, reason=why))
    print_scores(replace(scored, reliability=alike))
    said = capsys.readouterr().out
    assert "and 185 more, most often (185 of them): cos: the split holds -1 to 1\n" in said
    assert all(f"\n{loss} of the new inputs: " in said for loss in ("MAE", "NLL", "CRPS"))


def test_mlflow_has_the_same_once(registry: Any, scored: ScoredInputs) -> None:
    client = MlflowClient()
    run = client.get_run(scored.run_id)
    assert client.get_experiment(run.info.experiment_id).name == "congruence/new-inputs"
    found = scored.reliability
    assert run.info.status == "FINISHED"
    assert run.data.params["inputs_digest"] == found.inputs.digest
    assert run.data.params["reference"] == "circle"
    metrics, scores = run.data.metrics, found.valid_scores
    assert metrics["withheld_share"] == found.withheld / 200
    assert metrics["withholding_helps"] == 1.0
    assert run.data.params["rule"] == "unusual at 1 %, wrong at a false discovery rate of 5 %"
    assert metrics["mae_kept"] == scores.loc[~scores["withhold"].astype(bool), "absolute_error"].mean()
    assert metrics["mae_kept"] < 0.8 * metrics["mae"]
    assert metrics["nll_mean_rejection_gain"] > 0.2
    folders = (None, "plots", "tables")
    files = {item.path for folder in folders for item in client.list_artifacts(run.info.run_id, folder)}
    assert files >= {
        "scores.parquet", "report.html", "scores.csv", "plots/rejection.png", "plots/risk-coverage.png",
        "tables/points.json", "tables/rejection.json", "tables/risk_coverage.json",
    }  # fmt: skip
    assert {item.dataset.name for item in run.inputs.dataset_inputs} == {"circle", "inputs"}
    paths = [scored.folder / "report.html"]
    assert log_reliability(found, paths, registry.settings().tracking).run_id == scored.run_id
    assert scored.run_id in scored.place
    assert "congruence ui" in scored.place


@pytest.mark.usefixtures("scored")
def test_unlabelled_inputs_get_the_same_numbers_from_the_command(registry: Any, scored: ScoredInputs) -> None:
    bare = registry.folder / "bare.parquet"
    frame = pd.read_parquet(registry.folder / "new.parquet").drop(columns=["y", "half"])
    frame.loc[3, "cos"] = np.nan
    frame.to_parquet(bare)
    file, output = registry.file(**LAW), registry.folder / "output"
    shown = registry.run("score", file, "-m", "angle/1", "--inputs", bare, "--output", output, "--no-log")
    assert "199 of 200" in shown.output
    assert "1 row is left out of 200" in shown.output
    assert "in MLflow" not in shown.output
    scores, labelled = pd.read_parquet(output / "scores.parquet"), pd.read_parquet(scored.folder / "scores.parquet")
    assert "cos" in scores.loc[3, "reason"]
    kept = scores["valid"]
    assert scores.loc[3, "withhold"]
    np.testing.assert_allclose(scores.loc[kept, "cce"], labelled.loc[kept, "cce"], rtol=1e-6)
    assert not (output / "rejection.png").exists()


@pytest.mark.usefixtures("scored")
def test_an_input_without_its_whole_number_is_left_out_and_the_others_are_scored(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One missing integer makes floating-point numbers of a column, which a model that takes integers refuses."""

    def predict(frame: pd.DataFrame) -> pd.DataFrame:
        assert frame["part"].dtype.kind == "i"
        return pd.DataFrame({"loc": 2.0 * frame["angle"], "scale": 1.0})

    registry.log(predict, "whole", pd.DataFrame({"angle": [0.1, 0.2], "part": [1, 2]}))
    split = registry.content()["splits"][0] | {"uri": str(registry.folder / "whole.parquet")}
    rows = pd.read_parquet(registry.split).assign(part=lambda frame: np.arange(len(frame)) % 5)
    rows.to_parquet(registry.folder / "whole.parquet")
    rows = rows.iloc[:60].assign(part=lambda frame: frame["part"].where(np.arange(60) != 7))
    settings = registry.settings(**LAW, splits=[split | {"model_inputs": ["angle", "part"]}])
    line, left_out = without_a_row(settings, "whole/1", rows, monkeypatch)
    assert "lacking.parquet, row 7: model input 'part' is missing" in line
    assert left_out.name == 7
    assert "'part' is missing" in left_out["reason"]


def without_a_row(
    settings: EvaluationSettings, version: str, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Any]:
    """What is said of sixty new rows of which one is left out, and what the table has of that row."""
    rows.to_parquet(settings.home_folder / "lacking.parquet")
    lines: list[str] = []
    monkeypatch.setattr(score_inputs, "say", lines.append)
    made = score(settings, version, str(settings.home_folder / "lacking.parquet"), log=False)
    assert "1 row is left out of 60" in lines[0]
    scores = pd.read_parquet(made.folder / "scores.parquet")
    (place,) = np.flatnonzero(~scores["valid"])
    return lines[0], scores.loc[place]


@pytest.mark.usefixtures("scored")
def test_inputs_that_cannot_be_scored_are_refused_with_what_they_lack(registry: Any) -> None:
    frame = pd.read_parquet(registry.folder / "new.parquet")
    wrong = registry.folder / "wrong.parquet"

    def said(inputs: Path, *more: str) -> str:
        shown = registry.run("score", registry.file(**LAW), "-m", "angle/1", "--inputs", inputs, *more, status=2)
        return shown.output

    frame.drop(columns="sin").to_parquet(wrong)
    assert "sin" in said(wrong)
    frame.drop(columns="angle").to_parquet(wrong)
    assert "angle" in said(wrong)
    assert "nowhere.parquet" in said(registry.folder / "nowhere.parquet")
    assert "no split 'other'; there are circle" in said(wrong, "--split", "other")


def test_a_labelled_split_needs_its_target(registry: Any) -> None:
    content = registry.content()
    del content["splits"][0]["target"]
    with pytest.raises(SettingsError, match="split 'circle' has no target"):
        load_settings(registry.file(splits=content["splits"]))
    with pytest.raises(SettingsError, match="no split 'other'; there are circle"):
        score.fn(registry.settings(), "angle/1", "nowhere", split="other")


def test_a_share_is_a_rule_and_other_words_are_none(registry: Any) -> None:
    assert load_settings(registry.file(**LAW, withhold="5 %")).withhold == "5 %"
    with pytest.raises(SettingsError, match="expected a share inside"):
        load_settings(registry.file(**LAW, withhold="a lot"))


@pytest.mark.usefixtures("scored")
def test_an_embedding_of_zeros_is_withheld_and_stops_nothing(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.read_parquet(registry.folder / "new.parquet").iloc[:60].drop(columns=["y", "half"])
    frame.loc[5, ["cos", "sin"]] = 0.0
    settings = registry.settings(**LAW, encoder={"kind": "identity", "standardise": False, "dimension": 2})
    _, left_out = without_a_row(settings, "angle/1", frame, monkeypatch)
    assert left_out.name == 5
    assert left_out["withhold"]
    assert "all zeros and has no direction" in left_out["reason"]


ORDINARY, STRANGE = 120, 8


def _predict(frame: pd.DataFrame) -> pd.DataFrame:
    sizes = {Image.open(io.BytesIO(image)).size for image in frame["image"]}
    if sizes - {(64, 64)}:
        raise ValueError("expected 64 x 64 pixels")
    return pd.DataFrame({"loc": frame["angle"], "scale": 5.0 + 2.5 * frame["digit"]})


def _strange() -> pd.DataFrame:
    """Noise, blanks, a slope of grey, pictures of a size that the version refuses, and one that is none."""
    rng = np.random.default_rng(0)
    slope = np.broadcast_to(np.linspace(0, 255, 64), (64, 64))
    pixels = {
        "noise": [rng.integers(0, 256, (64, 64)) for _ in range(STRANGE)],
        "blank": [np.full((64, 64), shade) for shade in np.linspace(0, 255, STRANGE)],
        "slope": [np.rot90(slope, turn) for turn in range(4)],
        "large": [rng.integers(0, 256, (80, 64)) for _ in range(3)],
    }
    rows = [
        (f"{kind}-{number}", encode_png(Image.fromarray(one.astype(np.uint8))))
        for kind, some in pixels.items()
        for number, one in enumerate(some)
    ]
    return pd.DataFrame([*rows, ("broken-0", b"no image")], columns=["key", "image"]).assign(angle=0.0, digit=1)


def test_pictures_of_another_kind_are_withheld_and_ordinary_ones_are_not(registry: Any) -> None:
    folder = registry.folder
    write_digits(folder / "labelled", "test", rows=300)
    (ordinary,) = write_digits(folder / "ordinary", "test", rows=ORDINARY, seed=1)
    fresh = pd.concat([pd.read_parquet(ordinary).drop(columns="target"), _strange()], ignore_index=True)
    fresh.to_parquet(folder / "pictures.parquet")
    example = pd.read_parquet(ordinary)[["image", "angle", "digit"]].head(2)
    registry.log(_predict, "pictures", example)
    split = {"name": "digits", "uri": str(folder / "labelled"), "key": "key", "input": "image", "target": "target",
             "model_inputs": ["image", "angle", "digit"], "shard_rows": 100}  # fmt: skip
    file = registry.file(splits=[split], encoder={"kind": "open_clip", "model": "compact"}, protocol="exact")
    inputs, output = folder / "pictures.parquet", folder / "output"
    shown = registry.run("score", file, "-m", "pictures/1", "--inputs", inputs, "--output", output, "--no-log")
    assert "3 rows are left out of" in shown.output
    scores = pd.read_parquet(output / "scores.parquet")
    kind = scores["key"].str.partition("-")[0]
    assert scores.loc[kind == "test", "withhold"].mean() <= 0.025
    others = scores[kind != "test"]
    assert others["withhold"].all()
    reasons = others["reason"].groupby(kind)
    assert reasons.apply(lambda some: some.str.contains("the split holds ").all())[["noise", "blank", "slope"]].all()
    assert set(scores.loc[kind == "large", "reason"]) == {
        "pictures/1: predict failed on this row: ValueError: expected 64 x 64 pixels"
    }
    assert scores.loc[kind == "large", "mean"].isna().all()
    assert "not an image" in scores.loc[kind == "broken", "reason"].item()
    withheld = int(scores["withhold"].sum())
    assert f"and {withheld - 10} more" in shown.output
    assert f"{withheld} inputs should be withheld" in (output / "report.html").read_text()
    assert len(list(folder.glob("embeddings/pictures/*/*.npz"))) == 2  # of either split, for the next call
