"""What is wrong with a split, said before any work is spent on it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from congruence.kernels.errors import InvalidInputError


class SplitError(InvalidInputError):
    """A split that cannot be evaluated: names the file, column, row and value, and the remedy."""


class SplitChangedError(SplitError):
    """A file of a split is no longer the one that was indexed: names the file. What was read of it is not used."""


def changed(path: str, what: str = "was replaced or written to") -> SplitChangedError:
    """The error for a file that is not the one that was indexed."""
    return SplitChangedError(
        f"{path}: {what} since the split was opened, so that its rows are no longer those that were indexed; nothing "
        "that was read of it is used; let whatever writes it finish, and run again"
    )


def unknown_column(name: str, role: str, available: Iterable[str], where: str) -> SplitError:
    """The error for a column that does not exist: lists those that do and points at the nearest name."""
    names = list(available)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    listed = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    return SplitError(f"{where}: there is no column {name!r} ({role}){hint} the columns are: {listed or 'none'}")
