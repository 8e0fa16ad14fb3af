"""How busy the card is in each stage, sampled through NVML beside the work; without a card, the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil

INTERVAL = 0.1
IDLE = 10.0
"""Per cent below which a sample counts as idle."""


class Sampler:
    """Samples (stage, seconds, per cent, bytes) from its own thread while it is entered."""

    def __init__(self, device: str) -> None:
        self._card = _first_card() if device == "cuda" else None
        self._samples: list[tuple[str, float, int]] = []
        self._seconds: dict[str, float] = {}
        self._stage = "other"
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="utilisation", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What happens inside is of this stage."""
        before, self._stage, started = self._stage, name, time.perf_counter()
        try:
            yield
        finally:
            self._stage = before
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def seconds(self, name: str) -> float:
        """That a stage took."""
        return self._seconds[name]

    def summary(self) -> dict[str, Any]:
        """Of each stage: seconds, mean per cent, share of idle samples, largest memory."""
        found: dict[str, Any] = {"sampled": "card through NVML" if self._card is not None else "processor"}
        for stage in dict.fromkeys(stage for stage, _, _ in self._samples):
            shares = np.array([share for of, share, _ in self._samples if of == stage])
            found[stage] = {
                "seconds": round(self._seconds.get(stage, INTERVAL * len(shares)), 3),
                "mean_percent": round(float(shares.mean()), 1),
                "idle_share": round(float(np.mean(shares < IDLE)), 3),
                "peak_gib": round(max(held for of, _, held in self._samples if of == stage) / 2**30, 3),
            }
        return found

    def _run(self) -> None:
        process = psutil.Process()
        psutil.cpu_percent()
        while not self._stopped.wait(INTERVAL):
            if self._card is None:
                self._samples.append((self._stage, psutil.cpu_percent(), process.memory_info().rss))
                continue
            import pynvml

            share = pynvml.nvmlDeviceGetUtilizationRates(self._card).gpu
            self._samples.append((self._stage, float(share), int(pynvml.nvmlDeviceGetMemoryInfo(self._card).used)))


def card_names() -> list[str]:
    """Of all cards that NVML shows, with their memory; empty where there is no NVML."""
    if _first_card() is None:
        return []
    import pynvml

    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [
        f"{pynvml.nvmlDeviceGetName(each)}, {pynvml.nvmlDeviceGetMemoryInfo(each).total / 2**30:.0f} GiB, "
        f"driver {pynvml.nvmlSystemGetDriverVersion()}"
        for each in handles
    ]


def _first_card() -> Any | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no package, no library, no card: each is a reason to sample the processor
        return None
