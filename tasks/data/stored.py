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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.kernels.rng import hashed_keys
from congruence.tasks.data.columns import is_moment, moments, unread_time
from congruence.tasks.data.inputs import as_numbers, combine, is_list, is_number, is_text
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.runtime.errors import SplitError, unknown_column

if TYPE_CHECKING:
    from congruence.tasks.settings.production import LabelSettings, StoredPredictions

FEWEST_SHARED = 30
"""Keys that versions must share before they are evaluated on these together."""
Rows = npt.NDArray[np.int64]


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
        split: the rows with their inputs; its target is that of the labels where these lie elsewhere.
        predictions: the columns of the predictions.
        files: of the table, with their states, and the row that each begins with (one more at the end).
        keys: numbers that stand for the keys, (n,).
        versions: numbers of the versions by ``names``, (n,); -1 in a row that names none.
        names: of the versions, in the order of their first rows.
        times: (n,) ``datetime64[us]`` in UTC; None where no column says it.
        labels: (n, q), NaN where there is none.
        usable: rows with a prediction, (n,).
        corrected: how many keys of the labels' table have several labels that differ.
    """

    split: SplitSettings
    predictions: Sequence[str]
    files: Sequence[tuple[str, str]]
    starts: Sequence[int]
    keys: npt.NDArray[np.uint64]
    versions: npt.NDArray[np.int64]
    names: Sequence[str]
    times: Any
    labels: npt.NDArray[np.float64]
    usable: npt.NDArray[np.bool_]
    corrected: int = 0

    @cached_property
    def labelled(self) -> npt.NDArray[np.bool_]:
        """Rows with a label, (n,)."""
        return np.asarray(np.isfinite(self.labels).all(axis=1))

    @cached_property
    def chosen(self) -> npt.NDArray[np.bool_]:
        """The rows that are evaluated, (n,): see the module."""
        taken = self.labelled & self.usable & (self.versions >= 0)
        if self.split.key is None:
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
        line = f"{self.split.name}: {kept:,} of {rows:,} stored predictions are evaluated"
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
        name = self.split.name
        alike: dict[str, dict[str, Rows]] = {}
        for version, own in rows.items():
            order = np.argsort(self.keys[own], kind="stable")
            code = combine([version.encode()])
            if self.split.key is not None:
                code = combine([self.keys[own][order].tobytes(), self.labels[own][order].tobytes()])
            alike.setdefault(code, {})[version] = own
        return [StoredPart(name, self._aligned(group), since, until) for group in alike.values()]

    def shared(self, rows: Mapping[str, Rows], least: int = FEWEST_SHARED) -> list[StoredPart]:
        """The splits of rows whose keys several versions scored, beside others that they did not.

        One of the keys that all versions share; where these are too few, one for each pair that shares enough.
        """
        if self.split.key is None or len(self.parts(rows)) < 2:
            return []
        groups = [list(rows)]
        if len(self._common(rows, groups[0])) < least:
            groups = [[a, b] for number, b in enumerate(rows) for a in list(rows)[:number]]
        found = []
        for names in groups:
            common = self._common(rows, names)
            if len(common) >= least:
                name = "-".join([self.split.name, "shared", *(each.replace("/", "-") for each in names)])
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


def read_stored(split: SplitSettings, predictions: Sequence[str], said: StoredPredictions) -> StoredTable:
    """Read what chooses rows, and join the labels.

    Args:
        split: the rows with their inputs; its target is that of the labels where these lie elsewhere.
        predictions: the columns of the predictions.
        said: which columns are versions and times, and where the labels lie.

    Raises:
        SplitError: no such file or column, a row without a key, or no key of the predictions has a label.
    """
    read = SplitSource.of(split)
    columns = _Columns(split.key, said.time, [] if said.targets else split.target_columns, said.version, predictions)
    files = [(path, read.state(path)) for path in read.paths()]
    counts = columns.read(read, [path for path, _ in files])
    return _table(split, columns, files, [0, *accumulate(counts)], said.targets)


def stored_in_frame(
    frame: pd.DataFrame, split: SplitSettings, predictions: Sequence[str], said: StoredPredictions
) -> StoredTable:
    """The same of rows in memory, whose labels are among their columns.

    Raises:
        SplitError: no such column, or a row without a key.
    """
    columns = _Columns(split.key, said.time, split.target_columns, said.version, predictions)
    absent = [name for name in columns.names if name not in frame.columns]
    if absent:
        raise unknown_column(absent[0], "stored predictions", list(map(str, frame.columns)), "the frame")
    columns.take(pa.RecordBatch.from_pandas(frame[columns.names], preserve_index=False), "the frame", 0)
    return _table(split, columns, [("the frame", "")], [0, len(frame)], None)


@dataclass
class _Columns:
    """The columns of a table that choose rows, and what is kept of each row while it is read.

    Attributes:
        versions: the number of each version, by its name.
        shown: the first key.
        kept: of each batch which rows are usable, keys, versions and times where they are asked for, and targets.
    """

    key: str | None
    time: str | None
    targets: Sequence[str]
    version: str | None = None
    predictions: Sequence[str] = ()
    versions: dict[str, int] = field(default_factory=dict)
    shown: str = ""
    kept: list[pd.DataFrame] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Of all of them."""
        wanted = [name for name in (self.key, self.version, self.time) if name is not None]
        return list(dict.fromkeys([*wanted, *self.targets, *self.predictions]))

    def read(self, source: SplitSource, paths: Sequence[str]) -> list[int]:
        """Take all rows of some files; returns how many each has."""
        counts = dict.fromkeys(paths, 0)
        for path, start, batch in batches_of(source, paths, self.names):
            self.take(batch, path, start)
            counts[path] = start + batch.num_rows
        return list(counts.values())

    def take(self, batch: pa.RecordBatch, path: str, start: int) -> None:
        """More rows; ``start`` is the number of the first one in its file."""
        found: dict[Any, Any] = {"usable": _all_there(batch, self.predictions)}
        if self.key is not None:
            column = batch.column(self.key)
            self.shown = self.shown or (str(column[0]) if len(column) else "")
            found["key"] = _key_numbers(column, self.key, path, start)
        if self.version is not None:
            found["version"] = _coded(batch.column(self.version), self.versions)
        if self.time is not None:
            found["time"] = _as_times(batch.column(self.time), self.time, path, start)
        found |= {number: as_numbers(batch.column(name)) for number, name in enumerate(self.targets)}
        self.kept.append(pd.DataFrame(found))


def _table(
    split: SplitSettings,
    columns: _Columns,
    files: Sequence[tuple[str, str]],
    starts: Sequence[int],
    elsewhere: LabelSettings | None,
) -> StoredTable:
    """All rows with their labels."""
    frame = pd.concat(columns.kept, ignore_index=True)
    keys = frame["key"].to_numpy() if columns.key is not None else np.arange(len(frame), dtype=np.uint64)
    labels, corrected = frame[list(range(len(columns.targets)))].to_numpy(), 0
    if elsewhere is not None:
        latest, corrected, shown = _latest_labels(elsewhere)
        labels = latest.reindex(keys).to_numpy()
        if len(latest) and len(keys) and np.isnan(labels).all():
            raise SplitError(
                f"{elsewhere.uri}: none of its {len(latest):,} keys ({elsewhere.key}, for example {shown!r}) is a key "
                f"of the predictions ({split.key}, for example {columns.shown!r}); name the columns that agree"
            )
    return StoredTable(
        split=split,
        predictions=columns.predictions,
        files=files,
        starts=starts,
        keys=keys,
        versions=frame["version"].to_numpy() if columns.version is not None else np.zeros(len(frame), np.int64),
        names=list(columns.versions) or [""],
        times=frame["time"].to_numpy() if columns.time is not None else None,
        labels=labels,
        usable=frame["usable"].to_numpy(),
        corrected=corrected,
    )


def _latest_labels(labels: LabelSettings) -> tuple[pd.DataFrame, int, str]:
    """The latest label of each key that is a number, how many keys have several that differ, and the first key."""
    at = SplitSettings(uri=labels.uri, format=labels.format, input=labels.key, target=labels.target)
    read = SplitSource.of(at.model_copy(update={"storage_options": labels.storage_options}))
    columns = _Columns(labels.key, labels.time, at.target_columns)
    columns.read(read, read.paths())
    frame = pd.concat(columns.kept, ignore_index=True)
    targets = list(range(len(columns.targets)))
    frame = frame.loc[np.isfinite(frame[targets].to_numpy()).all(axis=1)]
    if columns.time is not None:
        frame = frame.sort_values("time", kind="stable")
    again = frame[frame["key"].duplicated(keep=False)].groupby("key")[targets]
    corrected = int((again.min() != again.max()).any(axis=1).sum())
    return frame.drop_duplicates("key", keep="last").set_index("key")[targets], corrected, columns.shown


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
    """Numbers that stand for keys: equal where their texts are; a whole number that is a float is the number."""
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise SplitError(f"{path}, row {row}: column {name!r} (key) is missing; every row needs a key")
    keys = column.to_numpy(zero_copy_only=False).astype(object)
    if pa.types.is_floating(column.type):  # as pandas writes whole numbers once one was missing
        keys = np.array([int(key) if float(key).is_integer() else key for key in keys], dtype=object)
    return hashed_keys(keys)


def _coded(column: Any, names: dict[str, int]) -> npt.NDArray[np.int64]:
    """The number of each row's version; -1 where there is none."""
    found = column.dictionary_encode()
    numbers = [-1 if text is None else names.setdefault(str(text), len(names)) for text in found.dictionary.to_pylist()]
    indices = found.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*numbers, -1], np.int64)[indices])


def _as_times(column: Any, name: str, path: str, start: int) -> npt.NDArray[np.datetime64]:
    """Times in UTC."""
    if not (is_text(column.type) or is_moment(column.type)):
        kind = f"holds {column.type}; give timestamps, dates or ISO 8601 texts"
        raise SplitError(f"{path}: column {name!r} (time) {kind}")
    found = moments(column)
    if np.isnat(found).any() and (unread := unread_time(column)) is not None:
        raise SplitError(f"{path}, row {start + unread[0]}: column {name!r} (time) {unread[1]}")
    return found


def _all_there(batch: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    there = np.ones(batch.num_rows, dtype=bool)
    for name in names:
        column = batch.column(name)
        valid = pc.is_valid(column)
        if pa.types.is_floating(column.type):
            valid = pc.and_(valid, pc.invert(pc.is_nan(column).fill_null(True)))
        there &= valid.to_numpy(zero_copy_only=False)
        if is_list(column.type) and is_number(column.type.value_type):
            # All draws of a row must be there, as in numbered columns.
            numbers = pc.list_flatten(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
            rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
            there[rows[np.isnan(numbers)]] = False
            there &= np.bincount(rows, minlength=len(there)) > 0
    return there
