"""What is wrong with a split, said before any work is spent on it."""

import difflib
from collections.abc import Iterable

from congruence.kernels.errors import InvalidInputError


class SplitError(InvalidInputError):
    """A split that cannot be evaluated: names the file, column, row and value, and the remedy."""


def unknown_column(name: str, role: str, available: Iterable[str], where: str) -> SplitError:
    """The error for a column that does not exist: lists those that do and points at the nearest name."""
    names = list(available)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    listed = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    return SplitError(f"{where}: there is no column {name!r} ({role}){hint} the columns are: {listed or 'none'}")
