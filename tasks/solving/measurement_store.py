"""What solving gives of each version, kept until it is scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration import effects, local_reading, score_test
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.engine import results
from congruence.kernels.engine.driver import with_columns
from congruence.kernels.engine.results import Measured
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.solving.measurement import VersionMeasurement
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore

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
        return VersionMeasurement(with_columns(self.found, columns), dict(self.seconds), calibration)


_KINDS: dict[str, Any] = {
    name: kind
    for module in (effects, local_reading, results, score_test)
    for name, kind in vars(module).items()
    if is_dataclass(kind)
} | {"VersionMeasurement": VersionMeasurement, "BlockMeasurement": BlockMeasurement}
"""What a measurement is made of, by name: nothing else is restored."""


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
