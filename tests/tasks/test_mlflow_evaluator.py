"""MLflow's own evaluate gives the numbers of the kernels and of the flow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from databases import mlflow_at, mlflow_database
from mlflow.models import list_evaluators

from congruence.kernels.distributions import Distribution, Normal
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.measures import conditional_congruence_error
from congruence.kernels.protocol import EXACT
from congruence.tasks.contract import ContractError, log_predictive_model
from congruence.tasks.digits.dataset import digit_rows, draw, encode_png, noise_scale

ROWS = 80
LOC_SCALE = {"family": "normal", "columns": {"loc": "loc", "scale": "scale"}}


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    angle = rng.uniform(0, np.pi, ROWS)
    return pd.DataFrame({"u": np.cos(angle), "v": np.sin(angle), "y": 2 * angle + rng.normal(size=ROWS)})


@pytest.fixture(autouse=True)
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.getbasetemp() / "evaluator"
    folder.mkdir(exist_ok=True)
    with mlflow_at(mlflow_database(folder)):
        if mlflow.get_experiment_by_name("evaluator") is None:
            mlflow.create_experiment("evaluator", artifact_location=(folder / "artifacts").as_uri())
        mlflow.set_experiment("evaluator")
        yield


def predict(frame: pd.DataFrame) -> Normal:
    return Normal(2 * np.arctan2(frame["v"], frame["u"]) + 0.5, np.full(len(frame), 1.0))


def expected(data: pd.DataFrame, predictive: Distribution) -> dict[str, float]:
    """The numbers by the definition's own function, of standardised inputs in single precision."""
    x, y = data[["u", "v"]].to_numpy(), data["y"].to_numpy()
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32).astype(np.float64)
    result = conditional_congruence_error(EXACT.apply(x), y, predictive, input_kernel=EXACT.input_kernel)
    return {
        "cce_mean": result.mean,
        "cce_noise_floor": result.noise_floor,
        "nll_mean": float(np.mean(-predictive.log_prob(y))),
        "crps_mean": float(np.mean(predictive.crps(y))),
        "mae": float(np.mean(np.abs(predictive.mean() - y))),
    }


def evaluate(data: pd.DataFrame, model: Any = None, **config: Any) -> Any:
    with mlflow.start_run():
        return mlflow.models.evaluate(
            model,
            data,
            targets="y",
            model_type="regressor",
            evaluators="congruence",
            evaluator_config={"input": ["u", "v"]} | config,
        )


def assert_expected(metrics: dict[str, float], data: pd.DataFrame, predictive: Distribution) -> None:
    for name, value in expected(data, predictive).items():
        assert metrics[name] == pytest.approx(value, abs=1e-7), name
    beyond = metrics["cce_mean"] ** 2 - metrics["cce_expected"] ** 2
    assert metrics["cce_excess"] == pytest.approx(np.sqrt(max(0.0, beyond)), abs=1e-9)


def test_mlflow_finds_the_evaluator() -> None:
    assert "congruence" in list_evaluators()


def test_a_registered_model_is_evaluated_and_its_logged_model_carries_the_metrics(data: pd.DataFrame) -> None:
    info = log_predictive_model(predict, name="angle", input_example=data[["u", "v"]], registered_model_name="angle")
    result = evaluate(data, f"models:/angle/{info.registered_model_version}")
    assert_expected(result.metrics, data, predict(data))
    logged = mlflow.get_logged_model(info.model_id)
    assert {metric.key for metric in logged.metrics or []} >= {"cce_mean", "nll_mean", "ece"}
    scores = result.artifacts["congruence_scores.parquet"].content
    assert len(scores) == ROWS
    assert scores["cce"].mean() == pytest.approx(result.metrics["cce_mean"], rel=1e-6)
    assert "congruence_report.html" in {file.path for file in mlflow.MlflowClient().list_artifacts(result.run_id)}
    assert mlflow.get_run(result.run_id).data.metrics["cce_mean"] == result.metrics["cce_mean"]


def test_functions_and_tables_of_predictions_are_evaluated_too(data: pd.DataFrame) -> None:
    assert_expected(evaluate(data, predict).metrics, data, predict(data))
    predicted = data.assign(loc=predict(data).loc, scale=1.0)
    result = evaluate(predicted, predictions=LOC_SCALE)
    assert_expected(result.metrics, data, predict(data))
    assert mlflow.get_run(result.run_id).data.metrics["cce_mean"] == result.metrics["cce_mean"]
    by_name = evaluate(data, lambda table: pd.DataFrame({"mean": predict(table).loc, "std": 1.0}))
    columns = evaluate(data.assign(mu=predict(data).loc, sigma=1.0))
    for found in (by_name, columns):  # as what a registered model returns
        assert found.metrics["crps_mean"] == result.metrics["crps_mean"]


def test_images_go_through_an_encoder() -> None:
    rows = digit_rows("test", 40)
    images = [encode_png(draw(int(b), float(a))) for b, a in zip(rows.base, rows.angle, strict=True)]
    table = pd.DataFrame({"image": images, "angle": rows.angle, "digit": rows.digit, "y": rows.target})

    def law(frame: pd.DataFrame) -> Normal:
        return Normal(frame["angle"], noise_scale(frame["digit"]))

    encoder = {"kind": "open_clip", "model": "compact"}
    result = evaluate(table, law, input="image", encoder=encoder)
    assert 0 < result.metrics["cce_mean"] < 1
    broken = table.assign(image=[b"no image", *images[1:]])
    with pytest.raises(InvalidInputError, match="row 0: "):
        evaluate(broken, law, input="image", encoder=encoder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"input": "w"}, "column 'w' is missing; the data have 'u', 'v'"),
        ({"input": ["u", "w"]}, "inputs: X has no column 'w'"),
        ({"input": None}, "input: not given"),
        ({"groups": "w"}, "groups: X has no column 'w'"),
        ({"inputs": ["u"]}, "evaluator_config: inputs: there is no such key; did you mean 'input'?"),
        ({"protocol": {"bas": "exact"}}, "evaluator_config: protocol.bas: there is no such key; did you mean 'base'?"),
        ({"embeddings": np.ones((3, 2))}, "3 rows for a table of 80"),
        ({"predictions": {"family": "normal"}}, "'loc' for parameter 'loc' is missing"),
    ],
)
def test_what_cannot_be_evaluated_is_named(data: pd.DataFrame, config: dict[str, Any], message: str) -> None:
    predicted = data.assign(mu=0.0, sigma=1.0)
    columns = {"family": "normal", "columns": {"loc": "mu", "scale": "sigma"}}
    with pytest.raises((InvalidInputError, ContractError, ValueError), match=message):
        evaluate(predicted, **({"predictions": columns} | config))
