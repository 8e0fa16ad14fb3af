"""Which format a split has, by its settings or by what lies at its address."""

from collections.abc import Callable

from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.parquet import ParquetTable
from congruence.tasks.sources.settings import Format
from congruence.tasks.sources.tables import Table

_TABLES: dict[str, Callable[[Location], Table]] = {
    "parquet": ParquetTable,
}
_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
}


def open_table(form: Format, location: Location) -> Table:
    """The table at ``location``, read as ``form``; raises SplitError where the format cannot be told."""
    return _TABLES[_detect(location) if form == "auto" else form](location)


def _detect(location: Location) -> str:
    for suffix, form in _SUFFIXES.items():
        if location.path.endswith(suffix):
            return form
    if location.is_folder():
        found = {
            form for path in location.files(tuple(_SUFFIXES)) for end, form in _SUFFIXES.items() if path.endswith(end)
        }
        if len(found) == 1:
            return found.pop()
        raise SplitError(f"{location.uri}: the folder mixes {', '.join(sorted(found))} files; set format")
    if not location.filesystem.exists(location.path) and "*" not in location.path:
        raise SplitError(f"{location.uri}: no such file or folder; check the split's uri")
    raise SplitError(f"{location.uri}: the format does not show in the name; set format to one of {', '.join(_TABLES)}")
