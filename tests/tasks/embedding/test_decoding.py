"""Decode threads: the cores that a worker may use, shared with the workers beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from congruence.tasks.embeddings import decoding
from congruence.tasks.embeddings.decoding import decode_threads, own_threads, usable_cores


class Cluster:
    """What `decode_threads` asks a client: the workers, and a call on each of them."""

    def __init__(self, hosts: dict[str, tuple[str, int]]) -> None:
        self.hosts = hosts

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        return {"workers": {address: {"host": host, "nthreads": 1} for address, (host, _) in self.hosts.items()}}

    def run(self, function: Any, on_error: str) -> dict[str, int]:
        assert (function, on_error) == (usable_cores, "ignore")
        return {address: cores for address, (_, cores) in self.hosts.items()}


def test_the_cores_of_a_host_are_shared_by_its_workers() -> None:
    big = {f"tcp://big:{port}": ("big", 32) for port in range(4)}
    small = {f"tcp://small:{port}": ("small", 2) for port in range(3)}
    threads = decode_threads(Cluster(big | small))  # type: ignore[arg-type]
    assert threads == dict.fromkeys(big, 8) | dict.fromkeys(small, 1)


def test_a_worker_takes_its_own_and_one_that_came_later_counts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        address = "tcp://big:1"

    monkeypatch.setattr(decoding, "get_worker", Worker)
    assert own_threads({"tcp://big:1": 5, "tcp://big:2": 7}) == 5
    assert own_threads({"tcp://big:2": 7}) == usable_cores()


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/pods/this\n", {"pods/cpu.max": "200000 100000\n", "pods/this/cpu.max": "400000 100000\n"}, 2.0),
        ("0::/hidden/by/the/container\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (
            "4:cpu,cpuacct:/docker/a\n1:name=systemd:/\n",
            {"cpu/docker/a/cpu.cfs_quota_us": "50000\n", "cpu/docker/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_a_container_s_processor_time_is_its_cores(
    membership: str, files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert decoding._quota(tmp_path / "membership", tmp_path) == expected


def test_cores_that_a_process_may_not_run_on_do_not_count() -> None:
    one = min(os.sched_getaffinity(0))
    script = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\n"
        "from congruence.tasks.embeddings.decoding import usable_cores; print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "1\n"
    assert decoding._quota(Path("/nowhere"), Path("/nowhere")) is None
