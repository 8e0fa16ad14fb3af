"""`congruence demo`: the main job on data whose conditional law is known, from nothing, offline.

Rotated handwritten digits, several versions of a model in an MLflow registry, an evaluation file, and the evaluation
flow itself: what a user would do by hand, in their order. Every part that is already there is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import yaml

from congruence.flows.cli.console import console
from congruence.flows.cli.tables import print_outcomes
from congruence.flows.session import run_evaluation
from congruence.tasks.digits.dataset import write_digits
from congruence.tasks.digits.models import DESCRIPTIONS, MODEL_NAME, register_versions
from congruence.tasks.models.registry import list_versions
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.runtime.mlflow_access import point_mlflow_at
from congruence.tasks.settings.evaluation import load_settings
from congruence.tasks.settings.sections import ModelVersion

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


def run_demo(home: Path) -> None:
    """Make the data and the versions, evaluate them, and show the table.

    Raises:
        CongruenceError: a step that cannot be done, with its remedy.
    """
    started = time.monotonic()
    folder = home / "demo"
    console.print(f"data, models and results are written to {home}")
    point_mlflow_at(tracking_uri(home))
    _write_data(folder)
    _register(folder)
    file = evaluation_file(folder, EVALUATION)
    settings = load_settings(file, {"home": str(home)})
    outcomes = run_evaluation(settings)
    print_outcomes(outcomes, descriptions(MODEL_NAME))
    console.print(f"evaluation file: {file}")
    console.print(f"took {time.monotonic() - started:.0f} s; compare the versions in MLflow's UI with:")
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


def _register(folder: Path) -> None:
    if len(registered_versions(MODEL_NAME)) >= len(DESCRIPTIONS):
        return
    console.print(f"training and registering {len(DESCRIPTIONS)} versions of {MODEL_NAME}")
    register_versions(folder / "train")


def registered_versions(name: str) -> list[ModelVersion]:
    """The versions of a registered model, none where there is no such model."""
    known = any(model.name == name for model in mlflow.search_registered_models())
    return list_versions(name) if known else []


def descriptions(name: str) -> dict[str, str]:
    """What each version of a registered model is, by its label."""
    return {version.label: version.tags.get("what", "") for version in registered_versions(name)}


def evaluation_file(folder: Path, content: Mapping[str, Any]) -> Path:
    """``evaluation.yaml`` in ``folder``: left as it is if there, since it is the user's to change."""
    path = folder / "evaluation.yaml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path
