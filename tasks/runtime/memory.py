"""How much memory a process may use, of the machine and of a card, what it holds of it, and what it gives back.

In a container the machine's memory is not what one may use, and psutil says nothing else: the limits of the control
group (cgroup v2 and v1) and of every group above it count too, and the least one holds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Generic, TypeVar

import psutil

CARD_SHARE_VARIABLE = "CONGRUENCE_CARD_SHARE"
CARD_SHARE = 0.8  # of a card, where the variable says nothing else; the rest is its context's and other programs'
_MEMBERSHIP, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def card_share() -> float:
    """Returns the part of a card that this process may take, in (0, 1]: by CONGRUENCE_CARD_SHARE, or CARD_SHARE."""
    try:
        share = float(os.environ.get(CARD_SHARE_VARIABLE, CARD_SHARE))
    except ValueError:
        return CARD_SHARE
    return share if 0.0 < share <= 1.0 else CARD_SHARE


def available_memory() -> int:
    """Returns memory that is free or can be freed (the page cache), in bytes: of the machine, within its limits."""
    free, left = int(psutil.virtual_memory().available), memory_left()
    return free if left is None else min(free, left)


def total_memory() -> int:
    """Returns the memory of the machine in bytes, or the limit of this process's control group where it is smaller."""
    installed, limit = int(psutil.virtual_memory().total), memory_limit()
    return installed if limit is None else min(installed, limit)


def give_back() -> None:
    """Have the C library return what is free in its heap; workers keep freed arrays for the next ones (``clusters``).

    Before a step that holds columns of all rows, so that what earlier steps needed in passing does not lie beside them.
    Nothing where the library has no such function.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; musl has none
    if trim is not None:
        trim(0)


def memory_limit(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes that the processes of the control groups may take together; None where nothing limits them.

    cgroup v1 writes a number beyond every machine's memory where there is no limit: compare with the machine's.
    """
    return min((limit for limit, _ in _groups(membership, root)), default=None)


def memory_left(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes until the first limit is met, page cache counted as free; None where nothing limits them."""
    return min((left for _, left in _groups(membership, root) if left is not None), default=None)


def _groups(membership: Path, root: Path) -> Iterator[tuple[int, int | None]]:
    """The limits of this process's group and of those above it, and what is left of each, where the system says it."""
    folders: list[Path] = []
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                base = root if controllers == "" else root / "memory"
                group = base / path.strip("/")
                # In a container the path is the host's: what it sees of its own group lies at the root.
                folders += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    for folder in dict.fromkeys(folders):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None:
            yield limit, None if used is None else max(0, limit - used + _page_cache(folder))


def _number(*files: Path) -> int | None:
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _page_cache(folder: Path) -> int:
    """Of the memory in use what the kernel gives back at need: pages of files, but not those of tmpfs."""
    try:
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in counts else ""  # v1, with the groups below
    return sum(int(counts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, nothing is collected; afterwards as before."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


Value = TypeVar("Value")


class MadeOnce(Generic[Value]):
    """At most so many values by their keys, for any thread; one is made at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, RLock()
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of that key, by ``make`` where it is not held."""
        with self._lock:
            if key not in self._held:
                while len(self._held) >= self._most:  # before, so that there are never more in memory
                    self._held.popitem(last=False)
                self._held[key] = make()
            self._held.move_to_end(key)
            return self._held[key]

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._held.clear()
