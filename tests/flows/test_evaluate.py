"""The main flow on real servers: Prefect, a Dask cluster of processes, MLflow on SQLite; and the hourly one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import zarr
from mlflow import MlflowClient
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.flows.evaluate import evaluate
from congruence.flows.operations import demo
from congruence.kernels import EXACT, Normal, conditional_congruence_error
from congruence.tasks.data.split import open_split
from congruence.tasks.digits import hourly
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.mlflow.identity import run_metrics
from congruence.tasks.mlflow.reading import read_scores
from congruence.tasks.notebook.door import evaluated
from congruence.tasks.notebook.table import Given
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.store.embeddings import EmbeddingStore

ROWS = 240
NUMBERS = ("cce_mean", "cce_noise_floor", "nll_mean", "crps_mean", "ece", "mae")


Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


def run(content: Content, home: Path, models: list[str], **changes: Any) -> list[VersionOutcome]:
    settings = EvaluationSettings.model_validate(content(models=models, home=str(home), **changes))
    return evaluate(Plan(settings))


@pytest.mark.usefixtures("prefect_server")
def test_versions_are_evaluated_once_and_logged_with_every_row_and_the_numbers_of_the_plain_call(
    content: Content, digits: Path, home: Path, register_law: Register
) -> None:
    right, narrow = register_law(), register_law(scale=0.4)
    cluster = {"kind": "local", "workers": 1}
    first = {outcome.label: outcome for outcome in run(content, home, ["angle"], cluster=cluster)}
    assert [first[label].status for label in ("angle/1", "angle/2")] == ["evaluated", "evaluated"]
    true, overconfident = first["angle/1"].metrics, first["angle/2"].metrics
    assert overconfident["cce_mean"].value > true["cce_mean"].value
    assert true["cce_mean"].value == pytest.approx(true["cce_noise_floor"].value, rel=0.3)

    run_id = first["angle/1"].run_id
    assert run_id is not None
    logged = run_metrics(mlflow.get_run(run_id))
    for name in NUMBERS:
        assert logged[name].value == pytest.approx(true[name].value, rel=1e-3)
    scores = read_scores(run_id)
    assert len(scores) == ROWS
    assert scores["cce"].mean() == pytest.approx(true["cce_mean"].value)
    assert len([file for file in files(run_id) if file.endswith(".png")]) >= 4
    assert {"plots/cce_histogram.png", "plots/local_reliability.png"} <= set(files(run_id))
    assert overconfident["calibration_p_value"].value < 0.01 < true["calibration_p_value"].value
    assert "calibration_p_value" in logged
    for effect in (logged[f"calibration_effect_{order}"] for order in ("bias", "spread", "skew", "tails")):
        assert effect.low is not None
        assert effect.high is not None
    assert set(scores["calibration_fault"]) <= {"", "bias", "spread", "skew", "tails"}
    tags = MlflowClient().get_model_version("angle", "2").tags
    assert "he predicted spread is too small by a factor of" in tags["what_is_wrong"]
    assert MlflowClient().get_model_version("angle", "1").tags["what_is_wrong"].startswith("No fault found")

    again = run(content, home, [right, narrow])
    assert [outcome.status for outcome in again] == ["found", "found"]
    assert again[0].metrics["cce_mean"].value == pytest.approx(true["cce_mean"].value, rel=1e-3)
    settings = EvaluationSettings.model_validate(content(home=str(home)))
    require_plain_numbers(scores, true, digits, stored_embeddings(settings), home)


def require_plain_numbers(
    scores: pd.DataFrame, metrics: dict[str, MetricValue], digits: Path, embeddings: np.ndarray, home: Path
) -> None:
    """Those of the definition, of the call in memory, and of what any Zarr reader opens."""
    frame = pd.concat(pd.read_parquet(path) for path in sorted((digits / "test").glob("*.parquet")))
    law = Normal(frame["angle"].to_numpy(), 5 + 2.5 * frame["digit"].to_numpy())
    x = EXACT.apply(embeddings.astype(np.float64))
    expected = conditional_congruence_error(x, frame["target"], law, input_kernel=EXACT.input_kernel)
    np.testing.assert_allclose(scores["cce"], expected.values, rtol=1e-6)  # logged in single precision
    given = Given(frame[["angle", "digit"]], frame["target"], key=frame["key"], embeddings=embeddings)
    (plain,) = evaluated(given, {"law": law}).values()
    np.testing.assert_allclose(scores["cce"], plain.to_frame()["cce"], rtol=1e-6)
    for name in NUMBERS:
        assert plain.metrics[name].value == pytest.approx(metrics[name].value, abs=1e-9), name
    (folder,) = [path.parent for path in (home / "embeddings").glob("*/*/zarr.json")]
    group: Any = zarr.open(str(folder), mode="r")  # as anybody would
    np.testing.assert_array_equal(group["embeddings"][:], embeddings)
    assert (group["embeddings"].shape, group["valid"][:].all()) == (embeddings.shape, True)
    np.testing.assert_array_equal(group["target"][:, 0], frame["target"])
    assert [str(key) for key in group["key"][:]] == frame["key"].astype(str).tolist()
    assert {"encoder_id", "preprocessing_digest", "split", "split_digest", "rows"} <= group.attrs.keys()


def files(run_id: str, folder: str | None = None) -> list[str]:
    found: list[str] = []
    for item in MlflowClient().list_artifacts(run_id, folder):
        found += files(run_id, item.path) if item.is_dir else [item.path]
    return found


def stored_embeddings(settings: EvaluationSettings) -> np.ndarray:
    store = str(settings.home_folder / "embeddings")
    encoder = load_encoder(settings.encoder)
    return EmbeddingStore.open(store, open_split(settings.splits[0]), encoder).read()


@pytest.mark.usefixtures("prefect_server")
def test_the_true_law_is_judged_once_time_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "cluster": {"kind": "threads", "workers": 1},
        "metrics": ["cce", "congruence_test"],
        "tracking": {"report": False},
    }
    monkeypatch.setattr(demo, "HOURS", 1_000)
    monkeypatch.setattr(demo, "HOURLY_EVALUATION", {**demo.HOURLY_EVALUATION, **small})
    for name in ("_VERSIONS", "DESCRIPTIONS"):
        monkeypatch.setattr(hourly, name, {"truth": getattr(hourly, name)["truth"]})
    shown = CliRunner().invoke(app, ["demo", "--data", "hourly", "--home", str(home)])
    assert shown.exit_code == 0, shown.output
    as_rows, hours = shown.output.split("split 'hours-as-rows'", 1)[1].split("split 'hours'", 1)
    assert "not judged" in as_rows
    assert "no fault found" in hours
    assert len(pd.read_parquet(home / "demo-hourly" / "hours.parquet")) == 1_000
