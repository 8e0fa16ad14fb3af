"""Memory of the worker that scores a version, by rows: `python tests/benchmarks/scoring_memory.py ROWS ...`.

Each size is a process of its own: a split of two features, its embeddings and normal predictions in a store, and a
measurement in blocks of rows whose columns repeat those of 3,000 rows, calibration given the input with them; then
`score_version`, and `log_evaluation` to an SQLite database, as a worker does. Printed are seconds of CPU, what the
process took at most beyond what it had before, and a digest of the numbers.
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
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.version_calibration import calibration_of_split
from congruence.kernels.conditional_calibration.version_test import INFLUENCE
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.influence import CongruenceInfluence, CongruenceUncertainty
from congruence.kernels.congruence.outcome import CongruenceTest
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.row_blocks.answer import BlockMeasurement
from congruence.kernels.row_blocks.calibration import CalibrationInBlocks
from congruence.kernels.solvers.bounds import SolverBounds
from congruence.tasks.data.opening import open_split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.address import PredictionAddress
from congruence.tasks.models.evaluated_rows import EvaluatedRows, KeptPredictions
from congruence.tasks.models.predictions import write_range
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.memory import give_back
from congruence.tasks.scores.version import score_version
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement_store import MeasurementAddress

MEASURED, BLOCK_ROWS = 3_000, 2**16
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
            "metrics": ["cce", "congruence_test", "nll", "crps", "pit", "ece", "coverage", "sharpness", "mae", "rmse",
                        "calibration", "recalibration"],
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
    kept = _measured(n, folder, rng)
    give_back()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    made = score_version(settings, rows, encoder, VERSION, EXACT, kept.require())  # which nobody else holds
    scored = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    give_back()
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


def _measured(n: int, folder: Path, rng: np.random.Generator) -> MeasurementAddress:
    x, y = rng.normal(size=(MEASURED, 2)), 1.3 * rng.normal(size=MEASURED)  # a fault, so that a correction is tried
    split = calibration_of_split(prepare(x, input_kernel=EXACT.input_kernel), x, y, seed=0)
    version = split.of_version(y, Normal(np.zeros(MEASURED), np.ones(MEASURED)), keys=None, seed=0)
    assert version.reading is not None
    assert version.regions is not None
    assert version.curves is not None
    columns = version.reading.by_row() | {f"{PREFIX}region": version.regions.labels}
    columns |= {f"{INFLUENCE}{order}": version.influence[:, j] for j, order in enumerate(ORDERS)}
    columns |= {"cce": rng.random(MEASURED) * 0.02, "noise_floor": np.full(MEASURED, 0.01)}
    columns |= {name: rng.normal(size=MEASURED) for name in ("influence", "influence_squared", "statistic")}
    columns["p_value"] = rng.integers(1, 200, MEASURED) / 200
    kept = MeasurementAddress(str(folder / "store"), "measured.npz")
    for block, start in enumerate(range(0, n, BLOCK_ROWS)):
        rows = np.arange(start, min(n, start + BLOCK_ROWS)) % MEASURED
        kept.write_columns(block, {name: values[rows] for name, values in columns.items()})
    none = np.empty(0)
    known = CongruenceUncertainty(CongruenceInfluence(1e-4, 1e-2, none, none, rng.random(99)), 1e-4, 1e-6, 1e-6)
    bounds, test = SolverBounds(1e-7, 1e-8, "certified"), CongruenceTest(1.0, 0.5, none, none, rng.random(99))
    expected = ExpectedCongruence(0.01, 0.009, 0.011)
    calibration = CalibrationInBlocks(version.test, version.reading.mixing, version.regions.medoids, version.curves)
    solved = BlockMeasurement(n, 0.01, 0.01, bounds, known, expected, test, 512, {"kind": "rbf"}, None, calibration)
    kept.write(solved)
    return kept


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        with tempfile.TemporaryDirectory() as name:
            one(int(sys.argv[2]), Path(name))
    else:
        for size in sys.argv[1:] or ["250000", "1000000"]:
            subprocess.run([sys.executable, __file__, "--one", size], check=True)
