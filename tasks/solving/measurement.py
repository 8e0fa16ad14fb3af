"""What solving gives of each version, and how that is kept until it is scored."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_targets
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest, Effect
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalDistribution
from congruence.kernels.conditional_calibration.prepared import KeyedRows, calibrate
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import LocalPasses, blocks_of_version
from congruence.kernels.engine.driver import Columns, HeldSplit
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Accuracy, Ask
from congruence.kernels.engine.results import (
    BlocksInference,
    CongruenceInfluence,
    CongruenceResult,
    CongruenceTest,
    CongruenceUncertainty,
    ErrorBounds,
    ExpectedCongruence,
    Measured,
)
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.scores.metrics.asked import MetricName
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore


@dataclass(frozen=True)
class VersionMeasurement:
    """What was measured of one version on a split.

    Attributes:
        result: CCE with its uncertainty, noise floor, certificate, expected mean and test, and how it was made.
        seconds: wall time by stage.
        calibration: given the input, where it was asked for and is measured.
    """

    result: CongruenceResult
    seconds: dict[str, float] = field(default_factory=dict)
    calibration: VersionCalibration | None = None

    @property
    def test(self) -> CongruenceTest | None:
        """The Monte-Carlo test of congruence, where it was asked for."""
        return self.result.test

    @property
    def expected(self) -> ExpectedCongruence | None:
        """What the mean CCE would be if the version were the truth."""
        return self.result.band

    @property
    def repeat_std(self) -> float | None:
        """Standard deviation of the mean CCE over the repeats of a protocol that has them."""
        return None if self.result.means is None else self.result.std


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
    input is measured at the targets' own rows under protocols without repeats. ``dependence`` says
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
    if "calibration" in requested_metrics(settings.metrics) and query is None and not protocol.is_repeated:
        rows, columns = KeyedRows.of(embeddings, targets, versions, weights=counted, keys=keys), Columns()
        blocks = {name: blocks_of_version(dependence, targets, predictive) for name, predictive in versions.items()}
        calibration = calibrate(
            LocalPasses(rows),
            len(targets),
            protocol,
            [name for name, found_blocks in blocks.items() if not found_blocks.refused],
            columns,
            is_scalar=targets.ndim == 1,
            seed=settings.seed,
            dtype=embeddings.dtype,
            dependent={name: found_blocks.blocks for name, found_blocks in blocks.items()},
        )
        for name in columns.written:  # none of vector targets, which have no reading
            calibration[name] = calibration[name].whole(columns.of(name))
        seconds["calibration"] = time.perf_counter() - started
    return {name: VersionMeasurement(one, seconds, calibration.get(name)) for name, one in found.items()}


_DESCRIPTION = "description"
_LONGEST_NAME = 128
_OF_ROWS = (PREFIX, "influence", "statistic")


@dataclass(frozen=True)
class BlockMeasurement:
    """What a split in blocks of rows said of one version, whose columns lie block by block.

    Attributes:
        found: by the passes.
        seconds: of each pass, summed over the landmark counts that were tried.
        calibration: given the input, where it was asked for.
    """

    found: Measured
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    calibration: VersionCalibration | None = None

    def whole(self, columns: Mapping[str, Array]) -> VersionMeasurement:
        """Returns the measurement with the columns of all blocks."""
        calibration = None if self.calibration is None else self.calibration.whole(columns)
        return VersionMeasurement(self.found.with_columns(columns), dict(self.seconds), calibration)


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        VersionMeasurement,
        BlockMeasurement,
        Measured,
        ErrorBounds,
        CongruenceResult,
        CongruenceUncertainty,
        CongruenceInfluence,
        CongruenceTest,
        ExpectedCongruence,
        VersionCalibration,
        ConditionalCalibrationTest,
        Effect,
        LocalDistribution,
        BlocksInference,
    )
}


@dataclass(frozen=True)
class MeasurementAddress:
    """Where the measurement of one version on one split is kept: an object of the embeddings' store."""

    uri: str
    key: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)

    def write(self, measurement: VersionMeasurement | BlockMeasurement) -> None:
        """Keep ``measurement``, whole or not at all."""
        self._objects().put(self.key, to_bytes(measurement))

    def write_columns(self, block: int, columns: Mapping[str, Array]) -> None:
        """Keep columns of one block of rows; the measurement itself is written when all of them are there."""
        content = to_npz({name: _narrow(name, values) for name, values in columns.items()})
        self._objects().put(f"{self._blocks}/{block:06d}-{_named(columns)}.npz", content)

    def read(self) -> VersionMeasurement | None:
        """What is kept, None where nothing is or it is damaged."""
        objects = self._objects()
        content = objects.get(self.key)
        if content is None:
            return None
        try:
            kept = from_bytes(content)
            if isinstance(kept, VersionMeasurement):
                return kept
            return kept.whole(self._columns(objects, kept.found.rows))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _columns(self, objects: ObjectStore, rows: int) -> dict[str, Array]:
        """The columns of all blocks, each put where it belongs as it is read, so that none is held twice."""
        columns: dict[str, Array] = {}
        filled: dict[str, int] = {}
        for key in sorted(objects.sizes(self._blocks)):  # by their names, block after block
            for name, values in from_npz(objects.get(key) or b"").items():
                if name not in columns:
                    columns[name], filled[name] = np.empty(rows, values.dtype), 0
                first, filled[name] = filled[name], filled[name] + len(values)
                columns[name][first : filled[name]] = values
        for name, found in filled.items():
            if found != rows:
                raise ValueError(f"{name}: {found} rows, expected {rows}")
        return columns

    def require(self) -> VersionMeasurement:
        """What is kept.

        Raises:
            StoreError: nothing, or something damaged.
        """
        found = self.read()
        if found is None:
            raise StoreError(
                f"{self.uri}: {self.key} is missing or damaged; run again: only this version is solved again"
            )
        return found

    def remove(self) -> None:
        """Forget it: it is logged."""
        objects = self._objects()
        objects.remove([self.key, *objects.sizes(self._blocks)])

    @property
    def _blocks(self) -> str:
        return self.key.removesuffix(".npz")

    def _objects(self) -> ObjectStore:
        return ObjectStore(self.uri, self.storage_options)


def _narrow(name: str, values: Array) -> Array:
    """What is logged of a row and goes into no number of all rows, in the single precision in which it is logged."""
    column = np.asarray(values)
    return column.astype(np.float32) if column.dtype == np.float64 and name.startswith(_OF_ROWS) else column


def _named(columns: Mapping[str, Array]) -> str:
    """The names of columns, or their digest where a file could not be called so."""
    names = "+".join(sorted(columns))
    return names if len(names) <= _LONGEST_NAME else hashlib.sha256(names.encode()).hexdigest()[:16]


def to_bytes(measurement: VersionMeasurement | BlockMeasurement) -> bytes:
    """``measurement`` as an NPZ file."""
    arrays: dict[str, Array] = {}
    described = _describe(measurement, "", arrays)
    arrays[_DESCRIPTION] = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
    return to_npz(arrays)


def from_bytes(content: bytes) -> VersionMeasurement | BlockMeasurement:
    """The measurement that ``to_bytes`` wrote.

    Raises:
        ValueError, KeyError, TypeError: the content is damaged.
    """
    arrays = from_npz(content)
    restored = _restore(json.loads(arrays[_DESCRIPTION].tobytes()), arrays)
    if not isinstance(restored, VersionMeasurement | BlockMeasurement):
        raise ValueError(f"a {type(restored).__name__}, not a measurement")
    return restored


def _describe(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if type(value).__name__ in _KINDS:
        parts = {
            item.name: _describe(getattr(value, item.name), f"{name}.{item.name}".lstrip("."), arrays)
            for item in fields(value)
        }
        return {"kind": type(value).__name__, "fields": parts}
    if isinstance(value, Mapping):
        return {"mapping": {key: _describe(part, f"{name}.{key}", arrays) for key, part in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [_describe(part, f"{name}.{place}", arrays) for place, part in enumerate(value)]}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    return {"value": value}


def _restore(described: dict[str, Any], arrays: dict[str, Array]) -> Any:
    if "array" in described:
        return arrays[described["array"]]
    if "kind" in described:
        parts = {name: _restore(part, arrays) for name, part in described["fields"].items()}
        return _KINDS[described["kind"]](**parts)
    if "mapping" in described:
        return {key: _restore(part, arrays) for key, part in described["mapping"].items()}
    if "tuple" in described:
        return tuple(_restore(part, arrays) for part in described["tuple"])
    return described["value"]
