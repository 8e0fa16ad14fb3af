"""A split in words: where it lies, what its columns mean, its shards, and what it says of rows beside their targets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.settings.parts import Strict

if TYPE_CHECKING:  # a file with a mistake is refused before NumPy is loaded
    from congruence.kernels.arrays import Array
    from congruence.kernels.dependence.blocks import RowDependence

Name = Annotated[str, Field(min_length=1)]
SHARD_ROWS, TABLE_SHARD_ROWS = 2048, 8192
_WINDOW = re.compile(r"^\s*(?P<number>\d+)\s*(?P<unit>day|week)s?\s*$")
_DAYS = {"day": 1, "week": 7}
WINDOW_KEYS = ("last", "since", "until", "new_dates_only")
"""The keys that say of which dates files are read, and say nothing of what is in them."""


def window_days(written: object) -> object:
    """Days of ``30 days`` or ``4 weeks``.

    Raises:
        ValueError: another form.
    """
    if not isinstance(written, str):
        return written
    match = _WINDOW.match(written)
    if match is None:
        raise ValueError(f"{written!r} is no window; write for example 30 days or 4 weeks")
    return int(match["number"]) * _DAYS[match["unit"]]


def _absolute(uri: str) -> str:
    return uri if "::" in uri or "://" in uri else os.path.abspath(os.path.expanduser(uri))


STORED_ROWS = "stored "
"""Begins the tag of a version's own settings where its predictions were stored: it may have rows of its own."""


class StoredColumns(Strict):
    """The predictions of one version in columns of a split that is made of stored predictions: written by us.

    Attributes:
        columns: those of the split, and what each was called where it was stored.
        digest: of what they hold.
    """

    columns: dict[str, str]
    digest: str


class SplitSettings(Strict):
    """One split: its address and the role of each column.

    ``uri`` is a file, a folder or a glob on any file system that fsspec knows (a path, ``s3://``, ``gs://``).
    Files that come day by day have ``{date}`` in it: ``s3://bucket/day={date}/*.parquet``, or ``{date:%Y/%m/%d}``.
    ``format: auto`` goes by the ending: ``.parquet``, ``.csv``, ``.jsonl``, ``.tar``, ``.npz``, ``.npy``, ``.zarr``,
    a folder saved by Hugging Face ``datasets``, or a folder of one of these kinds of files.

    ``input`` is what the encoder reads: an image column (encoded bytes, or paths below ``image_root``), a text column,
    one column of vectors, or a list of numeric feature columns. In tar shards a column is a member's extension, with
    alternatives as in ``jpg;jpeg;png``, or a field of the sample's ``.json`` member.
    """

    name: Name = "test"
    """What the split is called in MLflow and in reports."""
    uri: Name
    format: Name = "auto"
    """Where the ending of the file does not tell: parquet, arrow, csv, jsonl, webdataset, npz, npy, zarr, huggingface,
    or the name of a source that an installed package adds."""
    input: Name | Annotated[list[Name], Field(min_length=1)]
    input_kind: Literal["image", "text", "features"] = "image"
    """What ``input`` holds."""
    image_root: str | None = None
    """Folder that image paths are relative to and never leave; by default the folder that holds the manifest."""
    key: str | None = None
    """Column that names each row, unique in the split; by default the row number (in tar shards the sample's name)."""
    target: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Column or columns to predict; only new inputs, whose reliability is asked for, go without."""
    model_inputs: list[Name] | None = None
    """Columns that the model is given; by default those of ``input``. An image column is given as encoded bytes."""
    slices: list[Name] = Field(default=[])
    """Columns whose values divide the split into groups that are reported one by one."""
    groups: Name | None = None
    """Column whose equal values say which rows belong together: a patient, a customer, a series of photos."""
    time: Name | None = None
    """Column by which rows are in order, each perhaps like the one before: timestamps, ISO 8601 texts or numbers."""
    weight: Name | None = None
    """Column of how much each row counts in means, such as a sampling weight: a number of at least 0."""
    exposure: Name | None = None
    """Column of how long, or of how much, each row's count is: insured years, kilometres; a number above 0."""
    last: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(window_days)] = None
    """Of a ``uri`` with ``{date}`` only the last days: ``30 days``, counted back from the newest date that there is."""
    since: date | None = None
    """Of a ``uri`` with ``{date}`` only this date and later ones."""
    until: date | None = None
    """Of a ``uri`` with ``{date}`` only this date and earlier ones."""
    new_dates_only: bool = False
    """A version in use is looked at by ``watch`` on the dates after its last look; other commands read all of them."""
    shard_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows of one shard, the unit of work, of resumption and of storage: by default 2048, and 8192 in tables."""
    max_input_bytes: Annotated[int, Field(ge=1)] = 256 * 2**20
    """A larger encoded image is an invalid row: one damaged file must not exhaust a worker's memory."""
    storage_options: dict[str, Any] = Field(default={}, repr=False)
    """Passed to the fsspec file system: endpoint, credentials. Never logged, never part of a digest."""
    stored: dict[str, StoredColumns] = Field(
        default={}, description="predictions in its rows by the version's address: written by us"
    )

    def rows_of_a_shard(self) -> int:
        """``shard_rows``, whatever the number of rows: what is appended leaves the shards before it as they are."""
        return self.shard_rows or (TABLE_SHARD_ROWS if self.input_kind == "features" else SHARD_ROWS)

    def _contradictions(self) -> Iterator[str]:
        if self.input_kind != "features" and isinstance(self.input, list):
            yield f"input: an {self.input_kind} input is one column, got the list {self.input}"
        for role in ("input", "target", "model_inputs", "slices"):
            named = getattr(self, role)
            twice = [name for name in named if named.count(name) > 1] if isinstance(named, list) else []
            if twice:
                yield f"{role}: names the column {twice[0]!r} twice; name it once"
        windows = [key for key in WINDOW_KEYS if getattr(self, key)]
        if windows and "{date" not in self.uri and not self.stored:
            yield (
                f"{windows[0]}: uri has no {{date}} to go by (found {self.uri}); write for example "
                "day={date}/*.parquet"
            )

    def absolute(self) -> Self:
        """The same split with paths that mean the same in every working folder: what is sent to a worker."""
        root = None if self.image_root is None else _absolute(self.image_root)
        return self.model_copy(update={"uri": _absolute(self.uri), "image_root": root})

    @property
    def input_columns(self) -> list[str]:
        """The columns that the encoder reads."""
        return [self.input] if isinstance(self.input, str) else list(self.input)

    @property
    def target_columns(self) -> list[str]:
        """The columns of the target, none where there is no target."""
        if self.target is None:
            return []
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def target_name(self) -> str:
        """The columns of the target as one word, "" where there is no target."""
        return "+".join(self.target_columns)

    @property
    def design_columns(self) -> dict[str, str]:
        """The columns of groups, time, weight and exposure that are named, by what they are."""
        named = {"groups": self.groups, "time": self.time, "weight": self.weight, "exposure": self.exposure}
        return {role: column for role, column in named.items() if column is not None}

    @property
    def roles(self) -> list[tuple[str, str]]:
        """The columns that are named, each with what it is; one that is several things occurs as often."""
        return [
            *((name, "input") for name in self.input_columns),
            *((name, "target") for name in self.target_columns),
            *((name, "model_inputs") for name in self.model_inputs or []),
            *((name, "slices") for name in self.slices),
            *((name, role) for role, name in self.design_columns.items()),
            *([(self.key, "key")] if self.key else []),
        ]

    @property
    def stored_columns(self) -> list[str]:
        """The columns of stored predictions, of all versions: no part of the split's digest."""
        return [name for version in self.stored.values() for name in version.columns]

    @property
    def model_input_columns(self) -> list[str]:
        """The columns that the model is given."""
        return self.input_columns if self.model_inputs is None else list(self.model_inputs)


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a split. ``digest`` covers the content of their encoder inputs, nothing else.

    So the embeddings of a shard are found again under its digest after rows were appended to the split, after a target
    was corrected, or when the split was moved. (A row whose target is not a number counts as one without an input.)
    """

    index: int
    start: int
    rows: int
    digest: str

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.start + self.rows


def runs(shards: Sequence[Shard]) -> list[tuple[int, int]]:
    """The rows of shards as ranges, in their order, neighbours in one."""
    found: list[tuple[int, int]] = []
    for shard in shards:
        start = found.pop()[0] if found and found[-1][1] == shard.start else shard.start
        found.append((start, shard.stop))
    return found


@dataclass(frozen=True)
class SampleDesign:
    """Columns of some rows, (n,) each, None where the split names none.

    Attributes:
        groups: int64 codes, equal where rows belong together, in every part of the split alike.
        time: int64 (microseconds, or the whole numbers of the column) or float64: rows are ordered by it.
        weight: float64, at least 0.
        exposure: float64, above 0.
    """

    groups: Array | None = None
    time: Array | None = None
    weight: Array | None = None
    exposure: Array | None = None

    def rows(self, chosen: Array | slice) -> SampleDesign:
        """Of some of the rows, by a mask, their numbers or a slice."""
        return SampleDesign(**{role: None if values is None else values[chosen] for role, values in vars(self).items()})

    def dependence(self) -> RowDependence | None:
        """Which of the rows may depend on each other; None where the split names neither groups nor time.

        Raises:
            InvalidInputError: missing values, by row.
        """
        from congruence.kernels.dependence.blocks import RowDependence

        named = self.time if self.groups is None else self.groups
        return None if named is None else RowDependence.of(len(named), groups=self.groups, time=self.time)


_FIELD = re.compile(r"\{date(?::(?P<format>[^}]*))?\}")


_PARTS = {"%Y": r"\d{4}", "%m": r"\d{2}", "%d": r"\d{2}", "%j": r"\d{3}"}


@dataclass(frozen=True)
class DatedPath:
    """A path with ``{date}`` (``2026-03-01``) or ``{date:%Y/%m/%d}`` in it, and other wildcards beside.

    Attributes:
        path: as it is written.
        form: of the date, as ``strptime`` reads it.
    """

    path: str
    form: str

    @classmethod
    def of(cls, path: str) -> DatedPath | None:
        """The dates of a path, None where it has none.

        Raises:
            SplitError: several dates, or a date without year, month or day.
        """
        fields = list(_FIELD.finditer(path))
        if not fields:
            return None
        form = fields[0]["format"] or "%Y-%m-%d"
        if len(fields) > 1:
            raise SplitError(f"{path}: has {{date}} twice; write it once, for example {{date:%Y/%m/%d}}")
        if "%Y" not in form or not ("%j" in form or ("%m" in form and "%d" in form)):
            raise SplitError(f"{path}: {{date:{form}}} names no day; write for example {{date:%Y-%m-%d}}")
        return cls(path, form)

    @property
    def glob(self) -> str:
        """The pattern of all dates."""
        return _FIELD.sub(lambda _: re.sub(r"(%[Ymdj])+", "*", self.form), self.path)

    def date_of(self, path: str) -> date:
        """The date that a path begins with which this pattern matches.

        Raises:
            SplitError: none.
        """
        match = self._expression.match(path)
        try:
            return datetime.strptime(match["date"] if match else "", self.form).date()
        except ValueError:
            raise SplitError(
                f"{path}: has no date of the form {self.form} where {self.path} has one; rename it, or make the "
                "pattern of uri narrower"
            ) from None

    def within(self, paths: Sequence[str], window: SplitSettings | None) -> list[str]:
        """Returns the paths whose dates are those that ``last``, ``since`` and ``until`` of a split leave."""
        dates = [self.date_of(path) for path in paths]
        if not dates or window is None:
            return list(paths)
        first, last = window.since or date.min, window.until or date.max
        if window.last is not None:
            first = max(first, max(dates) - timedelta(days=window.last - 1))
        return [path for path, when in zip(paths, dates, strict=True) if first <= when <= last]

    @property
    def _expression(self) -> re.Pattern[str]:
        before, after = _FIELD.split(self.path)[0], self.path[_FIELD.search(self.path).end() :]  # type: ignore[union-attr]
        form = re.escape(self.form).replace("\\%", "%")
        for part, digits in _PARTS.items():
            form = form.replace(part, digits)
        return re.compile(f"{_as_expression(before)}(?P<date>{form}){_as_expression(after)}")


def _as_expression(glob: str) -> str:
    text = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.sub(r"\\\[(.*?)\\\]", r"[\1]", text)
