"""What both demonstrations do: find what an earlier run registered, and write the evaluation file that a user would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import yaml

from congruence.tasks.models.registry import ModelVersion, list_versions


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
