"""`congruence demo`: evaluations of data whose conditional distribution is known, from nothing, offline.

Rotated handwritten digits, several versions of a model in an MLflow registry, an evaluation file, and the evaluation
flow itself: what a user would do by hand, in their order. Every part that is already there is kept.

``--data hourly``: counts of every hour, in which an hour is like the one before it. The same file is two splits:
``hours-as-rows`` does not name its time, and says that its rows are correlated; ``hours`` names it, and judges.

``--over-time``: a version in use is looked at every day, and from one day on it is wrong. Days of sales: the price of a
house given its area and its age. On day 25 of 40 the market moves: newer houses cost more than the version says. Each
day is a file, and each look is that of `congruence watch`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import yaml
from mlflow import MlflowClient

from congruence.flows.cli.console import console, print_outcomes
from congruence.flows.cli.session import run_evaluation, server_on_its_way
from congruence.flows.operations.listing import over_time_address
from congruence.flows.operations.watch import check_once
from congruence.kernels.errors import CongruenceError
from congruence.kernels.rng import stream
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.digits import hourly, registered_kinds
from congruence.tasks.digits.dataset import write_digits
from congruence.tasks.digits.models import DESCRIPTIONS, MODEL_NAME
from congruence.tasks.mlflow.connection import point_mlflow_at
from congruence.tasks.models.registry import list_versions
from congruence.tasks.runtime.files import tracking_uri, whole_file
from congruence.tasks.settings.evaluation import load_settings

TRAIN_ROWS, TEST_ROWS, SHARD_ROWS = 4000, 4096, 512
EVALUATION = {
    "models": [MODEL_NAME],
    "splits": [
        {
            "name": "digits-test",
            "uri": "test",
            "key": "key",
            "input": "image",
            "target": "target",
            "model_inputs": ["image", "angle", "digit"],
            "slices": ["digit"],
            "shard_rows": SHARD_ROWS,
        }
    ],
    "encoder": {"kind": "open_clip", "model": "compact"},
    "protocol": "exact",
}


@dataclass(frozen=True)
class Demo:
    """Data of a known distribution in a folder of the home folder, and versions of a model that are evaluated on them.

    ``kinds`` say what each version is, ``write`` makes the data unless they are there, ``register`` trains the versions
    that are missing by these data and registers them. ``said`` stands first, ``closing`` below the tables.
    """

    folder: str
    said: str
    model: str
    kinds: Mapping[str, str]
    evaluation: Mapping[str, Any]
    write: Callable[[Path], None]
    register: Callable[[Path], object]
    closing: str = ""

    def run(self, home: Path) -> None:
        """Make the data and the versions, evaluate them, and show the tables.

        Raises:
            CongruenceError: a step that cannot be done, with its remedy.
        """
        started, folder = time.monotonic(), home / self.folder
        console.print(f"{self.said}; all is written to {home}")
        point_mlflow_at(tracking_uri(home))
        folder.mkdir(parents=True, exist_ok=True)
        missing, file = set(self.kinds) - registered_kinds(self.model), evaluation_file(folder, self.evaluation)
        # Beside the work of one core that comes first, the server starts on another.
        with server_on_its_way() if missing else nullcontext():
            self.write(folder)
            if missing:
                console.print(f"training and registering {len(missing)} versions of {self.model}")
                self.register(folder)
            outcomes = run_evaluation(load_settings(file, {"home": str(home)}))
        print_outcomes(outcomes, {each.label: each.tags.get("what", "") for each in list_versions(self.model)})
        if self.closing:
            console.print(self.closing)
        console.print(f"evaluation file: {file}")
        console.print(f"took {time.monotonic() - started:.0f} s; open the reports in MLflow's UI with:")
        console.print(f"  congruence ui --home {home}", style="bold")


def _write_data(folder: Path) -> None:
    """The digits, unless they are there: the marker is written last."""
    marker = folder / "digits.json"
    plan = {"train": TRAIN_ROWS, "test": TEST_ROWS, "seed": 0, "format": 1}
    if marker.exists() and json.loads(marker.read_text()) == plan:
        return
    console.print(f"drawing {TRAIN_ROWS:,} training and {TEST_ROWS:,} test images")
    write_digits(folder / "train", "train", rows=TRAIN_ROWS)
    write_digits(folder / "test", "test", rows=TEST_ROWS)
    marker.write_text(json.dumps(plan))


def evaluation_file(folder: Path, content: Mapping[str, Any]) -> Path:
    """``evaluation.yaml`` in ``folder``: left as it is if there, since it is the user's to change."""
    path = folder / "evaluation.yaml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


HOURS = 3000
_HOURS_SPLIT = {
    "uri": "hours.parquet",
    "input_kind": "features",
    "input": list(hourly.INPUTS),
    "target": "count",
    "slices": ["workingday"],
}
HOURLY_EVALUATION = {
    "models": [hourly.MODEL_NAME],
    "splits": [{"name": "hours-as-rows", **_HOURS_SPLIT}, {"name": "hours", **_HOURS_SPLIT, "time": "time"}],
    "encoder": {
        "kind": "identity",
        "dimension": len(hourly.INPUTS),
        "mean": [0.0, 0.0, 0.7, 13.0],
        "scale": [0.7, 0.7, 0.45, 5.0],
    },
    "protocol": {"base": "exact", "normalize": False, "input_kernel": {"kind": "rbf", "gamma": 0.25}},
}


def demo_of(data: str) -> Demo:
    """Returns the demonstration of these data: ``digits`` or ``hourly``."""
    if data == "digits":

        def register(folder: Path) -> None:
            from congruence.tasks.digits.training import register_versions  # PyTorch: the server starts meanwhile

            register_versions(folder / "train")

        said = "rotated digits, seen through noise, and models of their angle"
        return Demo("demo", said, MODEL_NAME, DESCRIPTIONS, EVALUATION, _write_data, register)

    def write(folder: Path) -> None:
        if not (folder / "hours.parquet").exists():
            with whole_file(folder / "hours.parquet") as stream:
                hourly.hourly_counts(HOURS).to_parquet(stream, index=False)

    return Demo(
        "demo-hourly",
        f"{HOURS:,} hours of a known distribution, each like the one before",
        hourly.MODEL_NAME,
        hourly.DESCRIPTIONS,
        HOURLY_EVALUATION,
        write,
        lambda _: hourly.register_versions(),
        "version 1 is the true law: as rows it cannot be judged; with `time: time` it is as expected if true",
    )


MODEL_IN_USE = "house-price"
LOOKS, FAULT_AT, DAY_ROWS = 40, 25, 150
PROMISED_LOOKS = 5
"""A fault of three standard errors a look is found within so many looks (``tests/benchmarks/looks_over_time.md``)."""

OVER_TIME_EVALUATION = {
    "models": [MODEL_IN_USE],
    "splits": [
        {
            "name": "sales",
            "uri": "sales/day={date}/*.parquet",
            "last": "7 days",
            "new_dates_only": True,
            "key": "sale",
            "input_kind": "features",
            "input": ["area", "age"],
            "target": "price",
        }
    ],
    "encoder": {"kind": "identity", "dimension": 2, "mean": [120.0, 40.0], "scale": [46.0, 23.0]},
    "metrics": ["cce", "congruence_test", "calibration", "nll", "crps"],
    "tracking": {"report": False, "source_run_metrics": False},
    "watch": {"in_use": ["champion"], "in_process_rows": 5000, "monitor": {"least_rows": 100}},
}

_FIRST_DAY = date(2026, 3, 1)
_SHIFT = 1.0  # of the predicted spread, for houses under 20 years: about three standard errors of a look


def run_demo_over_time(home: Path) -> None:
    """Make a version and 40 days of data, look at it each day, and say when it was found wrong.

    Raises:
        CongruenceError: a step that cannot be done, with its remedy.
    """
    started = time.monotonic()
    folder = home / "demo-over-time"
    console.print(
        f"{LOOKS} days of {DAY_ROWS} sales; from day {FAULT_AT} on newer houses cost more than the version says"
    )
    point_mlflow_at(tracking_uri(home))
    _register_in_use()
    settings = load_settings(evaluation_file(folder, OVER_TIME_EVALUATION), {"home": str(home)})
    found, looks = None, 0
    for day in range(1, LOOKS + 1):
        _write_day(folder, day)
        result = check_once(settings)
        if result.problems or result.failed:
            raise CongruenceError("; ".join([*result.problems, *(str(outcome.error) for outcome in result.failed)]))
        if not result.sentences:  # this day was looked at before
            continue
        looks += 1
        (account,) = result.accounts.values()
        is_told = found is None and account.monitor.verdict != "right so far"
        found = day if is_told else found
        if is_told or day % 5 == 0:
            console.print(f"day {day}: {result.sentences[0]}", style="bold" if is_told else None, soft_wrap=True)
    seconds = time.monotonic() - started
    if not looks:
        console.print(f"took {seconds:.0f} s; the days were looked at before")
    elif found is None:
        console.print(f"{looks} looks took {seconds:.0f} s; the fault that began on day {FAULT_AT} was not found")
    else:
        late = found - FAULT_AT + 1
        console.print(
            f"{looks} looks took {seconds:.0f} s; the fault began on day {FAULT_AT} and was found at look {late} of it "
            f"(promised: within {PROMISED_LOOKS})"
        )
    console.print(f"the page over time: {over_time_address(MODEL_IN_USE, settings.tracking)}")
    console.print(f"  congruence open {MODEL_IN_USE} --over-time --home {home}", style="bold")


def _write_day(folder: Path, day: int) -> None:
    path = folder / "sales" / f"day={_FIRST_DAY + timedelta(days=day - 1)}" / "sales.parquet"
    if path.exists():
        return
    draw = stream(0, "sales", day)
    area, age = draw.uniform(40.0, 200.0, DAY_ROWS), draw.uniform(0.0, 80.0, DAY_ROWS)
    moved = np.where((age < 20.0) & (day >= FAULT_AT), _SHIFT, 0.0) * _spread(area)
    price = 50.0 + 3.0 * area - 1.5 * age + moved + _spread(area) * draw.normal(size=DAY_ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = [f"{day}-{row}" for row in range(DAY_ROWS)]
    pd.DataFrame({"sale": keys, "area": area, "age": age, "price": price}).to_parquet(path, index=False)


def _spread(area: np.ndarray) -> np.ndarray:
    return np.asarray(10.0 + 0.2 * area)


def _register_in_use() -> None:
    if any(model.name == MODEL_IN_USE for model in mlflow.search_registered_models()):
        return

    def predict(frame: pd.DataFrame) -> pd.DataFrame:
        area, age = frame["area"].to_numpy(), frame["age"].to_numpy()
        return pd.DataFrame({"loc": 50.0 + 3.0 * area - 1.5 * age, "scale": 10.0 + 0.2 * area})

    info = log_predictive_model(
        predict,
        name=MODEL_IN_USE,
        family="normal",
        input_example=pd.DataFrame({"area": [90.0, 120.0], "age": [10.0, 40.0]}),
        registered_model_name=MODEL_IN_USE,
        pip_requirements=["mlflow"],
    )
    MlflowClient().set_registered_model_alias(MODEL_IN_USE, "champion", str(info.registered_model_version))
