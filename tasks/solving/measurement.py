"""The measurement of all versions on rows in memory: their CCE by one driver, and calibration given the input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.conditional_calibration.version_calibration import (
    VersionCalibration,
    calibration_of_split,
    can_be_tested,
)
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.driver import Accuracy, Ask
from congruence.kernels.engine.measure import HeldSplit, measure_held
from congruence.kernels.engine.system import protocol_inputs
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.weights import mean_one
from congruence.tasks.scores.metrics.asked import MetricName
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.solving.measurement_store import VersionMeasurement


class MeasurementSettings(Protocol):
    """What a measurement reads of an evaluation's settings."""

    @property
    def seed(self) -> int:
        """Of draws and of the noise floor's probes."""

    @property
    def metrics(self) -> list[MetricName] | None:
        """Which metrics; None for all."""


def measure(
    settings: MeasurementSettings,
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    versions: Mapping[str, Distribution],
    *,
    query: Array | None = None,
    keys: Array | None = None,
    weights: Array | None = None,
    dependence: RowDependence | None = None,
    accuracy: Accuracy | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, VersionMeasurement]:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q), in this process.

    It is measured at the same points, or at the embeddings ``query`` (m, d). ``keys`` name the rows for the randomised
    PIT of counts, as in the scores; ``weights`` are what each point counts in means over them. Calibration given the
    input is measured at the targets' own rows under protocols without repeats (``can_be_tested``). ``dependence`` says
    which rows may depend on each other; ``accuracy``, how many landmarks the answers stand on.
    """
    targets, started = require_targets(targets, "y", len(embeddings)), time.perf_counter()
    counted = None if weights is None else mean_one(weights, len(embeddings if query is None else query))
    split = HeldSplit(embeddings, targets, query, counted, dependence)
    ask = Ask(list(versions), tested="congruence_test" in requested_metrics(settings.metrics))
    found = measure_held(split, protocol, versions, ask, accuracy or Accuracy(), settings.seed, announce)
    seconds = {"solve": time.perf_counter() - started}
    started = time.perf_counter()
    calibration: dict[str, VersionCalibration] = {}
    if "calibration" in requested_metrics(settings.metrics) and can_be_tested(protocol, targets, query):
        x = protocol_inputs(protocol, embeddings, 0, embeddings.dtype)
        shared = calibration_of_split(protocol, x, targets, weights=counted, seed=settings.seed)
        for name, predictive in versions.items():
            with suppress(TooFewBlocksError):
                calibration[name] = shared.of_version(
                    targets, predictive, keys=keys, seed=settings.seed, dependence=dependence
                )
        seconds["calibration"] = time.perf_counter() - started
    return {name: VersionMeasurement.of(one, seconds, calibration.get(name)) for name, one in found.items()}
