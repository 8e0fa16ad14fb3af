"""A split of two features in Parquet, and versions as workers are given them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features

from congruence.tasks.contract.model import resolved_contract
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.models import processes
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.processes import ServedVersion
from congruence.tasks.models.registry import list_versions
from congruence.tasks.settings.parts import PredictSettings
from congruence.tasks.settings.sections import PredictionSettings, TrackingSettings
from congruence.tasks.store.embeddings import StoreAddress

ROWS = 50
FRAME = pd.DataFrame(
    {"a": np.linspace(0, 1, ROWS), "b": np.linspace(1, 2, ROWS), "y": np.sin(np.arange(ROWS)), "secret": "target"}
)


@pytest.fixture(autouse=True)
def no_model_outlives_its_test() -> Iterator[None]:
    processes._models.clear()
    yield
    processes._models.clear()


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """50 rows in 5 shards."""
    FRAME.to_parquet(tmp_path / "split.parquet")
    return open_split(of_features(tmp_path / "split.parquet", ["a", "b"], shard_rows=10))


Served = Callable[..., ServedVersion]


@pytest.fixture(autouse=True)
def functions_travel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of the tests are pickled with their code: a version's process does not find their modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def served(registry: str, registry_uri: str, tmp_path: Path) -> Served:
    """The newest version of a name as a worker is given it."""

    def give(name: str = registry, predictions: PredictionSettings | None = None, **settings: Any) -> ServedVersion:
        version = list_versions(name)[-1]
        return ServedVersion(
            version,
            resolved_contract(version, predictions),
            TrackingSettings(uri=registry_uri),
            PredictSettings(**settings),
            str(tmp_path / "environments"),
        )

    return give


@pytest.fixture
def rows(tmp_path: Path, split: Split) -> Callable[..., EvaluatedRows]:
    """The rows of the split with versions; ``valid`` are those that would have an embedding."""

    def give(*served: ServedVersion, valid: Any = None) -> EvaluatedRows:
        address = StoreAddress(str(tmp_path / "store"), {}, "encoder", 2)
        found = EvaluatedRows(split, address, {each.label: each for each in served})
        found.__dict__["valid"] = np.ones(split.rows, bool) if valid is None else valid
        return found

    return give
