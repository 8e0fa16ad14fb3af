"""One look through all rows of a split as they were ingested: digests, facts, and what makes a row unusable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from congruence.tasks.data.design import as_numbers, design_problem
from congruence.tasks.data.digests import ContentDigest, combine, row_codes
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.ingested import Ingested, RowFacts
from congruence.tasks.data.inputs import Features
from congruence.tasks.data.roles import described_columns, key_of
from congruence.tasks.data.settings import SplitSettings


def looked_through(settings: SplitSettings, split: Ingested) -> Ingested:
    """The split with its digest, those of its shards, and the facts of its rows.

    Raises:
        SplitError: a key that is empty or occurs twice, a value that cannot be a group, time, weight or exposure.
    """
    look = _Look(settings, split)
    columns = [*look.described, *split.inputs.digested, *settings.target_columns]
    start = 0
    for batch in split.stored(list(dict.fromkeys(columns)), 0, split.rows):
        look.take(batch, start)
        start += batch.num_rows
    return look.ended()


class _Look:
    def __init__(self, settings: SplitSettings, split: Ingested) -> None:
        self._settings, self._split, self._facts = settings, split, RowFacts(split.rows)
        self._key = key_of(settings, split.source)
        self._codes = np.empty(split.rows if self._key else 0, np.uint64)
        self.described = {name: ContentDigest() for name in described_columns(settings, split.source)}
        self._whole, self._shard, self._shards = _RowDigest(), _RowDigest(), list[str]()

    def take(self, batch: pa.RecordBatch, start: int) -> None:
        """The rows from row ``start`` on."""
        if self._key:
            column = batch.column(self._key)
            if column.null_count:
                row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                place = self._split.place(row)
                raise SplitError(f"{place}: column {self._key!r} (key) is empty; give every row a key")
            self._codes[start : start + batch.num_rows] = row_codes(column)
        self._note_design(batch, start)
        for name, state in self.described.items():
            state.add_column(batch.column(name))
        self._digest(batch, start, self._note_lacking(batch, start))

    def ended(self) -> Ingested:
        """After the last row."""
        settings, facts = self._settings, self._facts
        if settings.weight is not None and facts.weights[0] == 0.0:
            raise SplitError(
                f"{self._split.source.location.uri}: column {settings.weight!r} (weight) is 0 in all {facts.rows:,} "
                "rows; at least one row must count: name another column, or leave weight out"
            )
        if self._key:
            _require_unique(self._split, self._key, self._codes)
        parts = (part for name, state in self.described.items() for part in (name.encode(), state.digest()))
        roles = [f"{role}: {name}".encode() for role, name in settings.design_columns.items()]
        digest = combine([combine(parts).encode(), self._whole.digest(), *roles])
        return replace(self._split, shard_digests=self._shards, digest=digest, facts=facts)

    def _digest(self, batch: pa.RecordBatch, start: int, lacking: dict[int, str]) -> None:
        size, inputs, flags = self._settings.rows_of_a_shard(), self._split.inputs, np.zeros(batch.num_rows, np.uint8)
        flags[list(lacking)] = 1
        done = 0
        while done < batch.num_rows:
            taken = min(batch.num_rows - done, size - (start + done) % size)
            inputs.digest(batch.slice(done, taken).select(inputs.digested), self._whole.inputs, self._shard.inputs)
            for state in (self._whole, self._shard):
                state.lacking.update(flags[done : done + taken].data)
            done += taken
            if (start + done) % size == 0 or start + done == self._split.rows:
                self._shards.append(combine([self._settings.input_kind.encode(), self._shard.digest()]))
                self._shard = _RowDigest()

    def _note_design(self, batch: pa.RecordBatch, start: int) -> None:
        for role, name in self._settings.design_columns.items():
            found = design_problem(role, batch.column(name))
            if found is not None:
                row, reason = found
                raise SplitError(f"{self._split.place(start + row)}: column {name!r} ({role}) {reason}")
            if role == "weight":
                weights, (total, squares) = as_numbers(batch.column(name)), self._facts.weights
                self._facts.weights = (total + float(weights.sum()), squares + float(weights @ weights))

    def _note_lacking(self, batch: pa.RecordBatch, start: int) -> dict[int, str]:
        """Rows without a finite target, and of the others those whose features are not finite."""
        facts, inputs, lacking = self._facts, self._split.inputs, rows_without_target(self._settings, batch)
        for name in self._settings.target_columns:
            values = as_numbers(batch.column(name))
            finite = values[np.isfinite(values)]
            if len(finite):
                facts.widen(name, float(finite.min()), float(finite.max()))
        for row, reason in sorted(lacking.items()):
            facts.targets.add(start + row, reason)
        if isinstance(inputs, Features):
            unusable = inputs.unusable(batch)
            never = inputs.unusable(batch, missing=True) if unusable else {}
            for row, reason in unusable.items():
                if row not in lacking:
                    (facts.inputs if row in never else facts.missing).add(start + row, reason)
            facts.add_features(inputs.to_standardise_by(batch, lacking))
        return lacking


class _RowDigest:
    """The digest of inputs, and of which rows have no target."""

    def __init__(self) -> None:
        self.inputs, self.lacking = ContentDigest(), ContentDigest()

    def digest(self) -> bytes:
        """Of all rows so far."""
        return self.inputs.digest() + self.lacking.digest()


def rows_without_target(settings: SplitSettings, batch: pa.RecordBatch) -> dict[int, str]:
    """The rows of ``batch`` that cannot be measured by their target, and why."""
    lacking: dict[int, str] = {}
    for name in settings.target_columns:
        values = as_numbers(batch.column(name))
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            lacking.setdefault(row, f"target {name!r} is {values[row]}, not a finite number")
    return lacking


def _require_unique(split: Ingested, key: str, codes: npt.NDArray[np.uint64]) -> None:
    """Raise SplitError where a key occurs twice; ``codes`` are equal where keys are, and rarely elsewhere."""
    ordered = np.sort(codes)
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(suspects):
        return
    first: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(codes, suspects)).tolist():
        (batch,) = split.stored([key], row, row + 1)
        text = str(batch.column(0)[0].as_py())
        if text in first:
            remedy = "remove the copy, or leave `key` out to use row numbers"
            if key == split.source.source.key:
                remedy = "write the members of a sample side by side, as tar --sort=name does"
            raise SplitError(
                f"column {key!r} (key) holds {text!r} twice: {split.place(first[text])} and {split.place(row)}; keys "
                f"name rows and must be unique ({remedy})"
            )
        first[text] = row
