"""An evaluation is found again only where nothing changed that changes a number."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import scipy.stats
from mlflow import MlflowClient
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.flows.evaluate import evaluate
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.evaluate.steps import Steps
from congruence.tasks.runtime.errors import SplitChangedError

WIDE = {"family": "normal", "columns": {"scale": 2.0}}


def runs(registry: Any) -> list[str]:
    experiment = MlflowClient().get_experiment_by_name("congruence/evaluations")
    return [run.info.run_id for run in MlflowClient().search_runs([experiment.experiment_id])] if experiment else []


def only(registry: Any, **changes: Any) -> VersionOutcome:
    (outcome,) = evaluate(registry.settings(metrics=["nll"], **changes), "one version")
    return outcome


@pytest.mark.usefixtures("prefect_server")
def test_edited_predictions_are_asked_for_and_measured_anew(registry: Any) -> None:
    registry.register("read")
    first = only(registry, models=["read/1"])
    edited = only(registry, models=["read/1"], predictions=WIDE)
    assert (first.status, edited.status) == ("evaluated", "evaluated")
    rows = pd.read_parquet(registry.split)
    for outcome, scale in ((first, 1.0), (edited, 2.0)):
        expected = -scipy.stats.norm(2 * rows["angle"], scale).logpdf(rows["y"]).mean()
        assert outcome.metrics["nll_mean"].value == pytest.approx(expected)
    assert edited.metrics["cce_mean"].value != first.metrics["cce_mean"].value
    for changes, run_id in (({}, first.run_id), ({"predictions": WIDE}, edited.run_id)):
        again = only(registry, models=["read/1"], **changes)
        assert (again.status, again.run_id) == ("found", run_id)


@pytest.mark.usefixtures("prefect_server")
def test_a_dropped_input_that_the_model_needs_is_noticed(registry: Any) -> None:
    registry.register("fed")
    features = registry.content()["splits"][0] | {"input": ["cos", "sin", "angle"]}
    changes = {"models": ["fed/1"], "encoder": {"kind": "identity", "dimension": 3}}
    assert only(registry, **changes, splits=[features]).status == "evaluated"
    dropped = only(registry, **changes, splits=[features | {"model_inputs": ["cos", "sin"]}])
    assert dropped.status == "failed"
    assert "asks for input column 'angle'" in str(dropped.error)


@pytest.mark.usefixtures("prefect_server")
def test_an_evaluation_is_made_again_on_request(registry: Any) -> None:
    registry.register("again")
    before = only(registry, models=["again/1"])
    kept = list((registry.folder / "embeddings" / "predictions").glob("*/*.npz"))
    times = {path: path.stat().st_mtime_ns for path in kept}
    file = registry.file(models=["again/1"], metrics=["nll"])
    said = CliRunner().invoke(app, ["evaluate", str(file), "--again", "--home", str(registry.folder)])
    assert said.exit_code == 0, said.output
    after = only(registry, models=["again/1"])
    assert after.status == "found"
    assert after.run_id != before.run_id
    assert before.run_id not in runs(registry)
    assert after.metrics["cce_mean"].value == pytest.approx(before.metrics["cce_mean"].value, rel=1e-3)
    assert any(path.stat().st_mtime_ns != times[path] for path in kept)


@pytest.mark.usefixtures("prefect_server")
def test_rows_that_are_replaced_during_a_run_end_it_and_leave_nothing_of_the_mixture(
    registry: Any, rows_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("mixed")
    split = registry.content()["splits"][0] | {"uri": str(rows_file(registry.folder / "mixed.parquet", 8))}
    right = (registry.folder / "mixed.parquet").read_bytes()

    embed = Steps.embed

    def replace_and_embed(*arguments: Any) -> None:
        other = rows_file(registry.folder / "other.parquet", 9)
        other.rename(registry.folder / "mixed.parquet")
        embed(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Steps, "embed", replace_and_embed)
        with pytest.raises(SplitChangedError, match=r"mixed\.parquet: was replaced or written to since"):
            only(registry, models=["mixed/1"], splits=[split])
    (registry.folder / "mixed.parquet").write_bytes(right)
    after = only(registry, models=["mixed/1"], splits=[split])
    assert after.status == "evaluated"
    rows = pd.read_parquet(registry.folder / "mixed.parquet")
    expected = -scipy.stats.norm(2 * rows["angle"], 1.0).logpdf(rows["y"]).mean()
    assert after.metrics["nll_mean"].value == pytest.approx(expected)
