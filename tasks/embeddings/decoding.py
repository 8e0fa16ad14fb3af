"""How many threads of a worker read and decode, so that those of all workers on a host fill its cores and no more."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from distributed import Client, get_worker

_CGROUPS = Path("/sys/fs/cgroup")


def decode_threads(client: Client) -> dict[str, int]:
    """Decode threads of each worker of a cluster, by its address: the usable cores of its host over its workers there.

    The threads of a Dask worker say nothing about this: it has one, so that a solver's BLAS is not in its own way.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    hosts = {address: str(worker["host"]) for address, worker in workers.items()}
    beside = Counter(hosts.values())
    cores: dict[str, int] = client.run(usable_cores, on_error="ignore")
    return {address: max(1, cores[address] // beside[hosts[address]]) for address in hosts if address in cores}


def own_threads(threads: Mapping[str, int]) -> int:
    """What `decode_threads` says of the worker that asks; of one that joined since, all cores that it may use."""
    return threads.get(str(get_worker().address)) or usable_cores()


def usable_cores() -> int:
    """The cores that this process may use: those it may run on, within the processor time of its control group.

    In a container the machine's cores are not what one may use; ``os.cpu_count`` says nothing else.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(Path("/proc/self/cgroup"), _CGROUPS)
    return max(1, affinity if quota is None else min(affinity, round(quota)))


def _quota(membership: Path, root: Path) -> float | None:
    """The least of the limits on processor time, in cores, of this process's control group and those above it."""
    limits = [limit for folder in _folders(membership, root) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(membership: Path, root: Path) -> list[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            base = root if controllers == "" else root / "cpu"
            group = base / path.strip("/")
            # In a container the path is the host's: what it sees of its own group lies at the root.
            folders += [folder for folder in (group, *group.parents) if folder == base or base in folder.parents]
    return list(dict.fromkeys(folders))


def _limit(folder: Path) -> float | None:
    """Cores' worth of processor time, None where there is no limit: cgroup v2's cpu.max, v1's quota and period."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else float(quota) / float(period)
