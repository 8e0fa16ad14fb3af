"""From a split's columns to what the encoder reads: image bytes, a text, or a vector of features."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.sources.digests import canonical_bytes, digest_of
from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.files import ImageFolder

RawInput: TypeAlias = bytes | str | npt.NDArray[np.float64]
Reader: TypeAlias = Callable[[], RawInput]
"""Loads one row when it is called, so that slow reads happen in the threads that decode; raises InvalidRow."""

REASON = "__reason__"
"""A column by which a format says that a row cannot be read, and why; null where it can."""


class InputColumns(ABC):
    """The columns that hold the encoder's input, and how a row of them becomes one."""

    lie_outside = False
    """Whether inputs may lie in files of their own, outside of the table's."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)

    @abstractmethod
    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each row of ``batch``."""

    @abstractmethod
    def digest(self, batch: pa.RecordBatch) -> bytes:
        """The content of the rows of ``batch``, row after row, independent of how they are batched."""

    def outer_states(self, batch: pa.RecordBatch) -> list[str]:  # noqa: ARG002 - for inputs that lie in other files
        """The states of the files that ``batch`` points to, where the inputs do not lie in the table itself."""
        return []


class Bytes(InputColumns):
    """Encoded images in a binary column."""

    def __init__(self, column: str, max_bytes: int) -> None:
        super().__init__([column])
        self._max_bytes = max_bytes

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each image."""
        column, reasons = batch.column(0), _reasons(batch)
        for row in range(batch.num_rows):
            yield partial(self._read, column[row], reasons[row])

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the bytes of each image."""
        return canonical_bytes(batch.column(0))

    def _read(self, value: Any, reason: str | None) -> bytes:
        if reason is not None:
            raise InvalidRow(reason)
        if not value.is_valid:
            raise InvalidRow(f"column {self.columns[0]!r} holds no image")
        size = value.as_buffer().size
        if size > self._max_bytes:
            raise InvalidRow(f"the image has {size} bytes, more than max_input_bytes = {self._max_bytes}")
        return bytes(value.as_py())


class Paths(InputColumns):
    """Paths of image files below a folder."""

    lie_outside = True

    def __init__(self, column: str, folder: ImageFolder) -> None:
        super().__init__([column])
        self._folder = folder

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each path."""
        reasons = _reasons(batch)
        for row, path in enumerate(batch.column(0).to_pylist()):
            yield partial(self._read, path, reasons[row])

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the content of each file, or of the reason why it cannot be read."""
        with ThreadPoolExecutor(max_workers=8) as threads:
            return b"".join(threads.map(self._digest_one, self.readers(batch)))

    def outer_states(self, batch: pa.RecordBatch) -> list[str]:
        """The state of each file."""
        paths = [path for path in batch.column(0).to_pylist() if path is not None]
        if self._folder.local:
            return [self._folder.state(path) for path in paths]
        with ThreadPoolExecutor(max_workers=32) as threads:
            return list(threads.map(self._folder.state, paths))

    def _read(self, path: str | None, reason: str | None) -> bytes:
        if reason is not None:
            raise InvalidRow(reason)
        if path is None:
            raise InvalidRow(f"column {self.columns[0]!r} holds no path")
        return self._folder.read(path)

    @staticmethod
    def _digest_one(read: Reader) -> bytes:
        try:
            return digest_of(read())
        except InvalidRow as error:
            return digest_of(f"invalid: {error.reason}".encode())


class BytesOrPaths(InputColumns):
    """Images as Hugging Face ``datasets`` keeps them: a struct with the bytes, or with a path where they are null."""

    lie_outside = True

    def __init__(self, column: str, folder: ImageFolder) -> None:
        super().__init__([column])
        self._bytes = Bytes(column, folder.max_bytes)
        self._paths = Paths(column, folder)

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each image."""
        parts = [self._part(batch, "bytes"), self._part(batch, "path")]
        by_bytes, by_path = self._bytes.readers(parts[0]), self._paths.readers(parts[1])
        held = parts[0].column(0).is_valid().to_pylist()
        for use_bytes, read_bytes, read_path in zip(held, by_bytes, by_path, strict=True):
            yield read_bytes if use_bytes else read_path

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the content of each image."""
        return b"".join(self._paths._digest_one(read) for read in self.readers(batch))

    def outer_states(self, batch: pa.RecordBatch) -> list[str]:
        """The states of the files that hold the images without bytes."""
        held = self._part(batch, "bytes").column(0).is_valid()
        return self._paths.outer_states(self._part(batch.filter(pc.invert(held)), "path"))

    @staticmethod
    def _part(batch: pa.RecordBatch, field: str) -> pa.RecordBatch:
        column = batch.column(0)
        values = column.flatten()[column.type.get_field_index(field)]
        return pa.RecordBatch.from_arrays([values], names=[batch.schema.names[0]])


class Texts(InputColumns):
    """A column of texts."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each text."""
        reasons = _reasons(batch)
        for row, text in enumerate(batch.column(0).to_pylist()):
            yield partial(self._read, text, reasons[row])

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of each text."""
        return canonical_bytes(batch.column(0))

    def _read(self, text: str | None, reason: str | None) -> str:
        if reason is not None:
            raise InvalidRow(reason)
        if text is None:
            raise InvalidRow(f"column {self.columns[0]!r} holds no text")
        return text


class Features(InputColumns):
    """Numeric columns, or one column of vectors of equal length."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        """One reader for each feature vector."""
        vectors = self._vectors(batch)
        for vector in vectors:
            yield partial(self._read, vector)

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """The float64 values of each row."""
        return b"".join(np.asarray(vector, dtype="<f8").tobytes() + b"|" for vector in self._vectors(batch))

    def matrix(self, batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
        """The vectors as (rows, d); rows that hold none, and shorter ones, are NaN where they have no value."""
        if len(self.columns) > 1 or not _is_list(batch.schema.field(0).type):
            matrix = np.empty((batch.num_rows, len(self.columns)))
            for at, name in enumerate(self.columns):
                column = batch.column(name)
                # A cast costs as much as all the rest, and numpy gives floating-point numbers the same values.
                exact = column if pa.types.is_floating(column.type) else column.cast(pa.float64(), safe=False)
                matrix[:, at] = exact.to_numpy(zero_copy_only=False)
            return matrix
        vectors = self._vectors(batch)
        filled = np.full((len(vectors), max(map(len, vectors), default=0)), np.nan)
        for row, vector in enumerate(vectors):
            filled[row, : len(vector)] = vector
        return filled

    def unusable(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Rows without values, or with values that are not finite, and why."""
        found = {}
        for row in np.flatnonzero(~np.isfinite(self.matrix(batch)).all(axis=1)).tolist():
            try:
                self._read(self._vectors(batch)[row])
            except InvalidRow as invalid:
                found[row] = invalid.reason
        return found

    def _vectors(self, batch: pa.RecordBatch) -> Sequence[npt.NDArray[np.float64]]:
        if len(self.columns) > 1 or not _is_list(batch.schema.field(0).type):
            columns = [batch.column(name).cast(pa.float64(), safe=False) for name in self.columns]
            matrix = np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])
            return list(matrix)
        column = batch.column(0)
        values = column.flatten().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return np.split(values, np.cumsum(lengths)[:-1])

    def _read(self, vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if vector.size == 0:
            raise InvalidRow(f"column {self.columns[0]!r} holds no features")
        finite = np.isfinite(vector)
        if not finite.all():
            first = int(np.argmin(finite))
            name = repr(self.columns[first]) if len(self.columns) > 1 else f"{self.columns[0]!r}[{first}]"
            count = int((~finite).sum())
            raise InvalidRow(f"feature {name} is {vector[first]}" + (f", and {count - 1} more" if count > 1 else ""))
        return vector


def input_columns(
    kind: str, columns: Sequence[str], schema: pa.Schema, folder: ImageFolder, where: str
) -> InputColumns:
    """How ``columns`` become encoder inputs, by the kind of input and the columns' types.

    Raises:
        SplitError: a column whose type cannot hold such an input.
    """
    types = [schema.field(name).type for name in columns]
    if kind == "features":
        for name, found in zip(columns, types, strict=True):
            vector = len(columns) == 1 and _is_list(found) and _is_numeric(found.value_type)
            if not (vector or _is_numeric(found)):
                raise SplitError(f"{where}: column {name!r} (input) holds {found}, not numbers; encode it first")
        return Features(columns)
    column, found = columns[0], types[0]
    is_text = pa.types.is_string(found) or pa.types.is_large_string(found)
    if kind == "text" and is_text:
        return Texts(columns)
    if kind == "image" and is_text:
        return Paths(column, folder)
    if kind == "image" and (pa.types.is_binary(found) or pa.types.is_large_binary(found)):
        return Bytes(column, folder.max_bytes)
    if kind == "image" and pa.types.is_struct(found) and {"bytes", "path"} <= {field.name for field in found}:
        return BytesOrPaths(column, folder)
    expected = "encoded image bytes or paths" if kind == "image" else "text"
    raise SplitError(f"{where}: column {column!r} (input) holds {found}, not {expected}; check input_kind")


def _reasons(batch: pa.RecordBatch) -> list[str | None]:
    if REASON in batch.schema.names:
        reasons: list[str | None] = batch.column(REASON).to_pylist()
        return reasons
    return [None] * batch.num_rows


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
