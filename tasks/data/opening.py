"""Opening a split: every column is checked and every row is ingested before any work is spent on it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa

from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.ingest import ingest, kept, own_folder
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split


def open_split(settings: SplitSettings, plans: str | Path | None = None) -> Split:
    """The split that ``settings`` describe, checked and ingested.

    Each file of the source is read once from end to end (text files twice). Digests depend on the content alone. In the
    folder ``plans`` the rows are kept, file by file, for as long as a file does not change its size, times or ETag: the
    next opening only looks at these and reads no source. Workers that see the folder share it; without one the rows go
    with this process. Pictures stay where they are.

    A row whose target is not a finite number is kept in its place as an invalid row, as one whose input is not.

    Raises:
        SplitError: no such file, column or type, duplicate or missing keys, no rows.
    """
    folder = Path(plans).absolute() if plans is not None else own_folder()
    return Split(settings, folder, *ingest(settings, folder))


def open_kept(settings: SplitSettings, plans: Path) -> Split | None:
    """The split as it was ingested in the present state of its files, None where it was not: nothing is read or made.

    Raises:
        SplitError: no such file or folder.
    """
    found = kept(settings, plans)
    return None if found is None else Split(settings, plans, *found)


def dates_of(settings: SplitSettings) -> list[date]:
    """Returns the dates of the files of a split, in order; none where its uri has no ``{date}``. No file is opened.

    Raises:
        SplitError: no such file or folder, or a name without a date where the uri has one.
    """
    source = SplitSource.of(settings)
    dates = source.location.dates
    return [] if dates is None else sorted({dates.date_of(path) for path in source.paths()})


def first_rows(uri: str, rows: int) -> pa.Table:
    """At most so many rows of the first file at ``uri``, before anything is said about its columns.

    Raises:
        SplitError: no such file or folder, or its format cannot be inferred.
    """
    source = SplitSource.of(SplitSettings(uri=uri, input="-"))
    held: list[pa.RecordBatch] = []
    for batch in source.batches(source.paths()[0], only_first=True):
        held.append(batch)
        if sum(each.num_rows for each in held) >= rows:
            break
    found = pa.Table.from_batches(held).slice(0, rows)
    return found.select([name for name in found.column_names if not name.startswith("__")])
