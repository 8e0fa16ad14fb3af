"""A registry on SQLite with cheap models: y ~ N(2 angle, 1), told as a normal of some scale and bias."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import Result
from databases import mlflow_database
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.settings.evaluation import EvaluationSettings

ROWS = 160


@dataclass(frozen=True)
class Registry:
    """A folder with a split, an MLflow database and everything that runs leave behind."""

    folder: Path

    @property
    def split(self) -> Path:
        """The labelled split."""
        return self.folder / "circle.parquet"

    def register(
        self, name: str = "angle", *, scale: float = 1.0, bias: float = 0.0, fails: bool = False, seconds: float = 0.0
    ) -> str:
        """Register a version with that error; one that ``fails`` gives negative scales on larger angles.

        Of more than a few rows it predicts after ``seconds``.
        """

        def predict(frame: pd.DataFrame) -> pd.DataFrame:
            time.sleep(seconds if len(frame) > 8 else 0.0)
            wrong = fails & (frame["angle"].to_numpy() > 2.8)
            return pd.DataFrame({"loc": 2 * frame["angle"] + bias, "scale": np.where(wrong, -1.0, scale)})

        return self.log(predict, name, pd.DataFrame({"angle": [0.1, 0.2]}))

    def log(self, predict: Callable[[pd.DataFrame], pd.DataFrame], name: str, example: pd.DataFrame) -> str:
        """Register a version that states normal distributions; gives its URI."""
        info = log_predictive_model(
            predict,
            name=name,
            family="normal",
            input_example=example,
            registered_model_name=name,
            pip_requirements=["mlflow"],
        )
        return f"models:/{name}/{info.registered_model_version}"

    def content(self, **changes: Any) -> dict[str, Any]:
        """The content of an evaluation file on the split."""
        split = {
            "name": "circle",
            "uri": str(self.split),
            "input": ["cos", "sin"],
            "input_kind": "features",
            "key": "key",
            "target": "y",
            "model_inputs": ["angle"],
            "slices": ["half"],
            "shard_rows": 80,
        }
        content: dict[str, Any] = {
            "splits": [split],
            "encoder": {"kind": "identity", "dimension": 2},
            "cluster": {"kind": "threads", "workers": 2},
            "tracking": {"report": False, "patience": 5},
            "home": str(self.folder),
        }
        return content | changes

    def settings(self, **changes: Any) -> EvaluationSettings:
        """Settings on the split."""
        return EvaluationSettings.model_validate(self.content(**changes))

    def file(self, **changes: Any) -> Path:
        """An evaluation file on the split."""
        path = self.folder / "evaluation.yaml"
        path.write_text(yaml.safe_dump(self.content(**changes)))
        return path

    def evaluated(self, **changes: Any) -> list[VersionOutcome]:
        """The outcomes of an evaluation without Prefect."""
        return evaluate(Plan(self.settings(**changes)), LocalExecutor, Observer())

    def run(self, *arguments: object, status: int = 0) -> Result:
        """A command in this process, on the registry's home, which ends with that exit status."""
        done = CliRunner().invoke(app, [*map(str, arguments), "--home", str(self.folder)])
        assert done.exit_code == status, done.output
        return done


def write_rows(path: Path, seed: int, rows: int = ROWS, *, shift: float = 0.0) -> Path:
    """Rows of the law; ``shift`` moves the targets of the right half, which the models do not know of."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, np.pi, rows)
    right = angle > np.pi / 2
    target = 2 * angle + rng.normal(size=rows) + np.where(right, shift, 0.0)
    columns = {"cos": np.cos(angle), "sin": np.sin(angle), "angle": angle, "y": target}
    names = {"key": [f"row-{number}" for number in range(rows)], "half": np.where(right, "right", "left")}
    pd.DataFrame(columns | names).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> Iterator[Registry]:
    """One registry for all tests of a file, whose flows in this process run on the run's one Prefect server."""
    made = Registry(tmp_path_factory.mktemp("registry"))
    write_rows(made.split, seed=0)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(mlflow_database(made.folder))
    yield made
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="session")
def rows_file() -> Callable[..., Path]:
    """Writes a file of rows like the split's."""
    return write_rows
