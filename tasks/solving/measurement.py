"""The measurement of all versions on rows in memory: their CCE by one driver, and calibration given the input."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_targets
from congruence.kernels.conditional_calibration.prepared import calibrate
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import Columns, HeldRows, LocalPasses, blocks_of_version
from congruence.kernels.engine.driver import HeldSplit, with_columns
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.scores.metrics.registry import requested_metrics


@dataclass(frozen=True)
class VersionMeasurement:
    """What was measured of one version on a split.

    Attributes:
        result: CCE with its uncertainty, noise floor, certificate, expected mean and test, and how it was made.
        seconds: wall time by stage.
        calibration: given the input, where it was asked for and is measured.
        rows: how many, where the columns of points and rows lie block by block; None where they are here.
    """

    result: CongruenceResult
    seconds: dict[str, float] = field(default_factory=dict)
    calibration: VersionCalibration | None = None
    rows: int | None = None

    def whole(self, columns: Mapping[str, Array]) -> VersionMeasurement:
        """Returns it with the columns of all blocks."""
        calibration = None if self.calibration is None else self.calibration.whole(columns)
        return VersionMeasurement(with_columns(self.result, columns), self.seconds, calibration)


def measure(
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    versions: Mapping[str, Distribution],
    *,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
    query: Array | None = None,
    keys: Array | None = None,
    weights: Array | None = None,
    dependence: RowDependence | None = None,
    accuracy: Accuracy | None = None,
) -> dict[str, VersionMeasurement]:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q), in this process.

    ``metrics`` say what is measured beside it (None: all); ``seed`` is of draws and of the noise floor's probes. It is
    measured at the same points, or at the embeddings ``query`` (m, d). ``keys`` name the rows for the randomised
    PIT of counts, as in the scores; ``weights`` are what each point counts in means over them. Calibration given the
    input is measured at the targets' own rows under protocols without repeats. ``dependence`` says
    which rows may depend on each other; ``accuracy``, how many landmarks the answers stand on.
    """
    targets, started = require_targets(targets, "y", len(embeddings)), time.perf_counter()
    counted = None if weights is None else mean_one(weights, len(embeddings if query is None else query))
    split = HeldSplit(embeddings, targets, query, counted, dependence)
    requested = requested_metrics(metrics)
    ask = Ask(list(versions), tested="congruence_test" in requested)
    found = measure_held(split, protocol, versions, ask, accuracy or Accuracy(), seed)
    seconds = {"solve": time.perf_counter() - started}
    started = time.perf_counter()
    calibration: dict[str, VersionCalibration] = {}
    if "calibration" in requested and query is None and not protocol.is_repeated:
        columns = Columns()
        rows = HeldRows(embeddings, targets, versions, counted, len(embeddings), keys)
        blocks = {name: blocks_of_version(dependence, targets, predictive) for name, predictive in versions.items()}
        inputs = blake2b(np.ascontiguousarray(embeddings).data).digest(), embeddings.shape, embeddings.dtype.str
        calibration = calibrate(
            LocalPasses(rows),
            len(targets),
            protocol,
            [name for name, found_blocks in blocks.items() if not found_blocks.refused],
            columns,
            is_scalar=targets.ndim == 1,
            seed=seed,
            dtype=embeddings.dtype,
            dependent={name: found_blocks.blocks for name, found_blocks in blocks.items()},
            known=_known_null(*inputs, protocol.digest, seed),
        )
        for name in columns.written:  # none of vector targets, which have no reading
            calibration[name] = calibration[name].whole(columns.of(name))
        seconds["calibration"] = time.perf_counter() - started
    return {name: VersionMeasurement(one, seconds, calibration.get(name)) for name, one in found.items()}


@lru_cache(maxsize=32)  # of 200 kB each
def _known_null(*of: object) -> dict[int, Array]:  # noqa: ARG001
    """Where the null of some inputs stays: what is measured on them later shares it, whatever its targets."""
    return {}
