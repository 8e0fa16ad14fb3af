"""Memory of the worker that scores a version, by rows: `python tests/benchmarks/scoring_memory.py ROWS ...`.

Each size is a process of its own: a split of two features, its embeddings and normal predictions in a store, and a
measurement of that length; then `score_version`, and `log_evaluation` to an SQLite database, as a worker does. Printed
are seconds of CPU, what the process took at most beyond what it had before, and a digest of the numbers.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow import MlflowClient

from congruence.kernels import EXACT, Normal
from congruence.kernels.congruence.influence import CongruenceInfluence, CongruenceUncertainty
from congruence.kernels.congruence.outcome import CongruenceTest
from congruence.kernels.congruence.result import CongruenceResult
from congruence.tasks.data import open_split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.mlflow import log_evaluation
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.address import PredictionAddress
from congruence.tasks.models.evaluated_rows import EvaluatedRows, KeptPredictions
from congruence.tasks.models.predictions import write_range
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.points import score_version
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement_store import VersionMeasurement

VERSION = ModelVersion("normal", "1", "models:/normal/1")


def one(n: int, folder: Path) -> None:
    """Score ``n`` rows here and print what it took."""
    rng = np.random.default_rng(0)
    _write_rows(n, folder / "rows.parquet", rng)
    settings = EvaluationSettings.model_validate(
        {
            "splits": [
                {"name": "s", "uri": str(folder / "rows.parquet"), "input": ["a", "b"], "input_kind": "features",
                 "key": "key", "target": "y", "slices": ["part"]}
            ],
            "encoder": {"kind": "identity", "dimension": 2},
            "metrics": ["cce", "congruence_test", "nll", "crps", "pit", "ece", "coverage", "sharpness", "mae", "rmse"],
            "home": str(folder),
        }
    )  # fmt: skip
    split = open_split(settings.splits[0], folder / "plans")
    encoder = FeatureEncoder(settings.encoder)
    store = open_store(str(folder / "store"), settings.store, split, encoder)
    embed_each(split, split.shards, encoder, store)
    store.pending()
    rows = EvaluatedRows(split, store.address)
    address = PredictionAddress.of(str(folder / "store"), split.digest, VERSION, "contract", rows.valid)
    for shard in split.shards:
        law = Normal(rng.normal(size=shard.rows), np.ones(shard.rows))
        write_range(address, [shard], [np.ones(shard.rows, bool)], law)
    rows.predictions[VERSION.label] = KeptPredictions(address, None)  # type: ignore[arg-type] - all are kept
    tracking = TrackingSettings(uri=f"sqlite:///{folder / 'mlflow.db'}", source_run_metrics=False)
    MlflowClient(tracking.uri).create_registered_model(VERSION.name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    made = score_version(settings, rows, encoder, VERSION, EXACT, _measurement(n, rng))  # which nobody else holds
    scored = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log_evaluation(made, tracking)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers = json.dumps({name: f"{metric.value:.10g}" for name, metric in sorted(made.metrics.items())})
    digest = hashlib.sha256(numbers.encode())
    for name in sorted(made.scores.select_dtypes("number")):
        digest.update(name.encode() + made.scores[name].to_numpy(np.float32).tobytes())
    print(f"{n:>10,} rows {seconds:6.1f} s {(peak - before) / 1024:8.0f} MiB more, {peak / 1024:.0f} in all,", end=" ")
    print(f"{scored / 1024:.0f} before logging;", end=" ")
    print(f"numbers {digest.hexdigest()[:12]}")


def _write_rows(n: int, path: Path, rng: np.random.Generator) -> None:
    writer = None
    for start in range(0, n, 2**17):
        rows = min(2**17, n - start)
        frame = pd.DataFrame(
            {
                "key": [f"row {start + row}" for row in range(rows)],
                "a": rng.normal(size=rows),
                "b": rng.normal(size=rows),
                "y": rng.normal(size=rows),
                "part": rng.integers(0, 5, rows).astype(str),
            }
        )
        table = pa.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _measurement(n: int, rng: np.random.Generator) -> VersionMeasurement:
    influence = CongruenceInfluence(1e-4, 1e-2, rng.normal(size=n), rng.normal(size=n), rng.random(99))
    known = CongruenceUncertainty(influence, 1e-4, 1e-6, 1e-6)
    values, floor = rng.random(n) * 0.02, np.full(n, 0.01)
    result = CongruenceResult(values, floor, 1e-7, 1e-8, 1.0, 0, uncertainty=known, bound_kind="certified")
    test = CongruenceTest(1.0, 0.5, rng.random(n), rng.random(n), rng.random(99))
    return VersionMeasurement(result, "nystrom", {"kind": "rbf"}, test)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        with tempfile.TemporaryDirectory() as name:
            one(int(sys.argv[2]), Path(name))
    else:
        for size in sys.argv[1:] or ["250000", "1000000"]:
            subprocess.run([sys.executable, __file__, "--one", size], check=True)
