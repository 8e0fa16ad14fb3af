"""A home folder that was copied or moved: MLflow's database names files by absolute paths, those of the old place."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

log = logging.getLogger(__name__)

_PLACES = {
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "model_versions": ("source", "storage_location"),
    "logged_models": ("artifact_location",),
}
_DEFAULT_EXPERIMENT = "SELECT artifact_location FROM experiments WHERE experiment_id = 0"


def point_here(database: Path, artifacts: Path) -> int:
    """Have MLflow's ``database`` name the files in ``artifacts`` beside it, where it names those of another place.

    Only a folder that came along with its artifacts is one that was copied or moved; other locations stay.

    Returns:
        The places that were changed.
    """
    if not database.is_file() or not artifacts.is_dir():
        return 0
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5.0)) as found:
            row = found.execute(_DEFAULT_EXPERIMENT).fetchone()
        old = None if row is None else _folder(str(row[0])).parent
        if old is None or old.name != artifacts.name or _is_one_place(old, artifacts):
            return 0
        with closing(sqlite3.connect(database, timeout=60.0)) as opened, opened:
            changed = _rewrite(opened, old, artifacts)
    except sqlite3.Error as error:  # the next to open it says what is wrong with it
        log.debug("%s was not looked at: %s", database, error)
        return 0
    log.warning(
        "home: this folder was copied or moved from %s; %d paths in MLflow's database name this place now",
        old.parent,
        changed,
    )
    return changed


def _folder(location: str) -> Path:
    return Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)


def _is_one_place(old: Path, new: Path) -> bool:
    """Whether both are one folder, as under a link or on a disk that is mounted twice."""
    try:
        return old == new or old.samefile(new)
    except OSError:
        return False


def _rewrite(database: sqlite3.Connection, old: Path, new: Path) -> int:
    changed = 0
    for table, columns in _PLACES.items():
        known = {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}
        for column in known.intersection(columns):
            for before, after in ((f"{old}/", f"{new}/"), (f"{old.as_uri()}/", f"{new.as_uri()}/")):
                done = database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (after, len(before) + 1, len(before), before),
                )
                changed += done.rowcount
    return changed
