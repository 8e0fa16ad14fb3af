"""How many tasks of a stage run at once, over all evaluations of a Prefect server: a limit on the stage's tag."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from prefect.client.orchestration import get_client

from congruence.flows.evaluation.pipeline import evaluate
from congruence.tasks.contract import log_predictive_model

TAG = "congruence-predict"


@pytest.fixture
def one_at_a_time(prefect_server: None) -> Iterator[None]:
    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag=TAG, concurrency_limit=1)
        yield
        client.delete_concurrency_limit_by_tag(tag=TAG)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_limit_on_the_tag_of_a_stage_is_kept(registry: Any) -> None:
    times = registry.folder / "times.txt"

    def predict(frame: pd.DataFrame) -> pd.DataFrame:
        import time

        began = time.monotonic()
        time.sleep(0.2)
        with times.open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")
        return pd.DataFrame({"loc": 2 * frame["angle"], "scale": 1.0})

    example = pd.DataFrame({"angle": [0.1, 0.2]})
    for name in ("one", "two"):
        log_predictive_model(predict, name=name, family="normal", input_example=example, registered_model_name=name)
    times.unlink()
    outcomes = evaluate(registry.settings(models=["one", "two"], cluster={"kind": "threads", "workers": 4}), "one, two")
    assert [outcome.status for outcome in outcomes] == ["evaluated", "evaluated"]
    spans = sorted(tuple(map(float, line.split())) for line in times.read_text().splitlines())
    # The first four are the checks of the contract, which no limit holds back.
    assert len(spans) == 2 * 2 + 2 * 2
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans[4:]))
