"""Opening a split: every column is checked and every row is indexed before any work is spent on it."""

from __future__ import annotations

from pathlib import Path

from congruence.tasks.sources.index import own_folder, split_index
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.split import Split


def open_split(settings: SplitSettings, plans: str | Path | None = None, copies: str | Path | None = None) -> Split:
    """The split that ``settings`` describe, checked and indexed.

    One stream over each file (over text files two). Digests depend on the content alone. In the folder ``plans`` the
    index is kept, file by file, for as long as a file does not change its size, times or ETag: the next opening only
    looks at these and reads no source. Workers that see the folder share it; without one the index goes with this
    process. In the folder ``copies`` compressed arrays are kept decompressed, on every machine that reads them;
    without it each shard decompresses them anew.

    A row whose target is not a finite number is kept in its place as an invalid row, as one whose input is not.

    Raises:
        SplitError: no such file, column or type, duplicate or missing keys, no rows.
    """
    folder = Path(plans).absolute() if plans is not None else own_folder()
    unpacked = Path(copies).absolute() if copies is not None else None
    name, index = split_index(settings, folder, unpacked)
    return Split(settings, folder, unpacked, name, index)
