"""Decode threads: the cores that a worker may use, shared with the workers beside it."""

from __future__ import annotations

from typing import Any

import pytest

from congruence.kernels.threads import usable_cores
from congruence.tasks.evaluate import embed
from congruence.tasks.evaluate.embed import decode_threads, own_threads


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

    monkeypatch.setattr(embed, "get_worker", Worker)
    assert own_threads({"tcp://big:1": 5, "tcp://big:2": 7}) == 5
    assert own_threads({"tcp://big:2": 7}) == usable_cores()
