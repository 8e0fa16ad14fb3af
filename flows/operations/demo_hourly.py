"""`congruence demo --data hourly`: rows that depend on each other, with and without being told so.

Counts of every hour under a law that is known, in which an hour is like the one before it. The same file is two splits:
``hours-as-rows`` does not name its time, and says that its rows are correlated; ``hours`` names it, and judges.
"""

from __future__ import annotations

import time
from pathlib import Path

from congruence.flows.cli.console import console
from congruence.flows.cli.tables import print_outcomes
from congruence.flows.operations.demo import descriptions, evaluation_file, registered_versions
from congruence.flows.session import run_evaluation
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.hourly import DESCRIPTIONS, INPUTS, MODEL_NAME, hourly_counts, register_versions
from congruence.tasks.runtime.files import tracking_uri, whole_file
from congruence.tasks.runtime.mlflow_access import point_mlflow_at
from congruence.tasks.settings.evaluation import load_settings

ROWS = 3000
_SPLIT = {
    "uri": "hours.parquet",
    "input_kind": "features",
    "input": list(INPUTS),
    "target": "count",
    "slices": ["workingday"],
}
EVALUATION = {
    "models": [MODEL_NAME],
    "splits": [{"name": "hours-as-rows", **_SPLIT}, {"name": "hours", **_SPLIT, "time": "time"}],
    "encoder": {
        "kind": "identity",
        "dimension": len(INPUTS),
        "mean": [0.0, 0.0, 0.7, 13.0],
        "scale": [0.7, 0.7, 0.45, 5.0],
    },
    "protocol": {"base": "exact", "normalize": False, "input_kernel": {"kind": "rbf", "gamma": 0.25}},
}


def run_demo_hourly(home: Path) -> list[VersionOutcome]:
    """Make the data and the versions, evaluate them on both splits, and show the tables.

    Raises:
        CongruenceError: a step that cannot be done, with its remedy.
    """
    started = time.monotonic()
    folder = home / "demo-hourly"
    console.print(f"{ROWS:,} hours of a known distribution, each like the one before; all is written to {home}")
    point_mlflow_at(tracking_uri(home))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "hours.parquet").exists():
        with whole_file(folder / "hours.parquet") as stream:
            hourly_counts(ROWS).to_parquet(stream, index=False)
    if len(registered_versions(MODEL_NAME)) < len(DESCRIPTIONS):
        console.print(f"registering {len(DESCRIPTIONS)} versions of {MODEL_NAME}")
        register_versions()
    file = evaluation_file(folder, EVALUATION)
    outcomes = run_evaluation(load_settings(file, {"home": str(home)}))
    print_outcomes(outcomes, descriptions(MODEL_NAME))
    console.print("version 1 is the true law: as rows it cannot be judged; with `time: time` it is as expected if true")
    console.print(f"evaluation file: {file}")
    console.print(f"took {time.monotonic() - started:.0f} s; open the reports in MLflow's UI with:")
    console.print(f"  congruence ui --home {home}", style="bold")
    return outcomes
