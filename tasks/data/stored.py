"""Predictions that production stored, with the labels that came later: rows of a table as splits, one for each version.

A table has a row for each prediction: key, inputs, prediction, version, time. The first reading takes key, version,
time and label alone, joins labels that lie elsewhere, and chooses rows; the second one copies the chosen rows of each
version to a Parquet file of its own, which is then a split as any other. What is chosen:

- rows with a label: one that has none yet is counted and left out, as is one without a prediction;
- of several rows of one key and version the latest with a label, by ``time``, else in the order of files and rows;
- of several labels of one key the latest, in the same sense.

Versions whose rows have the same keys are in one file: the row of each key has the inputs of the first version's, and
the predictions of all. So they are compared as models are, row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.kernels.rng import hashed_keys
from congruence.tasks.data.columns import as_numbers
from congruence.tasks.data.locations import combine, is_text
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.runtime.errors import SplitError, unknown_column

FEWEST_SHARED = 30
"""Keys that versions must share before they are evaluated on these together."""
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StoredSource:
    """Where stored predictions lie, as an evaluation file says it.

    Attributes:
        split: the rows with their inputs; its target is that of ``labels`` where these lie elsewhere.
        predictions: the columns of the predictions.
        version, time: columns, where there are some.
        labels: a table with ``label_key`` and the target.
        label_time: the column of when a label became known.
    """

    split: SplitSettings
    predictions: Sequence[str]
    version: str | None = None
    time: str | None = None
    labels: SplitSettings | None = None
    label_key: str = ""
    label_time: str | None = None


@dataclass(frozen=True)
class StoredPart:
    """Rows of a table that become one split: of each of its versions the rows, in the order of the first one's."""

    name: str
    rows: Mapping[str, Rows] = field(repr=False)
    since: Any = None
    until: Any = None


@dataclass(frozen=True)
class StoredTable:
    """What is known of every row of a table of predictions.

    Attributes:
        source: where it lies.
        files: of the table, with their states, and the row that each begins with (one more at the end).
        keys: numbers that stand for the keys, (n,).
        versions: numbers of the versions by ``names``, (n,); -1 in a row that names none.
        names: of the versions, in the order of their first rows.
        times: (n,) ``datetime64[us]`` in UTC; None where no column says it.
        labels: (n, q), NaN where there is none.
        usable: rows with a prediction, (n,).
        corrected, repeated: how many keys of the labels' table have several labels, which differ or are equal.
    """

    source: StoredSource
    files: Sequence[tuple[str, str]]
    starts: Sequence[int]
    keys: npt.NDArray[np.uint64]
    versions: npt.NDArray[np.int64]
    names: Sequence[str]
    times: Any
    labels: npt.NDArray[np.float64]
    usable: npt.NDArray[np.bool_]
    corrected: int = 0
    repeated: int = 0

    @cached_property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Rows with a label, (n,)."""
        return np.asarray(np.isfinite(self.labels).all(axis=1))

    @cached_property
    def chosen(self) -> npt.NDArray[np.bool_]:
        """The rows that are evaluated, (n,): see the module."""
        taken = self.labelled & self.usable & (self.versions >= 0)
        if self.source.split.key is None:
            return taken
        rows = np.flatnonzero(taken)
        frame = pd.DataFrame({"version": self.versions[rows], "key": self.keys[rows]})
        if not frame.duplicated().any():
            return taken
        if self.times is not None:
            rows = rows[np.argsort(self.times[rows], kind="stable")]
            frame = pd.DataFrame({"version": self.versions[rows], "key": self.keys[rows]})
        taken[rows[frame.duplicated(keep="last").to_numpy()]] = False
        return taken

    def said(self) -> str:
        """How many rows there are, how many are evaluated, and why others are not."""
        rows, kept = len(self.keys), int(self.chosen.sum())
        reasons = {
            ("has", "have", "no label yet"): int((~self.labelled).sum()),
            ("has", "have", "a label and no prediction"): int((self.labelled & ~self.usable).sum()),
            ("names", "name", "no version"): int((self.labelled & self.usable & (self.versions < 0)).sum()),
        }
        repeated = rows - kept - sum(reasons.values())
        which = "the last in the files' order" if self.times is None else "the latest"
        reasons["is", "are", f"repeated for the same key and version, of which {which} counts"] = repeated
        parts = [f"{n:,} {one if n == 1 else many} {why}" for (one, many, why), n in reasons.items() if n]
        line = f"{self.source.split.name}: {kept:,} of {rows:,} stored predictions are evaluated"
        line += f"; {', '.join(parts)}" if parts else ""
        if self.corrected:
            keys = "key has" if self.corrected == 1 else "keys have"
            line += f". {self.corrected:,} {keys} several labels that differ: the latest counts"
        return line

    def rows_of(self, since: Any = None, until: Any = None) -> dict[str, Rows]:
        """The chosen rows of each version that has some, of a range of times if one is given."""
        chosen = self.chosen
        if since is not None:
            chosen = chosen & (self.times >= since) & (self.times < until)
        rows = np.flatnonzero(chosen)
        found = {name: rows[self.versions[rows] == number] for number, name in enumerate(self.names)}
        return {name: each for name, each in found.items() if len(each)}

    def parts(self, rows: Mapping[str, Rows], since: Any = None, until: Any = None) -> list[StoredPart]:
        """The splits that these rows of each version make: one for all versions whose rows have the same keys."""
        name = self.source.split.name
        alike: dict[str, dict[str, Rows]] = {}
        for version, own in rows.items():
            order = np.argsort(self.keys[own], kind="stable")
            code = combine([version.encode()])
            if self.source.split.key is not None:
                code = combine([self.keys[own][order].tobytes(), self.labels[own][order].tobytes()])
            alike.setdefault(code, {})[version] = own
        return [StoredPart(name, self._aligned(group), since, until) for group in alike.values()]

    def shared(self, rows: Mapping[str, Rows], least: int = FEWEST_SHARED) -> list[StoredPart]:
        """The splits of rows whose keys several versions scored, beside others that they did not.

        One of the keys that all versions share; where these are too few, one for each pair that shares enough.
        """
        if self.source.split.key is None or len(self.parts(rows)) < 2:
            return []
        groups = [list(rows)]
        if len(self._common(rows, groups[0])) < least:
            groups = [[a, b] for number, b in enumerate(rows) for a in list(rows)[:number]]
        found = []
        for names in groups:
            common = self._common(rows, names)
            if len(common) >= least:
                name = "-".join([self.source.split.name, "shared", *(each.replace("/", "-") for each in names)])
                own = {each: rows[each][np.isin(self.keys[rows[each]], common)] for each in names}
                found.append(StoredPart(name, self._aligned(own)))
        return found

    def _common(self, rows: Mapping[str, Rows], names: Sequence[str]) -> npt.NDArray[np.uint64]:
        return reduce(np.intersect1d, [self.keys[rows[name]] for name in names])

    def _aligned(self, rows: Mapping[str, Rows]) -> dict[str, Rows]:
        """The rows of each version in the order of the keys of the first."""
        first, *others = rows
        keys = self.keys[rows[first]]
        found = {first: rows[first]}
        for name in others:
            own = rows[name][np.argsort(self.keys[rows[name]])]
            found[name] = own[np.searchsorted(self.keys[own], keys)]
        return found


def read_stored(source: StoredSource) -> StoredTable:
    """Read what chooses rows, and join the labels.

    Raises:
        SplitError: no such file or column, a row without a key, or no key of the predictions has a label.
    """
    read, columns = SplitSource.of(source.split), _Columns(source)
    files = [(path, read.state(path)) for path in read.paths()]
    labels = None if source.labels is None else _read_labels(source, source.labels)
    counts = dict.fromkeys((path for path, _ in files), 0)
    for path, start, batch in batches_of(read, counts, columns.names):
        columns.take(batch, path, start)
        counts[path] = start + batch.num_rows
    return columns.table(files, [0, *accumulate(counts.values())], labels)


def stored_in_frame(frame: pd.DataFrame, source: StoredSource) -> StoredTable:
    """The same of rows in memory, whose labels are among their columns.

    Raises:
        SplitError: no such column, or a row without a key.
    """
    columns = _Columns(source)
    absent = [name for name in columns.names if name not in frame.columns]
    if absent:
        raise unknown_column(absent[0], "stored predictions", list(map(str, frame.columns)), "the frame")
    batch = pa.RecordBatch.from_pandas(frame[list(columns.names)], preserve_index=False)
    columns.take(batch, "the frame", 0)
    return columns.table([("the frame", "")], [0, len(frame)], None)


class _Columns:
    """What is kept of each row of a table while it is read."""

    def __init__(self, source: StoredSource) -> None:
        split, self.source = source.split, source
        self.targets = split.target_columns if source.labels is None else []
        wanted = [name for name in (split.key, source.version, source.time) if name is not None]
        self.names = tuple(dict.fromkeys([*wanted, *self.targets, *source.predictions]))
        self.versions: dict[str, int] = {}
        self.blocks: dict[str, list[Any]] = {"keys": [], "versions": [], "times": [], "labels": [], "usable": []}
        self.shown = ""

    def take(self, batch: pa.RecordBatch, path: str, start: int) -> None:
        """More rows; ``start`` is the number of the first one in its file."""
        source, key, blocks = self.source, self.source.split.key, self.blocks
        if key is not None:
            column = batch.column(key)
            self.shown = self.shown or (str(column[0]) if len(column) else "")
            blocks["keys"].append(_key_numbers(column, key, path, start))
        if source.version is not None:
            blocks["versions"].append(_coded(batch.column(source.version), self.versions))
        if source.time is not None:
            blocks["times"].append(_as_times(batch.column(source.time), source.time, path))
        if self.targets:
            blocks["labels"].append(np.column_stack([as_numbers(batch.column(name)) for name in self.targets]))
        blocks["usable"].append(_all_there(batch, source.predictions))

    def table(self, files: Sequence[tuple[str, str]], starts: Sequence[int], labels: _Labels | None) -> StoredTable:
        """All of them, with their labels."""
        whole = {name: np.concatenate(parts) for name, parts in self.blocks.items() if parts}
        count = starts[-1]
        keys = whole.get("keys", np.arange(count, dtype=np.uint64))
        joined = whole["labels"] if labels is None else self._joined(keys, labels)
        return StoredTable(
            self.source,
            files,
            starts,
            keys,
            whole.get("versions", np.zeros(count, np.int64)),
            list(self.versions) or [""],
            whole.get("times"),
            joined,
            whole["usable"],
            0 if labels is None else labels.corrected,
            0 if labels is None else labels.repeated,
        )

    def _joined(self, keys: npt.NDArray[np.uint64], labels: _Labels) -> npt.NDArray[np.float64]:
        source = self.source
        if not len(labels.keys):
            return np.full((len(keys), labels.values.shape[1]), np.nan)
        place = pd.Index(labels.keys).get_indexer(pd.Index(keys))
        if len(keys) and not (place >= 0).any():
            raise SplitError(
                f"{source.labels and source.labels.uri}: none of its {len(labels.keys):,} keys ({source.label_key}, "
                f"for example {labels.shown!r}) is a key of the predictions ({source.split.key}, for example "
                f"{self.shown!r}); name the columns that agree"
            )
        return np.where((place >= 0)[:, None], labels.values[place], np.nan)


@dataclass(frozen=True)
class _Labels:
    keys: npt.NDArray[np.uint64]
    values: npt.NDArray[np.float64]
    corrected: int
    repeated: int
    shown: str


def _read_labels(source: StoredSource, labels: SplitSettings) -> _Labels:
    """The label of each key: the latest one that is a number."""
    read, targets = SplitSource.of(labels), labels.target_columns
    wanted = tuple(dict.fromkeys([source.label_key, *targets, *([source.label_time] if source.label_time else [])]))
    keys, values, times, shown = [], [], [], ""
    for path, start, batch in batches_of(read, read.paths(), wanted):
        column = batch.column(source.label_key)
        shown = shown or (str(column[0]) if len(column) else "")
        keys.append(_key_numbers(column, source.label_key, path, start))
        values.append(np.column_stack([as_numbers(batch.column(name)) for name in targets]))
        if source.label_time is not None:
            times.append(_as_times(batch.column(source.label_time), source.label_time, path))
    found, given = np.concatenate(keys), np.concatenate(values)
    known = np.flatnonzero(np.isfinite(given).all(axis=1))
    if times:
        known = known[np.argsort(np.concatenate(times)[known], kind="stable")]
    found, given = found[known], given[known]
    again = pd.Series(found).duplicated(keep=False).to_numpy()
    corrected = repeated = 0
    if again.any():
        grouped = pd.DataFrame(given[again]).groupby(found[again])
        differ = (grouped.min() != grouped.max()).any(axis=1)
        corrected, repeated = int(differ.sum()), int((~differ).sum())
        last = ~pd.Series(found).duplicated(keep="last").to_numpy()
        found, given = found[last], given[last]
    return _Labels(found, given, corrected, repeated, shown)


def batches_of(
    read: SplitSource, paths: Iterable[str], names: Sequence[str]
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The rows of files with some of their columns: of each batch its file, and its first row's number there.

    Raises:
        SplitError: a file lacks one of the columns.
    """
    for path in paths:
        start = 0
        for batch in read.batches(path, columns=tuple(names)):
            for name in names:
                if name not in batch.schema.names:
                    raise unknown_column(name, "stored predictions", read.full_schema(path).names, path)
            yield path, start, batch.select(list(names))
            start += batch.num_rows


def _key_numbers(column: Any, name: str, path: str, start: int) -> npt.NDArray[np.uint64]:
    """Numbers that stand for keys: equal where their texts are."""
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise SplitError(f"{path}, row {row}: column {name!r} (key) is missing; every row needs a key")
    return hashed_keys(column.to_numpy(zero_copy_only=False).astype(object))


def _coded(column: Any, names: dict[str, int]) -> npt.NDArray[np.int64]:
    """The number of each row's version; -1 where there is none."""
    found = column.dictionary_encode()
    numbers = [-1 if text is None else names.setdefault(str(text), len(names)) for text in found.dictionary.to_pylist()]
    indices = found.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*numbers, -1], np.int64)[indices])


def _as_times(column: Any, name: str, path: str) -> npt.NDArray[np.datetime64]:
    """Times in UTC."""
    try:
        if pa.types.is_temporal(column.type) or is_text(column.type):
            given = pd.Series(column.to_pandas())
            found = pd.to_datetime(given, utc=True, format=None if pa.types.is_temporal(column.type) else "ISO8601")
            return np.asarray(found.dt.tz_localize(None).to_numpy("datetime64[us]"))
    except (ValueError, TypeError) as error:
        raise SplitError(f"{path}: column {name!r} (time): {error}; give timestamps or ISO 8601 texts") from error
    raise SplitError(f"{path}: column {name!r} (time) holds {column.type}; give timestamps, dates or ISO 8601 texts")


def _all_there(batch: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    there = np.ones(batch.num_rows, dtype=bool)
    for name in names:
        column = batch.column(name)
        valid = pc.is_valid(column)
        if pa.types.is_floating(column.type):
            valid = pc.and_(valid, pc.invert(pc.is_nan(column).fill_null(True)))
        there &= valid.to_numpy(zero_copy_only=False)
    return there
