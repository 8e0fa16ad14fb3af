"""`congruence demo --over-time`: a version in use is looked at every day, and from one day on it is wrong.

Days of sales whose law is known: the price of a house given its area and its age. On day 25 of 40 the market moves:
newer houses cost more than the version says. Each day is a file, and each look is that of `congruence watch`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from mlflow import MlflowClient

from congruence.flows.cli.console import console
from congruence.flows.operations.demo import evaluation_file, registered_versions
from congruence.flows.operations.listing import over_time_address
from congruence.flows.watch import check_once
from congruence.kernels.errors import CongruenceError
from congruence.kernels.streams import stream
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.runtime.mlflow_access import point_mlflow_at
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

MODEL_NAME = "house-price"
LOOKS, FAULT_AT, ROWS = 40, 25, 150
PROMISED_LOOKS = 5
"""A fault of three standard errors a look is found within so many looks (``tests/benchmarks/looks_over_time.md``)."""

EVALUATION = {
    "models": [MODEL_NAME],
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
    console.print(f"{LOOKS} days of {ROWS} sales; from day {FAULT_AT} on newer houses cost more than the version says")
    point_mlflow_at(tracking_uri(home))
    _register()
    settings = load_settings(evaluation_file(folder, EVALUATION), {"home": str(home)})
    found, looks = None, 0
    for day in range(1, LOOKS + 1):
        look = _look(folder, day, settings)
        if look is None:
            continue
        looks += 1
        if found is None and look.verdict != "right so far":
            found = day
            console.print(f"day {day}: {look.sentence}", style="bold", soft_wrap=True)
        elif day % 5 == 0:
            console.print(f"day {day}: {look.sentence}", soft_wrap=True)
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
    console.print(f"the page over time: {over_time_address(MODEL_NAME, settings.tracking)}")
    console.print(f"  congruence open {MODEL_NAME} --over-time --home {home}", style="bold")


@dataclass(frozen=True)
class _Look:
    """What the account says after a look."""

    sentence: str
    verdict: str


def _look(folder: Path, day: int, settings: EvaluationSettings) -> _Look | None:
    """Let a day's file come, and look; None where it was looked at before."""
    _write_day(folder, day)
    result = check_once(settings)
    if result.problems or result.failed:
        raise CongruenceError("; ".join([*result.problems, *(str(outcome.error) for outcome in result.failed)]))
    (account,) = result.accounts.values()
    return next((_Look(sentence, account.monitor.verdict) for sentence in result.sentences), None)


def _write_day(folder: Path, day: int) -> None:
    path = folder / "sales" / f"day={_FIRST_DAY + timedelta(days=day - 1)}" / "sales.parquet"
    if path.exists():
        return
    draw = stream(0, "sales", day)
    area, age = draw.uniform(40.0, 200.0, ROWS), draw.uniform(0.0, 80.0, ROWS)
    moved = np.where((age < 20.0) & (day >= FAULT_AT), _SHIFT, 0.0) * _spread(area)
    price = 50.0 + 3.0 * area - 1.5 * age + moved + _spread(area) * draw.normal(size=ROWS)
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = [f"{day}-{row}" for row in range(ROWS)]
    pd.DataFrame({"sale": keys, "area": area, "age": age, "price": price}).to_parquet(path, index=False)


def _spread(area: np.ndarray) -> np.ndarray:
    return np.asarray(10.0 + 0.2 * area)


def _register() -> None:
    if registered_versions(MODEL_NAME):
        return

    def predict(frame: pd.DataFrame) -> pd.DataFrame:
        area, age = frame["area"].to_numpy(), frame["age"].to_numpy()
        return pd.DataFrame({"loc": 50.0 + 3.0 * area - 1.5 * age, "scale": 10.0 + 0.2 * area})

    info = log_predictive_model(
        predict,
        name=MODEL_NAME,
        family="normal",
        input_example=pd.DataFrame({"area": [90.0, 120.0], "age": [10.0, 40.0]}),
        registered_model_name=MODEL_NAME,
        pip_requirements=["mlflow"],
    )
    MlflowClient().set_registered_model_alias(MODEL_NAME, "champion", str(info.registered_model_version))
