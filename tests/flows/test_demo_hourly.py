"""`congruence demo --data hourly`: the command itself, on fewer hours and the true version alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.flows.operations import demo_hourly
from congruence.tasks.hourly import models


@pytest.mark.usefixtures("prefect_server")
def test_the_true_law_is_judged_once_time_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "cluster": {"kind": "threads", "workers": 1},
        "metrics": ["cce", "congruence_test"],
        "tracking": {"report": False},
    }
    monkeypatch.setattr(demo_hourly, "ROWS", 1_000)
    monkeypatch.setattr(demo_hourly, "EVALUATION", {**demo_hourly.EVALUATION, **small})
    for place, name in ((models, "_VERSIONS"), (models, "DESCRIPTIONS"), (demo_hourly, "DESCRIPTIONS")):
        monkeypatch.setattr(place, name, {"truth": getattr(place, name)["truth"]})
    shown = CliRunner().invoke(app, ["demo", "--data", "hourly", "--home", str(home)])
    assert shown.exit_code == 0, shown.output
    as_rows, hours = shown.output.split("split 'hours-as-rows'", 1)[1].split("split 'hours'", 1)
    assert "not judged" in as_rows
    assert "no fault found" in hours
    assert len(pd.read_parquet(home / "demo-hourly" / "hours.parquet")) == 1_000
