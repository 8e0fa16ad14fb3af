"""Features are standardised by the workers, to the numbers of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from congruence.flows.evaluation import splits
from congruence.flows.evaluation.splits import with_fitted_encoder
from congruence.flows.evaluation.stages.standardise import standardise
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.embeddings import standardisation
from congruence.tasks.settings.evaluation import EvaluationSettings


@pytest.mark.usefixtures("prefect_server")
def test_workers_take_the_moments_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (splits, standardisation):
        monkeypatch.setattr(place, "PART_ROWS", 50)
    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.normal(size=330), "b": rng.normal(1e3, 2.0, 330), "y": 0.0}).to_parquet(
        tmp_path / "x.parquet"
    )
    split = {"uri": str(tmp_path / "x.parquet"), "input": ["a", "b"], "input_kind": "features", "target": "y"}
    content = {"splits": [split], "encoder": {"kind": "identity"}, "home": str(tmp_path / "home")}
    settings = EvaluationSettings.model_validate(content | {"cluster": {"kind": "threads", "workers": 2}})
    asked: list[Client] = []

    with dask_client(settings.cluster) as client:

        def cluster() -> Client:
            asked.append(client)
            return client

        found = standardise(settings, cluster)
        assert standardise(settings, cluster) == found  # kept
    assert len(asked) == 1
    elsewhere = settings.model_copy(update={"home": tmp_path / "elsewhere"})
    assert with_fitted_encoder(elsewhere).encoder == found.encoder
