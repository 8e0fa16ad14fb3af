"""Dates in the names of files: ``day={date}/*.parquet``, and which of them are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from congruence.tasks.data.errors import SplitError

_FIELD = re.compile(r"\{date(?::(?P<format>[^}]*))?\}")
_PARTS = {"%Y": r"\d{4}", "%m": r"\d{2}", "%d": r"\d{2}", "%j": r"\d{3}"}


@dataclass(frozen=True)
class DateWindow:
    """Which dates are read: all by default.

    Attributes:
        last: so many days, counted back from the newest date that there is.
        since: the first date.
        until: the last date.
    """

    last: int | None = None
    since: date | None = None
    until: date | None = None


ALL_DATES = DateWindow()


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

    def within(self, paths: Sequence[str], window: DateWindow) -> list[str]:
        """Returns the paths whose dates are within the window."""
        dates = [self.date_of(path) for path in paths]
        if not dates:
            return []
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
