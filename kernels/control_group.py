"""What the control group of this process leaves of the machine: processor time and memory, cgroup v2 and v1.

In a container the machine's cores and memory are not what one may use; ``os.cpu_count`` and psutil say nothing else.
The limits of every group above count too: the least one holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value", int, float)

_MEMBERSHIP, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@cache
def core_limit(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> float | None:
    """Cores' worth of processor time that the control groups allow; None where nothing limits it.

    Args:
        membership: the groups of this process, as Linux lists them.
        root: where the groups' files are mounted.
    """
    return _least(_folders(membership, root, "cpu"), _cores)


def memory_limit(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes that the processes of the control groups may take together; None where nothing limits them.

    cgroup v1 writes a number beyond every machine's memory where there is no limit: compare with the machine's.
    """
    return _least(_folders(membership, root, "memory"), _memory)


def memory_left(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> int | None:
    """Bytes until the first limit is met, page cache counted as free; None where nothing limits them."""
    return _least(_folders(membership, root, "memory"), _memory_left)


def _least(folders: list[Path], limit: Callable[[Path], Value | None]) -> Value | None:
    return min((found for folder in folders if (found := limit(folder)) is not None), default=None)


def _folders(membership: Path, root: Path, controller: str) -> list[Path]:
    """The folders of this process's group and of those above it, for one controller."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            base = root if controllers == "" else root / controller
            group = base / path.strip("/")
            # In a container the path is the host's: what it sees of its own group lies at the root.
            folders += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    return list(dict.fromkeys(folders))


def _cores(folder: Path) -> float | None:
    """v2's cpu.max, v1's quota and period."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else float(quota) / float(period)


def _memory(folder: Path) -> int | None:
    return _number(folder / "memory.max", folder / "memory.limit_in_bytes")


def _memory_left(folder: Path) -> int | None:
    limit, used = _memory(folder), _number(folder / "memory.current", folder / "memory.usage_in_bytes")
    return None if limit is None or used is None else max(0, limit - used + _page_cache(folder))


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
