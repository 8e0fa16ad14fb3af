"""`congruence recalibrate`: what is registered, on what it is judged, what it needs to load, and what is refused."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from congruence.flows.operations.gate import gate
from congruence.flows.operations.recalibrate import NothingToMendError, asked_version, recalibrate, require_fault
from congruence.flows.operations.watch import check_once
from congruence.kernels.dependence.correlation import hold_out
from congruence.tasks.contract import ContractError
from congruence.tasks.data.split import open_split
from congruence.tasks.evaluate.plan import left_out
from congruence.tasks.models.registry import resolve
from congruence.tasks.recalibration.versions import FittedVersion, require_given
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.sections import PredictionSettings

ROWS = 700


@pytest.fixture(scope="module")
def split(registry: Any, rows_file: Any) -> Path:
    return rows_file(registry.folder / "many.parquet", 5, ROWS)  # type: ignore[no-any-return]


def _settings(registry: Any, split: Path, **changes: Any) -> Any:
    part = registry.content()["splits"][0] | {"uri": str(split), "model_inputs": ["angle", "cos", "sin"]}
    metrics = ["nll", "congruence_test", "calibration"]
    return registry.settings(splits=[part], metrics=metrics, **changes)


def test_an_overconfident_version_is_mended_on_rows_that_the_fit_has_not_seen(
    registry: Any, split: Path, tmp_path: Path
) -> None:
    registry.register("narrow", scale=0.5)
    settings = _settings(registry, split, models=["narrow"])
    made = recalibrate(settings, "1")

    assert (made.parent.label, made.version.label) == ("narrow/1", "narrow/2")
    assert str(made.said).startswith("spreads multiplied by")
    before, after = (outcome.metrics for outcome in made.outcomes)
    assert {outcome.split for outcome in made.outcomes} == {"circle-held-out"}
    assert after["nll_mean"].value < before["nll_mean"].value - 0.5
    assert after["cce_mean"].value < 0.6 * before["cce_mean"].value
    assert after["nll_mean"].value < 0.5 * np.log(2 * np.pi * np.e) + 0.1  # the truth's, on 350 rows
    tags = resolve(made.version.uri).tags
    assert tags["recalibrated_from"] == "narrow/1"
    fitted = int(hold_out(pd.read_parquet(split)["key"].to_numpy()).fitting.sum())
    assert tags["recalibrated_on"].startswith(f"{fitted} rows of circle")
    entry = MlflowClient().get_model_version("narrow", "2")
    assert "corrected where they are wrong: spreads multiplied by" in entry.description

    # The same again is the same version; on its split's own rows it is judged by nobody.
    again = recalibrate(settings, "models:/narrow/1")
    assert (again.version.label, again.said) == ("narrow/2", None)
    assert [outcome.status for outcome in again.outcomes] == ["found", "found"]
    outcomes, judged = left_out([made.parent, made.version], open_split(settings.splits[0], settings.plans_folder))
    assert [version.label for version in judged] == ["narrow/1"]
    assert outcomes[0].status == "left out"
    assert "fitted on rows of this split" in str(outcomes[0].error)
    assert {item.label: item.status for item in check_once(settings).outcomes} == {
        "narrow/1": "evaluated",
        "narrow/2": "left out",
    }
    gated = settings.model_copy(update={"gate": _settings(registry, split, gate={"maximum": {"nll_mean": 9.0}}).gate})
    assert [decision.candidate.label for decision in gate(gated)] == ["narrow/1"]

    # Parent and its run are gone, and so is everything but the model's own folder.
    folder = Path(mlflow.artifacts.download_artifacts(made.version.uri, dst_path=str(tmp_path / "model")))
    assert not list(folder.glob("*.pkl"))
    MlflowClient().delete_model_version("narrow", "1")
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    model = mlflow.pyfunc.load_model(str(folder))
    rows = pd.read_parquet(split).head(4)
    answer = model.predict(rows[["angle", "cos", "sin"]])
    np.testing.assert_allclose(answer.iloc[:, :1].to_numpy().ravel(), 2 * rows["angle"], atol=0.3)


def test_a_true_version_has_nothing_to_mend(registry: Any, split: Path) -> None:
    registry.register("true")
    with pytest.raises(NothingToMendError, match=r"Nothing to recalibrate in true/1: .*\d+ rows"):
        recalibrate(_settings(registry, split, models=["true"]), "1")
    assert len(MlflowClient().search_model_versions("name = 'true'")) == 1


def test_what_cannot_be_done_is_said_before_the_work(registry: Any, split: Path) -> None:
    registry.register("named")
    settings = _settings(registry, split, models=["named", "other/2"])
    with pytest.raises(SettingsError, match="the file names 2 models"):
        asked_version(settings, "1")
    with pytest.raises(SettingsError, match="name the version"):
        asked_version(settings, None)
    one = _settings(registry, split, models=["named"])
    assert asked_version(one, "1").label == "named/1"
    with pytest.raises(SettingsError, match="only split"):
        recalibrate(one, "1", fit="circle")
    with pytest.raises(SettingsError, match=r"no split 'elsewhere'; there are circle"):
        recalibrate(one, "1", fit="elsewhere")

    given_inputs: Any = SimpleNamespace(depends_on_input=True)
    fitted = FittedVersion(given_inputs, 300, 0.4, "spreads multiplied by 1.1")
    with pytest.raises(NothingToMendError, match=r"p = 0\.4\); --force"):
        require_fault(resolve("models:/named/1"), fitted, force=False)
    require_fault(resolve("models:/named/1"), fitted, force=True)
    blind = registry.settings(models=["named"])
    with pytest.raises(ContractError, match="depends on cos, sin, which its model_inputs"):
        require_given(open_split(blind.splits[0], blind.plans_folder), PredictionSettings(), fitted)
