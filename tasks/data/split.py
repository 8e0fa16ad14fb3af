"""A split: labelled rows in a fixed order, cut into shards, each with a digest of what it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from congruence.kernels.arrays import Array
from congruence.kernels.rng import hashed_keys
from congruence.tasks.data.columns import read_design
from congruence.tasks.data.ingest import Looking, SplitRows, own_folder, unseen
from congruence.tasks.data.inputs import (
    DIGEST,
    ROW_BYTES,
    STATE,
    Features,
    RawInput,
    Reader,
    as_numbers,
    digest_of,
    invalid_row,
)
from congruence.tasks.data.pictures import read_reference
from congruence.tasks.data.rows import Ingested, Lacking, RowFacts, rows_without_target
from congruence.tasks.data.settings import SampleDesign, Shard, SplitSettings, runs
from congruence.tasks.data.sources import REASON, REFERENCE
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.runtime.errors import SplitError, TooManyInvalidRowsError, unknown_column
from congruence.tasks.runtime.files import MadeOnce

logger = logging.getLogger(__name__)


class Split:
    """Rows in a fixed order, read shard by shard: never whole in memory.

    It travels as the address of its manifest and opens nothing until it is used; a process that uses several copies
    reads the manifest once. ``digest`` covers the content of every row (key, target, model inputs, slices, encoder
    input), not the place where it lies, the files that it is divided into, or the size of the shards.
    """

    def __init__(self, settings: SplitSettings, ingested: Ingested) -> None:
        self.settings = settings
        self.name = settings.name
        self.digest = ingested.digest
        self.rows = ingested.rows
        self._address = settings.absolute()
        self._folder, self._manifest = ingested.folder, ingested.name
        self._opened: Ingested | None = ingested
        self._shards: list[Shard] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_shards": None}

    @property
    def shards(self) -> list[Shard]:
        """The shards in order."""
        if self._shards is None:
            size, rows = self.settings.rows_of_a_shard(), self.rows
            digests = self._ingested.shard_digests
            starts = enumerate(range(0, rows, size))
            self._shards = [Shard(i, start, min(size, rows - start), digests[i]) for i, start in starts]
        return self._shards

    @property
    def facts(self) -> RowFacts:
        """What is known of all rows: which lack a finite number, and the range of each target."""
        return self._ingested.facts

    def require_measurable(self, max_invalid: float = 0.01, *, missing: str = "leave_out") -> str | None:
        """One rule for every row that lacks a finite number, in its features or its targets: it is left out, and said.

        Reads the manifest alone. Images and texts that cannot be used show when they are decoded; they count against
        the same limit there.

        Args:
            max_invalid: the fraction of rows that may be left out.
            missing: what the encoder makes of a feature without a value (``EncoderSettings.missing``): unless
                "leave_out", such rows stay, and do not count against the limit.

        Returns:
            how many rows are left out, and how many stay without all their features, with the first of them; None where
            every row is whole.

        Raises:
            TooManyInvalidRowsError: more rows than ``max_invalid`` allows lack a number.
            SplitError: fewer than two rows are left, or all their targets are the same.
        """
        facts, rows, where = self.facts, self.rows, f"split {self.name!r} ({self.settings.uri})"
        (inputs, targets), absent, said = facts.left_out(missing), facts.missing, list[str]()
        lacking = inputs.rows + targets.rows
        if lacking:
            said.append(
                f"split {self.name!r}: {lacking} of {rows} rows lack a finite number and are left out "
                f"({inputs.rows} in the features, {targets.rows} in the targets): "
                f"{Lacking(lacking, [*inputs.first, *targets.first]).listed(self.place)}"
            )
        if lacking > max_invalid * rows:
            remedy = "repair these rows, or raise max_invalid"
            if missing == "leave_out" and absent.rows:
                remedy = (
                    "repair these rows, raise max_invalid, or, where the models take missing values themselves, set "
                    "missing: mean (or indicator) under encoder: the rows then stay"
                )
            raise TooManyInvalidRowsError(f"{said[0]}; at most {max_invalid:.2%} may be left out: {remedy}")
        if rows - lacking < 2:
            holds = f"holds {rows} row{'s' if rows > 1 else ''}, of which {rows - lacking} can be used"
            raise SplitError(f"{where}: {holds}; an evaluation compares rows and needs at least two (better hundreds)")
        if facts.ranges and all(low == high for low, high in facts.ranges.values()):
            values = ", ".join(f"{name!r} is {low:g}" for name, (low, _) in facts.ranges.items())
            raise SplitError(
                f"{where}, {self.place(0)} and all rows after it: the target {values} in every row, so that there is "
                "nothing to predict; check the target column, or choose rows that differ"
            )
        if missing != "leave_out" and absent.rows:
            said.append(
                f"split {self.name!r}: {absent.rows} of {rows} rows lack a feature and stay: the models are given them "
                f"as they are, and for nearness {_STAND_INS[missing]} (encoder.missing: {missing}): "
                f"{absent.listed(self.place)}"
            )
        return "\n".join(said) or None

    @property
    def key_column(self) -> str:
        """The name of the key's column in frames."""
        return self._ingested.source.key or "row"

    def column_type(self, name: str) -> pa.DataType:
        """The Arrow type of a column that the settings name.

        Raises:
            SplitError: a column that does not exist.
        """
        self._require_columns([name], "column")
        return self._ingested.schema.field(name).type

    @property
    def dates(self) -> set[date]:
        """The dates of its files; none where they come without, or of a copy of some rows."""
        dates = self._ingested.source.location.dates
        return set() if dates is None else {dates.date_of(path) for path, _ in self._ingested.files}

    @property
    def period(self) -> str:
        """The first and the last date of its files as an ISO 8601 interval, ``2026-03-01/2026-03-07``; "" without any.

        Of a copy of some rows they are the dates of its settings.
        """
        found, settings = self.dates, self.settings
        first, last = (min(found), max(found)) if found else (settings.since, settings.until)
        return f"{first}/{last}" if first is not None and last is not None else ""

    def place(self, row: int) -> str:
        """The file that row ``row`` of the split lies in, and its number in that file."""
        return self._ingested.place(row)

    def input_readers(self, shard: Shard) -> Iterator[Reader]:
        """For each row a call that loads the encoder's input or raises InvalidRow: for threads that read and decode.

        A row whose target is not a finite number is invalid as well.
        """
        without_target = self._without_target(shard)
        for row, read in enumerate(self._readers(shard)):
            yield invalid_row(without_target[row]) if row in without_target else read

    def rows_without_file(self) -> list[int]:
        """The rows whose picture is named by a path at which nothing lay when the split was opened."""
        if STATE not in self._ingested.schema.names:
            return []
        absent = pa.scalar(digest_of(FileNotFoundError.__name__.encode()), pa.binary(ROW_BYTES))
        found, start = [], 0
        for batch in self._ingested.stored([STATE], 0, self.rows):
            found += (start + np.flatnonzero(pc.equal(batch.column(0), absent).to_numpy(zero_copy_only=False))).tolist()
            start += batch.num_rows
        return found

    def features(self, shard: Shard, *, missing: bool = False) -> tuple[npt.NDArray[np.float64], dict[int, str]]:
        """The feature vectors of ``shard`` as one array (rows, d), and by row of it why some are no input.

        With ``missing`` rows that lack some of their values (NaN) are an input.

        Raises:
            SplitError: the inputs are not features.
        """
        inputs = self._ingested.inputs
        if not isinstance(inputs, Features):
            raise SplitError(f"split {self.name!r}: its inputs are of kind {self.settings.input_kind!r}, not features")
        batches = list(self._unchanged(inputs.columns, shard.start, shard.stop))
        whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        matrix, unusable = inputs.matrix(whole, missing=missing)
        return matrix, dict(sorted({**unusable, **self._without_target(shard)}.items()))

    def frame(self, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Key, targets, model inputs and slice columns of ``shard`` (or just ``columns``), one row per row.

        A model input that is also the encoder's image or text column holds the content that the encoder is given,
        None where the row is invalid. The index counts the rows of the split.

        Raises:
            SplitError: a column that does not exist.
        """
        wanted = list(dict.fromkeys(columns if columns is not None else self._frame_columns()))
        inputs = self._ingested.inputs
        content = set(inputs.columns) if self.settings.input_kind != "features" else set()
        stored = [name for name in wanted if name not in content]
        if not set(stored).isdisjoint(inputs.columns):
            self._ingested.require_unchanged(shard.start, shard.stop)
        frame = self._stored(stored, shard.start, shard.stop)
        for name in wanted:
            if name in content:
                values: list[RawInput | None] = []
                for read in self._readers(shard):
                    try:
                        values.append(read())
                    except InvalidRow:
                        values.append(None)
                frame[name] = pd.Series(values, index=frame.index, dtype=object)
        return frame[wanted]

    def targets(self, *shards: Shard) -> npt.NDArray[np.float64]:
        """The targets of some shards one after the other, by default of all rows.

        (rows,), (rows, q) for several target columns, (rows, 0) where there is none.
        """
        shards = shards or tuple(self.shards)
        names = self.settings.target_columns
        values = np.empty((sum(shard.rows for shard in shards), len(names)))
        filled = 0
        for start, stop in runs(shards) if names else ():
            for batch in self._ingested.stored(names, start, stop):
                for number, name in enumerate(names):
                    values[filled : filled + batch.num_rows, number] = as_numbers(batch.column(name))
                filled += batch.num_rows
        return values[:, 0] if len(names) == 1 else values

    def keys(self, *shards: Shard) -> Array:
        """The keys of some shards one after the other, by default of all rows, (rows,) of text."""
        parts = [self._key_values(start, stop) for start, stop in runs(shards or self.shards)]
        return np.array([str(key) for part in parts for key in part], dtype=object)

    def key_values(self, shard: Shard) -> pd.Series[Any]:
        """The keys of ``shard`` as they are stored, of pictures that are named by their paths the paths."""
        return self._key_values(shard.start, shard.stop)

    def key_numbers(self, start: int, stop: int) -> Array:
        """Numbers that stand for the keys of some rows, (rows,), by which what is drawn for a row is drawn."""
        if self.key_column == self._row_key:
            return hashed_keys(np.array([str(row) for row in range(start, stop)], dtype=object))
        return hashed_keys(self._key_values(start, stop).to_numpy())

    def design(self, shards: Sequence[Shard] | None = None) -> SampleDesign:
        """Groups, times, weights and exposures of some shards one after the other, by default of all rows."""
        named = self.settings.design_columns
        names = list(dict.fromkeys(named.values()))
        ranges = runs(self.shards if shards is None else shards) if names else []
        batches = [batch for start, stop in ranges for batch in self._ingested.stored(names, start, stop)]
        return read_design(named, pa.Table.from_batches(batches).combine_chunks()) if batches else SampleDesign()

    @property
    def row_columns(self) -> list[str]:
        """Every column that the settings name, once: what a copy of rows needs to be a split like this one."""
        settings = self.settings
        columns = [*self._frame_columns(), *settings.input_columns, *settings.design_columns.values()]
        return list(dict.fromkeys([*columns, *settings.stored_columns]))

    @property
    def _ingested(self) -> Ingested:
        if self._opened is None:
            self._opened = _opened_here(self._address, self._folder, self._manifest, self.digest)
        return self._opened

    def _readers(self, shard: Shard) -> Iterator[Reader]:
        inputs, names = self._ingested.inputs, self._ingested.schema.names
        columns = [*inputs.columns, *(name for name in (REASON, DIGEST) if name in names)]
        for batch in self._unchanged(columns, shard.start, shard.stop):
            yield from inputs.readers(batch)

    def _unchanged(self, columns: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Inputs, while the files of the source are those that were ingested.

        Raises:
            SplitChangedError: they are not.
        """
        try:
            for batch in self._ingested.batches(columns, start, stop):
                self._ingested.require_unchanged(start, start + batch.num_rows)
                start += batch.num_rows
                yield batch
        except (SplitError, OSError):
            # A file that changed is damaged in many ways, which are not the fault.
            self._ingested.require_unchanged(start, stop)
            raise

    def _without_target(self, shard: Shard) -> dict[int, str]:
        if not self._ingested.facts.targets.rows:
            return {}
        names = self.settings.target_columns
        batches = self._ingested.stored(names, shard.start, shard.stop)
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return rows_without_target(self.settings, whole)

    def _stored(self, names: Sequence[str], start: int, stop: int) -> pd.DataFrame:
        """Columns as they were ingested; what a reference stands for where a column has them."""
        stored = [name for name in names if name != self._row_key]
        self._require_columns(stored, "frame")
        batches = list(self._ingested.stored(stored, start, stop)) if stored else []
        frame = pd.DataFrame(index=range(stop - start))
        if batches:
            frame = pa.Table.from_batches(batches).to_pandas(ignore_metadata=True)
        filesystem = self._ingested.source.location.filesystem
        for name in stored:
            if self._ingested.schema.field(name).type == REFERENCE:
                frame[name] = [None if at is None else read_reference(filesystem, **at) for at in frame[name]]
        frame.index = pd.RangeIndex(start, stop)
        if self._row_key in names:
            # Texts of Python would take 60 bytes a row on the way.
            texts = pc.cast(pa.array(np.arange(start, stop)), pa.string())
            frame[self._row_key] = texts.to_pandas().array
        return frame[list(names)]

    def _key_values(self, start: int, stop: int) -> pd.Series[Any]:
        return self._stored([self.key_column], start, stop)[self.key_column]

    def _require_columns(self, names: Sequence[str], role: str) -> None:
        available = [name for name in self._ingested.schema.names if not name.startswith("__")]
        for name in names:
            if name not in self._ingested.schema.names:
                raise unknown_column(name, role, available, self._ingested.source.location.uri)

    @property
    def _row_key(self) -> str | None:
        return "row" if self._ingested.source.key is None else None

    def _frame_columns(self) -> list[str]:
        settings = self.settings
        return [self.key_column, *settings.target_columns, *settings.model_input_columns, *settings.slices]


_STAND_INS = {
    "mean": "the feature's mean stands in",
    "indicator": "the feature's mean stands in, beside a feature that is 1 where it is missing",
}

_here = MadeOnce[Ingested](16)


def _opened_here(settings: SplitSettings, folder: Path, name: str, digest: str) -> Ingested:
    """A split that was opened elsewhere, once for this process; ingested again where its folder is not seen.

    Raises:
        SplitError: there is no manifest of that name, and the split has changed since it was opened.
    """
    identity = (str(folder), name, str(sorted(settings.storage_options.items(), key=str)))

    def opened() -> Ingested:
        found = SplitRows(settings, folder).load(name) or _ingested_again(settings, folder)
        if found.digest != digest:
            raise SplitError(f"{settings.uri}: the split has changed since it was opened; open it again")
        return found

    return _here.get(identity, opened)


def _ingested_again(settings: SplitSettings, folder: Path) -> Ingested:
    logger.warning("split %s: %s is not to be seen here, so it is read from its source again", settings.name, folder)
    try:
        return _ingested(settings, folder)
    except PermissionError:
        return _ingested(settings, own_folder())


def open_split(settings: SplitSettings, plans: str | Path | None = None, looking: Looking = unseen) -> Split:
    """The split that ``settings`` describe, checked and ingested.

    Each file of the source is read once from end to end (text files twice). Digests depend on the content alone. In the
    folder ``plans`` the rows are kept, file by file, for as long as a file does not change its size, times or ETag: the
    next opening only looks at these and reads no source. Workers that see the folder share it; without one the rows go
    with this process. Pictures stay where they are.

    A row whose target is not a finite number is kept in its place as an invalid row, as one whose input is not.
    ``looking`` sees how far the rows are looked through once all files are ingested.

    Raises:
        SplitError: no such file, column or type, duplicate or missing keys, no rows.
    """
    folder = Path(plans).absolute() if plans is not None else own_folder()
    return Split(settings, _ingested(settings, folder, looking))


def _ingested(settings: SplitSettings, folder: Path, looking: Looking = unseen) -> Ingested:
    rows = SplitRows(settings, folder)
    return rows.kept() or rows.made(looking)


def open_kept(settings: SplitSettings, plans: Path) -> Split | None:
    """The split as ingested in the present state of its files, None where it was not: nothing is read or made."""
    found = SplitRows(settings, plans).kept()
    return None if found is None else Split(settings, found)
