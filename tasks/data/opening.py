"""Opening a split: every column is checked and every row is indexed before any work is spent on it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from congruence.tasks.data.formats import Format
from congruence.tasks.data.index import kept_index, own_folder, split_index
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.data.tables import Table


def open_split(settings: SplitSettings, plans: str | Path | None = None) -> Split:
    """The split that ``settings`` describe, checked and indexed.

    One stream over each file (over text files two). Digests depend on the content alone. In the folder ``plans`` the
    index is kept, file by file, for as long as a file does not change its size, times or ETag: the next opening only
    looks at these and reads no source. Workers that see the folder share it; without one the index goes with this
    process. The arrays of .npz files, and of .npy files that lie elsewhere, are copied there once.

    A row whose target is not a finite number is kept in its place as an invalid row, as one whose input is not.

    Raises:
        SplitError: no such file, column or type, duplicate or missing keys, no rows.
    """
    folder = Path(plans).absolute() if plans is not None else own_folder()
    name, index = split_index(settings, folder)
    return Split(settings, folder, name, index)


def open_kept(settings: SplitSettings, plans: Path) -> Split | None:
    """The split as it was indexed in the present state of its files, None where it was not: nothing is read or made.

    Raises:
        SplitError: no such file or folder.
    """
    name, index = kept_index(settings, plans)
    return None if index is None else Split(settings, plans, name, index)


def dates_of(settings: SplitSettings) -> list[date]:
    """Returns the dates of the files of a split, in order; none where its uri has no ``{date}``. No file is opened.

    Raises:
        SplitError: no such file or folder, or a name without a date where the uri has one.
    """
    form = Format.of(settings)
    dates = form.location.dates
    return [] if dates is None else sorted({dates.date_of(path) for path in form.paths()})


def first_table(uri: str) -> Table:
    """The rows of the first file at ``uri``, before anything is said about its columns: to look at a few of them.

    Raises:
        SplitError: no such file or folder, or its format cannot be inferred.
    """
    form = Format.of(SplitSettings(uri=uri, input="-"))
    return form.table([form.describe(form.paths()[0], own_folder())], own_folder())
