"""The runs that are open, in a file of the home folder: another process marks them as ended where this one dies.

Every process that opens runs in MLflow or Prefect has a journal of its own and locks it as long as it lives. Whoever
finds an unlocked one, a command's parent at once or else the next command, marks what is left open in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.runtime.parent import mark_from

FOLDER = "open-runs"
EMBEDDED = "embedded"


@dataclass(frozen=True)
class Entry:
    """Something open.

    Attributes:
        kind: ``run`` of MLflow, ``claim`` on a model version in MLflow, or ``flow_run`` of Prefect.
        server: its address without secrets; ``embedded`` for the Prefect server of the command itself.
        name: id of the run; of a claim model, version and tag.
    """

    kind: str
    server: str
    name: tuple[str, ...]


class _Journal:
    """The file of this process, made when there is something to write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._pid = folder, os.getpid()
        self._file: IO[str] | None = None
        self._path = folder
        self._open: set[Entry] = set()
        self._lock = threading.Lock()

    def write(self, entry: Entry, *, is_open: bool) -> None:
        with self._lock:
            self._write(entry, is_open)

    def _write(self, entry: Entry, is_open: bool) -> None:
        if os.getpid() != self._pid or is_open == (entry in self._open):
            return
        (self._open.add if is_open else self._open.discard)(entry)
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{socket.gethostname()}-{self._pid}-{time.time_ns()}.new"
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+")
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._path = path.rename(path.with_suffix(".jsonl"))  # locked before anybody sees it
        if not self._open:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
            return
        self._file.write(json.dumps({"open" if is_open else "closed": asdict(entry)}) + "\n")
        self._file.flush()


_journal: _Journal | None = None


def keep_journal(home: Path) -> None:
    """From now on this process writes what it opens to a journal under ``home``; the first call counts."""
    global _journal
    if _journal is None or _journal._pid != os.getpid():
        _journal = _Journal(home / FOLDER)
        mark_from(home / FOLDER)


def journal_folder() -> Path | None:
    """Where this process keeps its journal, and others keep theirs; None where it keeps none."""
    return None if _journal is None else _journal.folder


def opened(kind: str, server: str, *name: str) -> None:
    """Something was opened; without a journal nothing is written."""
    if _journal is not None:
        with suppress(OSError):  # a full disk ends the work, where that needs it
            _journal.write(Entry(kind, mask_text(server), name), is_open=True)


def closed(kind: str, server: str, *name: str) -> None:
    """It was closed."""
    if _journal is not None:
        with suppress(OSError):
            _journal.write(Entry(kind, mask_text(server), name), is_open=False)


def rewrite(file: IO[str], entries: Iterable[Entry]) -> None:
    """Make a journal say that these are open, and no others."""
    file.seek(0)
    file.truncate()
    file.writelines(json.dumps({"open": asdict(entry)}) + "\n" for entry in entries)
    file.flush()


def open_entries(file: IO[str]) -> Iterator[Entry]:
    """What a journal says is open."""
    found: dict[Entry, None] = {}
    for line in file:
        with suppress(ValueError, TypeError, AttributeError):  # the last line may be cut off
            for what, content in json.loads(line).items():
                entry = Entry(content["kind"], content["server"], tuple(content["name"]))
                if what == "open":
                    found[entry] = None
                else:
                    found.pop(entry, None)
    yield from found
