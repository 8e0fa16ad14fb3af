"""What an evaluation gives where one of its versions fails, and under a protocol with a reference split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from congruence.flows.evaluate import evaluate
from congruence.tasks.mlflow.reading import read_scores


@pytest.mark.usefixtures("prefect_server")
def test_a_version_that_fails_does_not_stop_the_others(registry: Any) -> None:
    models = [registry.register(), registry.register("broken", fails=True)]
    outcomes = {outcome.label: outcome for outcome in evaluate(registry.settings(models=models), "both")}
    assert outcomes["angle/1"].status == "evaluated"
    assert outcomes["broken/1"].status == "failed"
    assert "scale" in str(outcomes["broken/1"].error)


@pytest.mark.usefixtures("prefect_server")
def test_a_protocol_with_a_bootstrapped_validation_reference(registry: Any, rows_file: Callable[..., Path]) -> None:
    (split,) = registry.content()["splits"]
    reference = split | {"name": "validation", "uri": str(rows_file(registry.folder / "validation.parquet", 1, 120))}
    changes = {"protocol": {"base": "ecai", "bootstraps": 3, "draws": 2}, "reference": reference, "metrics": ["nll"]}
    (outcome,) = evaluate(registry.settings(models=[registry.register("bootstrapped")], **changes), "bootstrapped")
    assert outcome.status == "evaluated"
    assert outcome.metrics["cce_std"].value > 0
    assert outcome.run_id is not None
    assert len(read_scores(outcome.run_id)) == 160
