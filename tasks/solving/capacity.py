"""What a cluster offers a solver: threads, memory, and what of it may keep a Gram matrix between passes."""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Client
from distributed.utils import get_ip

from congruence.kernels.memory import KEPT_PART, card_share
from congruence.tasks.runtime.errors import ClusterError
from congruence.tasks.runtime.memory import available_memory

WORKERS_SECONDS = 120.0
KEPT_SHARE = 4  # one part in so many of the workers' memory limits


@dataclass(frozen=True)
class Capacity:
    """Threads of all workers, bytes they may use together, and bytes of these to keep a Gram matrix in."""

    threads: int
    memory_bytes: int
    kept_bytes: int


def cluster_capacity(client: Client, *, gpu: bool = False) -> Capacity:
    """What the workers of ``client`` offer now.

    Memory is the sum of their limits, on GPUs that of their shares of their cards; of workers on this machine, no more
    than is free.

    Raises:
        ClusterError: no worker has come within WORKERS_SECONDS.
    """
    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"the Dask cluster has had no worker for {WORKERS_SECONDS:.0f} s; start some with 'dask worker' or see why "
            "they end; finished work is saved; run the same command to resume"
        ) from error
    workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
    threads = max(1, sum(int(worker["nthreads"]) for worker in workers))
    if gpu:
        # Workers are one to a card. Of its share, and not of what is free: the pool of torch and CuPy has claimed that.
        cards = sum(client.run(_card_bytes).values())
        return Capacity(threads, cards, int(KEPT_PART * cards))
    here = {"127.0.0.1", "::1", "localhost", get_ip()}
    memory = sum(int(worker["memory_limit"] or available_memory() // len(workers)) for worker in workers)
    if all(worker["host"] in here for worker in workers):
        memory = min(memory, available_memory())
    return Capacity(threads, memory, memory // KEPT_SHARE)


def _card_bytes() -> int:
    import cupy

    return int(card_share() * cupy.cuda.Device().mem_info[1])
