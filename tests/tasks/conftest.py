"""Evaluations to plot, log and compare: real numbers from a small regression; a model registry."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from comparable import angle, as_compared, congruence_of
from databases import mlflow_at, mlflow_database
from mlflow import MlflowClient
from PIL import Image

from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.distributions import Normal
from congruence.kernels.marginal_calibration import calibration_error_of_pit
from congruence.kernels.protocol import EXACT
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.identity import finished_evaluations
from congruence.tasks.mlflow.reading import logged_versions
from congruence.tasks.scores.evaluation import INFLUENCE, Evaluation, MetricValue, SplitSummary
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

MakeEvaluation = Callable[..., Evaluation]


def _thumbnails(rows: Sequence[int]) -> list[Image.Image]:
    return [Image.fromarray(np.full((16, 16, 3), (row * 7) % 256, np.uint8)) for row in rows]


def _evaluation(
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    rows: int = 120,
    invalid: int = 2,
    seed: int = 7,
    model: ModelVersion | None = None,
    split: str = "test",
    split_digest: str = "s" * 64,
    **changes: Any,
) -> Evaluation:
    """y ~ N(2 x, 1) on the circle, predicted by N(2 x + bias, scale^2); the last ``invalid`` rows are unreadable."""
    fields = {name: value.copy() for name, value in _measured(scale, bias, rows, invalid, seed).items()}
    fields |= {
        "model": model or angle("1"),
        "split": SplitSummary(split, split_digest, rows, rows - invalid),
        "protocol": EXACT,
        "predictive": Normal(fields["scores"]["mean"].to_numpy()[: rows - invalid], np.full(rows - invalid, scale)),
        "thumbnails": _thumbnails,
        "provenance": {"encoder": {"id": "identity"}, "solver": "cholesky", "seed": 7},
        "seconds": {"embed": 1.5, "solve": 0.25},
    }
    return Evaluation(**{**fields, **changes})


@cache
def _measured(scale: float, bias: float, rows: int, invalid: int, seed: int) -> dict[str, Any]:
    """Its fields that take time; many tests ask for the same."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, np.pi, rows)
    x = np.column_stack([np.cos(angle), np.sin(angle)])
    y = 2 * angle + rng.normal(size=rows)
    valid = np.arange(rows) < rows - invalid
    x, targets = x[valid], y[valid]
    predictive = Normal(2 * angle[valid] + bias, np.full(len(targets), scale))
    result = congruence_of(x, targets, predictive)
    scores = pd.DataFrame({"key": [f"image-{row}" for row in range(rows)], "valid": valid, "reason": ""})
    scores.loc[~valid, "reason"] = "truncated image"
    values = {
        "target": targets,
        "mean": predictive.mean(),
        "std": predictive.std(),
        "cce": result.values,
        "cce_noise_floor": result.noise_floor_values,
        "nll": -predictive.log_prob(targets),
        "crps": predictive.crps(targets),
        "absolute_error": np.abs(targets - predictive.mean()),
        "squared_error": (targets - predictive.mean()) ** 2,
        "pit": predictive.cdf(targets),
    }
    for name, column in values.items():
        scores[name] = np.nan
        scores.loc[valid, name] = column
    scores["half"] = np.where(angle < np.pi / 2, "left", "right")
    slices = (
        scores[valid].groupby("half").agg(rows=("cce", "size"), cce_mean=("cce", "mean"),
                                          cce_noise_floor=("cce_noise_floor", "mean")).reset_index(names="value")
    )  # fmt: skip
    slices["cce_excess"] = np.sqrt(np.maximum(slices["cce_mean"] ** 2 - slices["cce_noise_floor"] ** 2, 0.0))
    slices.insert(0, "slice", "half")
    influence = result.uncertainty.influence
    keys = scores.loc[valid, "key"].to_numpy()
    metrics = {
        "cce_mean": MetricValue(result.mean, 0.9 * result.mean, 1.1 * result.mean),
        "cce_noise_floor": MetricValue(result.noise_floor),
        "cce_excess": MetricValue(result.excess),
        "nll_mean": MetricValue(float(np.mean(values["nll"]))),
        "crps_mean": MetricValue(float(np.mean(values["crps"]))),
        "ece": MetricValue(calibration_error_of_pit(values["pit"])),
        "mae": MetricValue(float(np.mean(values["absolute_error"]))),
        "cce_squared_mean": MetricValue(influence.squared_mean),
        "calibration_p_value": MetricValue(group_reading(values["pit"]).p_value),
    }
    return {
        "metrics": metrics,
        "scores": scores,
        "targets": targets,
        "slices": slices,
        "embedding_map": pd.DataFrame(np.column_stack([np.cos(angle), np.sin(angle)])).loc[valid],
        "influence": pd.DataFrame(dict(zip(INFLUENCE, (keys, influence.squared, influence.root), strict=True))),
        "influence_noise": influence.noise,
    }


@pytest.fixture(scope="session")
def make_evaluation() -> MakeEvaluation:
    """A function that evaluates a normal forecast of some ``scale`` and ``bias``, and takes any field instead."""
    return _evaluation


@pytest.fixture(scope="module")
def compared(make_evaluation):
    """The truth, an overconfident version and a biased one, on 400 points."""
    changes = {"1": {}, "2": {"scale": 0.5}, "3": {"bias": 1.0}}
    return [
        as_compared(make_evaluation(model=angle(version), rows=400, **change), run_id=f"run-{version}")
        for version, change in changes.items()
    ]


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[TrackingSettings]:
    """An empty MLflow of the test's own, at which MLflow points meanwhile."""
    with mlflow_at(mlflow_database(tmp_path)) as uri:
        yield TrackingSettings(uri=uri, report=False)


@pytest.fixture
def registered(tracked: TrackingSettings) -> TrackingSettings:
    """The same with a version to evaluate, angle/1."""
    client = MlflowClient()
    client.create_registered_model("angle")
    client.create_model_version("angle", source="/nowhere", description="Trained on *Tuesday*.")
    return tracked


@pytest.fixture
def logged(make_evaluation: MakeEvaluation, registered: TrackingSettings) -> tuple[Any, TrackingSettings, MlflowClient]:
    """Two logged versions, the first much worse, and the settings of their MLflow."""
    client = MlflowClient()
    client.create_model_version("angle", "/nowhere")
    for number, scale in (("1", 3.0), ("2", 1.0)):
        log_evaluation(make_evaluation(model=angle(number), scale=scale), registered)
    return logged_versions("test", finished_evaluations(registered, "test"), registered), registered, client


@pytest.fixture(scope="session")
def registry_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model registry on SQLite, which tests share under model names of their own."""
    folder: Path = tmp_path_factory.mktemp("registry")
    uri = mlflow_database(folder)
    with mlflow_at(uri):
        mlflow.create_experiment("shared", artifact_location=(folder / "artifacts").as_uri())
    return uri


@pytest.fixture
def registry(registry_uri: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name under which this test may register; MLflow points at the shared registry meanwhile."""
    with mlflow_at(registry_uri):
        mlflow.set_experiment("shared")
        yield request.node.originalname.removeprefix("test_").replace("_", "-")
