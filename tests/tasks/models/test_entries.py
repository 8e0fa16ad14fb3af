"""One file for all kinds of models: entries of ``models:`` that say how each is read and what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from databases import mlflow_at, mlflow_database
from mlflow import MlflowClient
from sklearn.linear_model import BayesianRidge, LinearRegression

from congruence.kernels.distributions import Normal
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan
from congruence.tasks.mlflow.identity import finished_evaluations
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

ROWS = 160
BY_THEMSELVES = ("ngboost", "catboost", "xgboost", "statsmodels")
"""Kinds that need no word of how they are read."""
SPLIT = {"uri": "rows.parquet", "input": ["a", "b"], "input_kind": "features", "target": "y"}


def settings(models: list[Any], **more: Any) -> EvaluationSettings:
    return EvaluationSettings.model_validate(
        {"models": models, "splits": [SPLIT], "encoder": {"kind": "identity"}} | more
    )


def test_entries_stand_beside_texts_and_say_more() -> None:
    quantiles = {"family": "quantiles", "levels": [0.1, 0.9]}
    found = settings(["models:/plain/1", {"uri": "models:/other/2", "predictions": quantiles, "model_inputs": ["c"]}],
                     predictions={"family": "normal"})  # fmt: skip
    assert found.models == ["models:/plain/1", "models:/other/2"]
    assert found.entry_of("models:/plain/1").predictions.family == "normal"  # type: ignore[union-attr]
    other = found.entry_of("models:/other/2")
    assert (other.predictions.family, other.model_inputs) == ("quantiles", ["c"])
    assert found.splits[0].model_input_columns == ["a", "b", "c"], "the split gives what any of them asks for"
    assert EvaluationSettings.model_validate(found.model_dump()) == found, "as deployments hand settings on"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["models:/a/1", {"uri": "models:/a/1"}], "models:/a/1 stands there twice; say all of it in one entry"),
        ([{"name": "x"}], r"models.0.uri: Field required"),
        (["a", {"uri": "b", "prediction": {}}], r"models.1.prediction: Extra inputs"),
        ([{"uri": "b", "predictions": {"family": "norm"}}], r"models.0.predictions: .*'norm' is not a family"),
    ],
)
def test_what_an_entry_has_wrong_is_said_with_its_place(models: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(models)


class Unregistered(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        assert list(model_input.columns) == ["b", "a"]
        return pd.DataFrame({"lower": model_input["a"] - 1.28155, "upper": model_input["a"] + 1.28155})


def register(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Nine kinds of models, as their own documentation logs them, and the entries that name them."""
    from catboost import CatBoostRegressor  # seconds of imports, which no other file's worker waits for
    from ngboost import NGBRegressor
    from statsmodels.api import OLS
    from xgboost import XGBRegressor

    inputs, plain = rows[["a", "b"]], {"pip_requirements": ["numpy"], "serialization_format": "cloudpickle"}
    for kind, model in (("ridge", BayesianRidge()), ("mean", LinearRegression())):
        fitted = model.fit(inputs, rows["y"])
        signature = mlflow.models.infer_signature(inputs if kind == "ridge" else inputs.astype("float32"))
        mlflow.sklearn.log_model(fitted, name="m", registered_model_name=f"{name}-{kind}", signature=signature, **plain)
    log_predictive_model(lambda frame: Normal(frame["a"], 1.0), name="m", input_example=inputs.head(),
                         registered_model_name=f"{name}-own")  # fmt: skip
    log_predictive_model(lambda frame: pd.DataFrame({"mean": frame["a"] + 0.0 * frame["c"], "std": 1.0}), name="m",
                         input_example=rows[["a", "c"]].head(), registered_model_name=f"{name}-frame")  # fmt: skip
    signature = mlflow.models.infer_signature(inputs)
    boosted = NGBRegressor(n_estimators=20, verbose=False).fit(inputs, rows["y"])
    mlflow.sklearn.log_model(boosted, name="m", registered_model_name=f"{name}-ngboost", signature=signature, **plain)
    levels = {"objective": "reg:quantileerror", "quantile_alpha": [0.05, 0.25, 0.5, 0.75, 0.95]}
    for flavor, fitted in (
        (
            "catboost",
            CatBoostRegressor(50, loss_function="RMSEWithUncertainty", verbose=False, allow_writing_files=False).fit(
                inputs, rows["y"]
            ),
        ),
        ("xgboost", XGBRegressor(n_estimators=20, max_depth=2, **levels).fit(inputs, rows["y"])),
        ("statsmodels", OLS(rows["y"], inputs).fit()),
    ):
        getattr(mlflow, flavor).log_model(fitted, name="m", registered_model_name=f"{name}-{flavor}",
                                          signature=signature, pip_requirements=["numpy"])  # fmt: skip
    info = mlflow.pyfunc.log_model(name="ends", python_model=Unregistered(), pip_requirements=["numpy"])
    normal = {"family": "normal", "columns": {"loc": "0", "scale": 1.0}}
    ends = {"family": "quantiles", "levels": [0.1, 0.9], "columns": {"values": ["lower", "upper"]}}
    return {
        "ridge": f"models:/{name}-ridge/1",
        "mean": {"uri": f"models:/{name}-mean/1", "predictions": normal},
        "own": f"models:/{name}-own/1",
        **{kind: f"models:/{name}-{kind}/1" for kind in BY_THEMSELVES},
        "frame": {"uri": f"models:/{name}-frame/1", "model_inputs": ["a", "c"]},
        "ends": {"uri": info.model_uri, "predictions": ends, "model_inputs": ["b", "a"], "name": "interval"},
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_nine_kinds_of_models_are_evaluated_by_one_file(registry: str, registry_uri: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=["a", "b", "c"])
    rows.assign(y=rows["a"] + rng.normal(size=ROWS)).to_parquet(tmp_path / "rows.parquet")
    models = register(registry, pd.read_parquet(tmp_path / "rows.parquet"))
    split = SPLIT | {"uri": str(tmp_path / "rows.parquet"), "name": registry}
    there: dict[str, Any] = {"splits": [split], "home": str(tmp_path / "home")}
    there["tracking"] = {"uri": registry_uri, "report": False}
    chosen = settings(list(models.values()), **there)
    heard: list[str] = []
    outcomes = evaluate(Plan(chosen), lambda: LocalExecutor(), Observer(say=heard.append))
    assert [line for line in heard if line.startswith(f"{registry}-mean/1 on") and "rounded" in line]
    assert {outcome.label: outcome.error for outcome in outcomes if outcome.status != "evaluated"} == {}
    labels = {f"{registry}-{kind}/1" for kind in ("ridge", "mean", "own", "frame", *BY_THEMSELVES)} | {"interval"}
    assert {outcome.label for outcome in outcomes} == labels
    crps = {outcome.label: outcome.metrics["crps_mean"].value for outcome in outcomes}
    np.testing.assert_allclose(list(crps.values()), crps[f"{registry}-own/1"], rtol=0.25)
    again = Plan(chosen)
    assert again.outcomes() is not None, "nothing is left to do"
    found = finished_evaluations(chosen.tracking, registry)
    assert len(found) == 9
    models["mean"]["predictions"]["columns"]["scale"] = 2.0
    changed = Plan(settings(list(models.values()), **there))
    (part,) = changed.splits
    assert [version.label for version in part.versions] == [f"{registry}-mean/1"], "the others are as they were"


def test_an_entry_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "models:\n  - models:/a/1\n  - {uri: 'models:/b/1', predictions: {family: poisson}}\n"
        "splits: [{uri: rows.parquet, input: [a], input_kind: features, target: y}]\nencoder: {kind: identity}\n"
    )
    found = load_settings(tmp_path / "e.yaml")
    assert found.entry_of("models:/b/1").predictions.family == "poisson"  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore")
def test_logged_models_of_one_name_are_told_apart_and_registered_ones_keep_theirs(
    registry: str, registry_uri: str, tmp_path: Path
) -> None:
    infos = [
        mlflow.pyfunc.log_model(name="same", python_model=Unregistered(), pip_requirements=["numpy"]) for _ in range(2)
    ]
    there: dict[str, Any] = {"tracking": {"uri": registry_uri}, "home": str(tmp_path / "home")}
    labels = [version.label for version in Plan(settings([info.model_uri for info in infos], **there)).versions]
    assert labels == [f"same ({info.model_id.removeprefix('m-')[:8]})" for info in infos]
    log_predictive_model(lambda frame: Normal(frame["a"], 1.0), name="m", registered_model_name=registry,
                         input_example=pd.DataFrame({"a": [1.0]}))  # fmt: skip
    with pytest.raises(SettingsError, match=rf"name: other: {registry}/1 is registered under its own name"):
        Plan(settings([{"uri": f"models:/{registry}/1", "name": "other"}], **there))


def test_versions_are_loaded_and_tagged_where_mlflow_s_variable_has_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were looked up there, and then asked of the tracking server."""
    (tmp_path / "registry").mkdir()
    registry, rows = mlflow_database(tmp_path / "registry"), pd.DataFrame({"a": np.linspace(0.0, 1.0, 40), "b": 0.0})
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry)
    rows.assign(y=rows["a"]).to_parquet(tmp_path / "rows.parquet")
    with mlflow_at(mlflow_database(tmp_path)) as tracking:
        log_predictive_model(lambda frame: Normal(frame["a"], 1.0), name="m", registered_model_name="apart",
                             input_example=rows.head())  # fmt: skip
        there: dict[str, Any] = {"tracking": {"uri": tracking, "report": False}, "home": str(tmp_path / "home")}
        there["splits"] = [SPLIT | {"uri": str(tmp_path / "rows.parquet")}]
        (found,) = evaluate(Plan(settings(["apart"], **there)), LocalExecutor, Observer())
        assert found.status == "evaluated", found.error
    assert "cce_status" in MlflowClient(registry_uri=registry).get_model_version("apart", "1").tags
