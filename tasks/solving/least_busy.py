"""Which worker a task goes to: the one that has the fewest.

Left to itself the scheduler gives a task to a worker that holds the arguments, which at the beginning is one
worker, and moves it away later, if ever, by how long tasks of that name took before and by the bytes that would move.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from distributed import Client


class LeastBusy:
    """The tasks that each worker of a cluster was given and has not ended; workers may come and go."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._given: list[tuple[Any, str]] = []

    def worker(self, most: float = float("inf")) -> str | None:
        """The worker with the fewest tasks for each of its threads; None where all have ``most``, or there are none."""
        self._given = [(future, address) for future, address in self._given if not future.done()]
        held = Counter(address for _, address in self._given)
        shares = {address: held[address] / threads for address, threads in self._client.nthreads().items()}
        found = min(shares, key=shares.__getitem__, default=None)
        return None if found is None or shares[found] >= most else found

    def submit(self, worker: str | None, function: Any, *arguments: Any, **options: Any) -> Any:
        """``client.submit`` to ``worker``, or another should it die; to the next that comes where it is None."""
        place = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        future = self._client.submit(function, *arguments, pure=False, **place, **options)
        if worker is not None:
            self._given.append((future, worker))
        return future
