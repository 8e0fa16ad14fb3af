"""The rows of one file in the index: a Parquet file with what is asked of rows without opening the source.

Its columns, of as many rows as the file has:

    NAME            key, targets, slices, and model inputs that are not the encoder's input
    __bytes__NAME   of columns that are not numbers: the bytes that the split's digest covers
    __digest__      16 bytes of the encoder's input
    __path__        of inputs that lie in files of their own: which
    __state__       and the digest of that file's state
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.design import as_numbers, design_problem
from congruence.tasks.data.digests import ROW_BYTES, canonical_bytes, combine, digest_of, is_number, is_text
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.inputs import Features, InputColumns
from congruence.tasks.data.roles import described_columns
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.tables import Table
from congruence.tasks.encoders.moments import Moments
from congruence.tasks.runtime.files import load_record, save_record, whole_file

PART_GROUP = 2**15
"""Rows of a row group of the index."""
FIRST_ROWS = 3
"""Of rows that lack a number so many are named."""
BYTES, DIGEST, PATH, STATE = (f"__{name}__" for name in ("bytes", "digest", "path", "state"))
_Known: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass
class Lacking:
    """Rows without a finite number where one should be: how many, and the first few with the reason."""

    rows: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int, reason: str) -> None:
        """One more row."""
        self.rows += 1
        if len(self.first) < FIRST_ROWS:
            self.first.append((row, reason))

    def join(self, other: Lacking, offset: int) -> None:
        """Those of a file whose first row is row ``offset``."""
        self.rows += other.rows
        later = [(row + offset, reason) for row, reason in other.first]
        self.first = [*self.first, *later][:FIRST_ROWS]

    @classmethod
    def of(cls, said: dict[str, Any]) -> Lacking:
        """What ``asdict`` gave."""
        return cls(said["rows"], [(row, reason) for row, reason in said["first"]])


@dataclass
class PartFacts:
    """What a part says about its rows as a whole."""

    rows: int = 0
    inputs: Lacking = field(default_factory=Lacking)
    """Features that are no numbers at all, of rows with a target. Images and texts must be decoded to be judged."""
    missing: Lacking = field(default_factory=Lacking)
    """Features without a value, of rows that have a target and are nothing worse."""
    targets: Lacking = field(default_factory=Lacking)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest target by column."""
    weights: tuple[float, float] = (0.0, 0.0)
    """Their sum and that of their squares, where the rows have weights."""
    complete: Moments | None = None
    """Of tabular features, over rows that have a target and lack no feature."""
    present: Moments | None = None
    """The same over all values of rows that have a target and no infinite feature."""

    def add_features(self, rows: npt.NDArray[np.float64]) -> None:
        """Take rows of features (n, d) into the moments; those of another d than the rows before are left out."""
        lacking = np.isnan(rows).any(axis=1)
        complete = Moments.of(rows[~lacking] if lacking.any() else rows)
        self._join_moments(complete, Moments.of(rows) if lacking.any() else complete)

    def widen(self, name: str, low: float, high: float) -> None:
        """Targets of a column lie between these, too."""
        before = self.ranges.get(name, (low, high))
        self.ranges[name] = (min(before[0], low), max(before[1], high))

    def _join_moments(self, complete: Moments | None, present: Moments | None) -> None:
        self.complete, self.present = _sum(self.complete, complete), _sum(self.present, present)

    def join(self, other: PartFacts) -> None:
        """The facts of the next file's rows as well."""
        self.inputs.join(other.inputs, self.rows)
        self.missing.join(other.missing, self.rows)
        self.targets.join(other.targets, self.rows)
        self.rows += other.rows
        self.weights = (self.weights[0] + other.weights[0], self.weights[1] + other.weights[1])
        for name, (low, high) in other.ranges.items():
            self.widen(name, low, high)
        self._join_moments(other.complete, other.present)

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        found = {"complete": self.complete, "present": self.present}
        moments = {name: None if each is None else each.to_json() for name, each in found.items()}
        return {**asdict(replace(self, complete=None, present=None)), **moments}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> PartFacts:
        """The facts that ``to_json`` wrote."""
        ranges = {name: (low, high) for name, (low, high) in said["ranges"].items()}
        total, squares = said["weights"]
        inputs, missing, targets = (Lacking.of(said[name]) for name in ("inputs", "missing", "targets"))
        kept = [said[name] for name in ("complete", "present")]
        moments = [None if each is None else Moments.from_json(each) for each in kept]
        return cls(said["rows"], inputs, missing, targets, ranges, (total, squares), *moments)


def _sum(first: Moments | None, second: Moments | None) -> Moments | None:
    if first is None or second is None:
        return first or second
    return first + second if len(first.count) == len(second.count) else first


def stored_type(kind: Any) -> Any:
    """The type under which the index keeps a column, None for those that are read from the source."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type) if pa.types.is_string(kind.value_type) else None
    return kind if is_text(kind) or is_number(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind) else None


def write_part(
    path: Path, settings: SplitSettings, table: Table, inputs: InputColumns, known: Path | None = None
) -> PartFacts:
    """Index the rows of ``table``, those of one file of the split, in one stream over it.

    ``path`` is written whole or not at all. ``known`` is a part of the same rows, made when inputs in files of their
    own may have been others: only those are read again whose files have changed since.

    Raises:
        SplitError: an empty key.
    """
    part = _Part(settings, table, inputs, _known(known, table.rows) if inputs.lie_outside else None)
    with whole_file(path) as stream:
        with pq.ParquetWriter(
            stream, part.schema, compression="zstd", use_dictionary=part.repeating, write_page_checksum=True
        ) as writer:
            for group in _grouped(part.batches(), part.schema):
                writer.write_table(group, row_group_size=PART_GROUP)
        stream.flush()
        footer = _footer(Path(stream.name))
    save_record(_record(path), {"footer": footer, "facts": part.facts.to_json()})
    return part.facts


def read_facts(path: Path) -> PartFacts | None:
    """What is known of a part's rows, None where there is no part or its footer is damaged; pages have checksums."""
    said = load_record(_record(path))
    try:
        return PartFacts.from_json(said["facts"]) if said is not None and said["footer"] == _footer(path) else None
    except OSError:
        return None


def _record(part: Path) -> Path:
    return part.with_suffix(".json")


def _footer(path: Path) -> str:
    """A digest of a Parquet file's size and footer, which lies at the end, before its length and four letters."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 8))
        length = int.from_bytes(stream.read(4), "little")
        stream.seek(max(0, size - 8 - length))
        return combine([str(size).encode(), stream.read()])


def is_whole(path: Path) -> bool:
    """Whether every page of a part can be read."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.metadata.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


class _Part:
    """The columns of one file's rows, batch by batch."""

    def __init__(self, settings: SplitSettings, table: Table, inputs: InputColumns, known: _Known | None) -> None:
        self._known = known
        self._settings, self._table, self._inputs = settings, table, inputs
        self._key = settings.key or table.key
        self._names = described_columns(settings, table, inputs)
        self.facts = PartFacts()
        types = {name: table.schema.field(name).type for name in self._names}
        fields = [pa.field(name, stored_type(kind)) for name, kind in types.items() if stored_type(kind) is not None]
        self._texts = [name for name, kind in types.items() if not is_number(kind)]
        fields += [pa.field(BYTES + name, pa.binary(_width(types[name]))) for name in self._texts]
        fields.append(pa.field(DIGEST, pa.binary(ROW_BYTES)))
        if inputs.lie_outside:
            fields += [pa.field(PATH, pa.string()), pa.field(STATE, pa.binary(ROW_BYTES))]
        self.schema = pa.schema(fields)
        self.repeating = [f.name for f in fields if not f.name.startswith("__") or BYTES in f.name]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The index of each batch of the source."""
        columns = list(dict.fromkeys([*self._names, *self._inputs.columns]))
        start = 0
        for batch in self._table.batches(columns, 0, self._table.rows):
            yield self._index(batch, start)
            start += batch.num_rows
        self.facts.rows = start

    def _index(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        if self._key:
            self._require_keys(batch.column(self._key), start)
        self._add_design(batch, start)
        found: dict[str, Any] = {}
        inputs, states = batch.select(self._inputs.columns), b""
        if self._inputs.lie_outside:
            found[PATH] = self._inputs.outer_paths(inputs)
            states = self._inputs.outer_states(found[PATH])
            found[STATE] = _fixed(states, batch.num_rows)
        found[DIGEST] = self._digests(batch, inputs, states, start)
        for name in self._texts:
            found[BYTES + name] = _fixed(canonical_bytes(batch.column(name)), batch.num_rows)
        arrays = [_as(found[f.name] if f.name in found else batch.column(f.name), f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _digests(self, batch: pa.RecordBatch, inputs: pa.RecordBatch, states: bytes, start: int) -> Any:
        digests = bytearray(self._input_digests(inputs, states, start))
        lacking = self._targets(batch)
        unusable = self._inputs.unusable(inputs)
        never = self._inputs.unusable(inputs, missing=True) if unusable else {}
        for row, reason in unusable.items():
            if row not in lacking:
                (self.facts.inputs if row in never else self.facts.missing).add(start + row, reason)
        for row, reason in sorted(lacking.items()):
            self.facts.targets.add(start + row, reason)
            digests[row * ROW_BYTES : (row + 1) * ROW_BYTES] = digest_of(f"invalid: {reason}".encode())
        if isinstance(self._inputs, Features):
            self.facts.add_features(self._inputs.to_standardise_by(inputs, lacking))
        return _fixed(bytes(digests), batch.num_rows)

    def _input_digests(self, inputs: pa.RecordBatch, states: bytes, start: int) -> bytes:
        if self._known is None:
            return self._inputs.digest(inputs)
        old_states, old_digests = (column[start : start + inputs.num_rows] for column in self._known)
        changed = np.frombuffer(states, old_states.dtype) != old_states
        digests = old_digests.copy()
        if changed.any():
            again = self._inputs.digest(inputs.filter(pa.array(changed)))
            digests[changed] = np.frombuffer(again, digests.dtype)
        return digests.tobytes()

    def _targets(self, batch: pa.RecordBatch) -> dict[int, str]:
        lacking: dict[int, str] = {}
        for name in self._settings.target_columns:
            values = as_numbers(batch.column(name))
            finite = np.isfinite(values)
            for row in np.flatnonzero(~finite).tolist():
                lacking.setdefault(row, target_reason(name, values[row]))
            if finite.any():
                self.facts.widen(name, float(values[finite].min()), float(values[finite].max()))
        return lacking

    def _add_design(self, batch: pa.RecordBatch, start: int) -> None:
        for role, name in self._settings.design_columns.items():
            found = design_problem(role, batch.column(name))
            if found is not None:
                row, reason = found
                raise SplitError(f"{self._table.place(start + row)}: column {name!r} ({role}) {reason}")
            if role == "weight":
                weights, (total, squares) = as_numbers(batch.column(name)), self.facts.weights
                self.facts.weights = (total + float(weights.sum()), squares + float(weights @ weights))

    def _require_keys(self, column: Any, start: int) -> None:
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            place = self._table.place(start + row)
            raise SplitError(f"{place}: column {self._key!r} (key) is empty; give every row a key")


def target_reason(name: str, value: float) -> str:
    """Why a row cannot be measured by its target."""
    return f"target {name!r} is {value}, not a finite number"


def _known(part: Path | None, rows: int) -> _Known | None:
    """State and digest of each row as a part has them; None where it cannot be read."""
    if part is None:
        return None
    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            table = file.read([STATE, DIGEST])
    except (OSError, pa.ArrowInvalid):
        return None
    columns = [np.frombuffer(fixed_bytes(table[name].combine_chunks()), f"V{ROW_BYTES}") for name in (STATE, DIGEST)]
    return (columns[0], columns[1]) if table.num_rows == rows else None


def fixed_bytes(column: Any) -> bytes:
    """The bytes of a column of fixed width, row after row."""
    width = column.type.byte_width
    _, data = column.buffers()
    return bytes(memoryview(data)[column.offset * width : (column.offset + len(column)) * width])


def _grouped(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of ``batches`` in tables of PART_GROUP rows, the last of fewer."""
    held, rows = [], 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= PART_GROUP:
            table = pa.Table.from_batches(held, schema)
            whole = rows - rows % PART_GROUP
            yield table.slice(0, whole)
            held, rows = table.slice(whole).to_batches(), rows - whole
    if rows:
        yield pa.Table.from_batches(held, schema)


def _fixed(data: bytes, rows: int) -> Any:
    width = len(data) // max(1, rows)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width or ROW_BYTES), rows, [None, pa.py_buffer(data)])


def _width(kind: Any) -> int:
    return 8 if pa.types.is_temporal(kind) or pa.types.is_null(kind) else ROW_BYTES


def _as(values: Any, kind: Any) -> Any:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == kind else array.cast(kind)
