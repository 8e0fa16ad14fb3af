"""The evaluation file's ``predict:``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import load_settings

SPLIT = {"name": "s", "uri": "s.parquet", "input": ["u", "v"], "input_kind": "features", "target": "y"}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "evaluation.yaml"
    path.write_text(yaml.safe_dump({"splits": [SPLIT], "encoder": {"kind": "identity"}} | changes))
    return path


def test_versions_run_in_the_workers_process_unless_it_is_said(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path)).predict.isolation == "none"
    said = load_settings(write(tmp_path, predict={"isolation": "environment", "timeout": 60})).predict
    assert (said.isolation, said.timeout, said.build_timeout) == ("environment", 60.0, 1800.0)


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        ({"isolation": "docker"}, r"predict.isolation: input should be 'none' or 'environment' \(found 'docker'\)"),
        ({"timeout": 0}, r"predict.timeout: input should be greater than 0"),
        ({"isolated": True}, r"predict.isolated: there is no such key; did you mean 'isolation'\?"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, predict: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(write(tmp_path, predict=predict))
