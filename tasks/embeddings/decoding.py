"""How many threads of a worker read and decode, so that those of all workers on a host fill its cores and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from distributed import Client, get_worker

from congruence.kernels.threads import usable_cores


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
    """What `decode_threads` says of the worker that asks; where it says nothing, all cores that it may use."""
    if not threads:
        return usable_cores()
    return threads.get(str(get_worker().address)) or usable_cores()
