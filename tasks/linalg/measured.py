"""A version's measurement as one object that workers leave for each other: arrays with a description, no pickle."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.influence import CongruenceInfluence, CongruenceUncertainty
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.congruence.test import CongruenceTest
from congruence.kernels.protocol.repeats import RepeatedResult
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.store import StoreError

_DESCRIPTION = "description"


@dataclass(frozen=True)
class VersionMeasurement:
    """What the Gram system of a split said of one version.

    Attributes:
        result: CCE with its uncertainty, noise floor and certificate.
        solver: what solved the system, in words.
        output_kernel: k_Y with its resolved bandwidth.
        test: the Monte-Carlo test of congruence, where it was asked for.
        expected: what the mean CCE would be if the version were the truth.
        repeat_std: standard deviation of the mean CCE over the repeats of a protocol that has them.
        seconds: wall time by stage.
    """

    result: CongruenceResult
    solver: str
    output_kernel: dict[str, Any]
    test: CongruenceTest | None = None
    expected: ExpectedCongruence | None = None
    repeat_std: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        VersionMeasurement,
        CongruenceResult,
        RepeatedResult,
        CongruenceUncertainty,
        CongruenceInfluence,
        CongruenceTest,
        ExpectedCongruence,
    )
}


@dataclass(frozen=True)
class MeasurementAddress:
    """Where the measurement of one version on one split is kept: an object of the embeddings' store."""

    uri: str
    key: str
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)

    def write(self, measurement: VersionMeasurement) -> None:
        """Keep ``measurement``, whole or not at all."""
        self._objects().put(self.key, to_bytes(measurement))

    def read(self) -> VersionMeasurement | None:
        """What is kept, None where nothing is or it is damaged."""
        content = self._objects().get(self.key)
        if content is None:
            return None
        try:
            return from_bytes(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def require(self) -> VersionMeasurement:
        """What is kept.

        Raises:
            StoreError: nothing, or something damaged.
        """
        found = self.read()
        if found is None:
            raise StoreError(f"{self.uri}: {self.key} is missing or damaged; run again: the version is solved anew")
        return found

    def remove(self) -> None:
        """Forget it: it is logged."""
        self._objects().remove([self.key])

    def _objects(self) -> ObjectStore:
        return ObjectStore(self.uri, self.storage_options)


def to_bytes(measurement: VersionMeasurement) -> bytes:
    """``measurement`` as an NPZ file."""
    arrays: dict[str, Array] = {}
    described = _describe(measurement, "", arrays)
    arrays[_DESCRIPTION] = np.frombuffer(json.dumps(described).encode(), dtype=np.uint8)
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def from_bytes(content: bytes) -> VersionMeasurement:
    """The measurement that ``to_bytes`` wrote.

    Raises:
        ValueError, KeyError, TypeError, OSError: the content is damaged.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        raise ValueError(f"no measurement: {error}") from error
    restored = _restore(json.loads(arrays[_DESCRIPTION].tobytes()), arrays)
    if not isinstance(restored, VersionMeasurement):
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
    if isinstance(value, np.generic):
        return {"value": value.item()}
    return {"value": value}


def _restore(described: dict[str, Any], arrays: dict[str, Array]) -> Any:
    if "array" in described:
        return arrays[described["array"]]
    if "kind" in described:
        parts = {name: _restore(part, arrays) for name, part in described["fields"].items()}
        return _KINDS[described["kind"]](**parts)
    return described["value"]
