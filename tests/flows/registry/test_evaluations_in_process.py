"""Evaluations in the process that asks for them, without Prefect and Dask."""

from __future__ import annotations

from typing import Any

import pandas as pd

from congruence.tasks.evaluate.evaluation import evaluate
from congruence.tasks.evaluate.executors import LocalExecutor
from congruence.tasks.evaluate.observer import Observer
from congruence.tasks.evaluate.plan import Plan


def test_rows_far_out_are_named_wherever_they_lie(registry: Any) -> None:
    rows = pd.read_parquet(registry.split)
    rows.loc[rows.index[-6:], "y"] += 60.0
    path = registry.folder / "far.parquet"
    rows.to_parquet(path, index=False)
    registry.register("far-out")
    split = registry.content()["splits"][0] | {"name": "far", "uri": str(path)}
    (outcome,) = evaluate(Plan(registry.settings(models=["far-out"], splits=[split])), LocalExecutor, Observer())
    assert outcome.error is None
    said = " ".join(outcome.wrong)
    assert any(str(key) in said for key in rows["key"].iloc[-6:]), said
