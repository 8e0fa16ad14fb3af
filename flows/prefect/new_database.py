"""The Prefect database of a new home folder: a copy of the first one that Prefect made here, not made anew each time.

Prefect makes it by a hundred migrations, which take eight seconds of processor time. What is copied holds no run.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from congruence.tasks.runtime.atomic_files import write_whole


@contextmanager
def new_database(database: Path) -> Iterator[None]:
    """A server starts inside: on a copy where ``database`` is not there yet; what it makes without one is kept.

    The copy is in ``~/.cache/congruence`` (XDG_CACHE_HOME), one for each version of Prefect. A folder that cannot be
    read or written costs the seconds alone.
    """
    kept, is_new = _kept(), not database.exists()
    if is_new:
        with suppress(OSError):
            write_whole(database, kept.read_bytes(), replace=False)
    yield
    if is_new and not kept.exists():
        with suppress(OSError, sqlite3.Error), closing(sqlite3.connect(database)) as made:
            write_whole(kept, made.serialize())


def _kept() -> Path:
    from prefect import __version__

    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return folder / "congruence" / f"prefect-{__version__}.db"
