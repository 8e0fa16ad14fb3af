"""From a split's columns to what the encoder reads: image bytes, a text, or a vector of features."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from congruence.tasks.data.digests import ROW_BYTES, canonical_bytes, digest_of, is_bytes, is_text
from congruence.tasks.data.errors import SplitError, changed
from congruence.tasks.data.files import ImageFolder
from congruence.tasks.encoders.errors import InvalidRow

RawInput: TypeAlias = bytes | str | npt.NDArray[np.float64]
Reader: TypeAlias = Callable[[], RawInput]
"""Loads one row when it is called, so that slow reads happen in the threads that decode; raises InvalidRow."""

_TURNED = (2048, 64)
"""Rows and columns that are turned at a time: column by column, many columns take seven times as long."""

REASON = "__reason__"
"""A column by which a format says that a row cannot be read, and why; null where it can."""


def read_as_indexed(read: Reader, digest: bytes, path: str) -> RawInput:
    """What ``read`` loads from a file of its own, if that is the content that the index has the ``digest`` of.

    Raises:
        InvalidRow: it could not be read when it was indexed either.
        SplitChangedError: it is another content, or can no longer be read.
    """
    try:
        value = read()
    except InvalidRow as invalid:
        if digest_of(_no_input(invalid)) != digest:
            raise changed(path, f"cannot be read any more ({invalid.reason})") from None
        raise
    if digest_of(value) != digest:
        raise changed(path)
    return value


def _no_input(invalid: InvalidRow) -> bytes:
    """What the index has the digest of in place of an input that cannot be read."""
    return f"invalid: {invalid.reason}".encode()


def _digest_of_read(read: Reader) -> bytes:
    try:
        return digest_of(read())
    except InvalidRow as invalid:
        return digest_of(_no_input(invalid))


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

    def outer_paths(self, batch: pa.RecordBatch) -> Any:
        """The path of the file that each row points to, null where the input lies in the table itself."""
        return pa.nulls(batch.num_rows, pa.string())

    def outer_states(self, paths: Any) -> bytes:
        """A digest of the state of the file behind each path, row after row."""
        return b"".join(digest_of(b"") for _ in range(len(paths)))

    def unusable(self, batch: pa.RecordBatch, *, missing: bool = False) -> dict[int, str]:  # noqa: ARG002
        """The rows of ``batch`` whose numbers alone say that they are no input, and why; most must be decoded first.

        ``missing``: a row may lack some of its numbers.
        """
        return {}


class OneColumn(InputColumns):
    """Inputs that one column holds, a value a row."""

    holds: str
    """What a value is, in words."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        column = batch.column(0)
        reasons = batch.column(REASON).to_pylist() if REASON in batch.schema.names else [None] * len(column)
        for value, reason in zip(column, reasons, strict=True):
            yield partial(self._checked, value, reason)

    def digest(self, batch: pa.RecordBatch) -> bytes:
        return canonical_bytes(batch.column(0))

    def _checked(self, value: Any, reason: str | None) -> RawInput:
        if reason is not None:
            raise InvalidRow(reason)
        if not value.is_valid:
            raise InvalidRow(f"column {self.columns[0]!r} holds no {self.holds}")
        return self._read(value)

    def _read(self, value: Any) -> RawInput:
        found: RawInput = value.as_py()
        return found


class Bytes(OneColumn):
    """Encoded images in a binary column."""

    holds = "image"

    def __init__(self, column: str, max_bytes: int) -> None:
        super().__init__([column])
        self._max_bytes = max_bytes

    def _read(self, value: Any) -> RawInput:
        size = value.as_buffer().size
        if size > self._max_bytes:
            raise InvalidRow(f"the image has {size} bytes, more than max_input_bytes = {self._max_bytes}")
        return bytes(value.as_py())


class Paths(OneColumn):
    """Paths of image files below a folder."""

    holds = "path"
    lie_outside = True

    def __init__(self, column: str, folder: ImageFolder) -> None:
        super().__init__([column])
        self._folder = folder

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the content of each file, or of the reason why it cannot be read."""
        with ThreadPoolExecutor(max_workers=8) as threads:
            return b"".join(threads.map(_digest_of_read, self.readers(batch)))

    def outer_paths(self, batch: pa.RecordBatch) -> Any:
        return batch.column(0).cast(pa.string())

    def outer_states(self, paths: Any) -> bytes:
        with ThreadPoolExecutor(max_workers=1 if self._folder.local else 32) as threads:
            return b"".join(threads.map(self._state, paths.to_pylist()))

    def _state(self, path: str | None) -> bytes:
        return digest_of(b"" if path is None else self._folder.state(path).encode())

    def _read(self, value: Any) -> RawInput:
        return self._folder.read(value.as_py())


class BytesOrPaths(InputColumns):
    """Images as Hugging Face ``datasets`` keeps them: a struct with the bytes, or with a path where they are null."""

    lie_outside = True

    def __init__(self, column: str, folder: ImageFolder) -> None:
        super().__init__([column])
        self._bytes = Bytes(column, folder.max_bytes)
        self._paths = Paths(column, folder)

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        parts = [self._part(batch, "bytes"), self._part(batch, "path")]
        by_bytes, by_path = self._bytes.readers(parts[0]), self._paths.readers(parts[1])
        held = parts[0].column(0).is_valid().to_pylist()
        for use_bytes, read_bytes, read_path in zip(held, by_bytes, by_path, strict=True):
            yield read_bytes if use_bytes else read_path

    def digest(self, batch: pa.RecordBatch) -> bytes:
        return b"".join(_digest_of_read(read) for read in self.readers(batch))

    def outer_paths(self, batch: pa.RecordBatch) -> Any:
        """The paths of the images without bytes."""
        held = self._part(batch, "bytes").column(0).is_valid()
        return pc.if_else(held, None, self._part(batch, "path").column(0).cast(pa.string()))

    def outer_states(self, paths: Any) -> bytes:
        return self._paths.outer_states(paths)

    @staticmethod
    def _part(batch: pa.RecordBatch, field: str) -> pa.RecordBatch:
        column = batch.column(0)
        values = column.flatten()[column.type.get_field_index(field)]
        return pa.RecordBatch.from_arrays([values], names=[batch.schema.names[0]])


class Texts(OneColumn):
    """A column of texts."""

    holds = "text"


class Features(InputColumns):
    """Numeric columns, or one column of vectors of equal length."""

    def readers(self, batch: pa.RecordBatch) -> Iterator[Reader]:
        values, ends = self._values(batch)
        for start, end in pairwise([0, *ends.tolist()]):
            yield partial(self._read, values[start:end])

    def digest(self, batch: pa.RecordBatch) -> bytes:
        """A digest of the float64 values of each row."""
        values, ends = self._values(batch)
        view = memoryview(np.ascontiguousarray(values, dtype="<f8").data).cast("B")
        bounds = [0, *(8 * ends).tolist()]
        return b"".join([blake2b(view[a:b], digest_size=ROW_BYTES).digest() for a, b in pairwise(bounds)])

    def matrix(self, batch: pa.RecordBatch, *, missing: bool = False) -> tuple[npt.NDArray[np.float64], dict[int, str]]:
        """The vectors as (rows, d), NaN where a row holds none or a shorter one; and what is ``unusable``."""
        values, ends = self._values(batch)
        matrix, reasons = self._filled(values, ends), self._unusable(values, ends, missing)
        if missing:  # the end of a shorter vector is none that lacks values
            lengths = np.diff(ends, prepend=0)
            for row in np.flatnonzero(lengths < matrix.shape[1]).tolist():
                reasons.setdefault(row, f"the features have shape ({lengths[row]},); expected ({matrix.shape[1]},)")
        return matrix, reasons

    def to_standardise_by(self, batch: pa.RecordBatch, left_out: Collection[int]) -> npt.NDArray[np.float64]:
        """The vectors of the commonest length without an infinite value, (rows, d), NaN where a value is missing."""
        values, ends = self._values(batch)
        lengths = np.diff(ends, prepend=0)
        chosen = np.ones(len(lengths), dtype=bool)
        chosen[list(left_out)] = False
        width = int(np.bincount(lengths[chosen]).argmax()) if chosen.any() else 0
        chosen &= lengths == width
        matrix = values if chosen.all() else values[np.repeat(chosen, lengths)]
        matrix = matrix.reshape(int(chosen.sum()), width)
        infinite = np.isinf(matrix).any(axis=1)
        return matrix[~infinite] if infinite.any() else matrix

    def _filled(self, values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        lengths = np.diff(ends, prepend=0)
        width = int(lengths.max(initial=0))
        if (lengths == width).all():
            return values.reshape(len(ends), width)
        filled = np.full((len(ends), width), np.nan)
        filled[np.arange(width) < lengths[:, None]] = values
        return filled

    def unusable(self, batch: pa.RecordBatch, *, missing: bool = False) -> dict[int, str]:
        """Rows without values, or with values that are not finite; with ``missing`` only the infinite ones count."""
        return self._unusable(*self._values(batch), missing)

    def _unusable(self, values: npt.NDArray[np.float64], ends: npt.NDArray[np.int64], missing: bool) -> dict[int, str]:
        usable = ~np.isinf(values) if missing else np.isfinite(values)
        if usable.all() and (np.diff(ends, prepend=0) > 0).all():
            return {}
        starts = ends - np.diff(ends, prepend=0)
        infinite = np.flatnonzero(~usable)
        bad = (starts == ends) | (np.searchsorted(infinite, ends) > np.searchsorted(infinite, starts))
        found = {}
        for row in np.flatnonzero(bad).tolist():
            try:
                self._read(values[starts[row] : ends[row]], missing)
            except InvalidRow as invalid:
                found[row] = invalid.reason
        return found

    def _values(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """The values of all rows one after the other, and where each row ends in them."""
        if len(self.columns) > 1 or not _is_list(batch.schema.field(self.columns[0]).type):
            matrix = np.empty((batch.num_rows, len(self.columns)))
            for first in range(0, len(self.columns), _TURNED[1]):
                names = self.columns[first : first + _TURNED[1]]
                rows = np.stack([self._floats(batch.column(name)) for name in names])
                for start in range(0, batch.num_rows, _TURNED[0]):
                    there = slice(start, start + _TURNED[0])
                    matrix[there, first : first + len(names)] = rows[:, there].T
            return matrix.reshape(-1), np.arange(1, batch.num_rows + 1) * len(self.columns)
        column = batch.column(self.columns[0])
        values = column.flatten().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return values, np.cumsum(lengths, dtype=np.int64)

    @staticmethod
    def _floats(column: pa.Array) -> npt.NDArray[Any]:
        # A cast costs as much as all the rest, and numpy gives floating-point numbers the same values.
        exact = column if pa.types.is_floating(column.type) else column.cast(pa.float64(), safe=False)
        return np.asarray(exact.to_numpy(zero_copy_only=False))

    def _read(self, vector: npt.NDArray[np.float64], missing: bool = False) -> npt.NDArray[np.float64]:
        if vector.size == 0:
            raise InvalidRow(f"column {self.columns[0]!r} holds no features")
        finite = ~np.isinf(vector) if missing else np.isfinite(vector)
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
                raise SplitError(
                    f"{where}: column {name!r} (input) holds {found}, not numbers; leave it out of input (a model that "
                    "reads it as it is names it under model_inputs), or give its numbers in columns"
                )
        return Features(columns)
    column, found = columns[0], types[0]
    if kind == "text" and is_text(found):
        return Texts(columns)
    if kind == "image" and is_text(found):
        return Paths(column, folder)
    if kind == "image" and is_bytes(found):
        return Bytes(column, folder.max_bytes)
    if kind == "image" and pa.types.is_struct(found) and {"bytes", "path"} <= {field.name for field in found}:
        return BytesOrPaths(column, folder)
    expected = "encoded image bytes or paths" if kind == "image" else "text"
    raise SplitError(f"{where}: column {column!r} (input) holds {found}, not {expected}; check input_kind")


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
