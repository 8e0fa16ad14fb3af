"""Which of a cluster's workers have a card, and so what computes: asked of the workers, whatever started them.

The process that asks loads nothing: neither CuPy nor a context, which alone would take half a gigabyte of a card that
the workers share.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distributed import Client

from congruence.kernels.memory import card_share
from congruence.tasks.settings.cluster import ClusterSettings

DRIVER_PATHS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
LOOKED_AT_KINDS = ("cuda", "address", "kubernetes", "spec")
"""Kinds of cluster whose workers have a card each where they have one: a local cluster's share what is there."""


@dataclass(frozen=True)
class WorkerDevice:
    """What a worker computes on.

    Attributes:
        card: its name; None for the processor.
        memory_bytes: of the card, what this worker may take.
        reason: why a worker beside a driver has no card to solve on; empty otherwise.
        place: of the card, among all machines: host and PCI bus.
    """

    card: str | None = None
    memory_bytes: int = 0
    reason: str = ""
    place: str = ""

    def __str__(self) -> str:
        """For people."""
        if self.card is not None:
            return f"{self.card} ({self.memory_bytes / 2**30:.0f} GiB of it)"
        return f"processor ({self.reason})" if self.reason else "processor"


def own_device() -> WorkerDevice:
    """The device of this process: the first card that CUDA shows it, where CuPy can use it."""
    if not any(path.exists() for path in DRIVER_PATHS):
        return WorkerDevice()
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        return WorkerDevice(reason="CUPY_TF32 is set, which makes Gram matrices of 10 bits: unset it on the workers")
    try:
        import cupy
        import cupyx.scipy.linalg  # noqa: F401 - loads what the toolkit's wheels bring, or says what is missing
    except ImportError as error:
        return WorkerDevice(reason=f"no usable CuPy: {error}; install congruence[gpu] on the workers")
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return WorkerDevice(reason="CUDA shows no device")
        properties = cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return WorkerDevice(reason=f"CUDA: {error}")
    name = properties["name"]
    bus = f"{properties.get('pciDomainID', 0)}:{properties.get('pciBusID', 0)}:{properties.get('pciDeviceID', 0)}"
    return WorkerDevice(
        name.decode() if isinstance(name, bytes) else str(name),
        int(card_share() * properties["totalGlobalMem"]),
        place=f"{socket.gethostname()} {bus}",
    )


def worker_devices(client: Client, settings: ClusterSettings) -> dict[str, WorkerDevice]:
    """The device of each worker, by its address; empty for kinds whose workers have none of their own."""
    if settings.kind not in LOOKED_AT_KINDS:
        return {}
    found: Mapping[str, WorkerDevice] = client.run(own_device, on_error="ignore")
    return dict(found)


def solves_on_cards(devices: Mapping[str, WorkerDevice]) -> bool:
    """Whether Gram matrices are made on cards: if every worker has one to itself, as each has a part of them."""
    return bool(devices) and all(device.card is not None for device in devices.values()) and not _shared(devices)


def _shared(devices: Mapping[str, WorkerDevice]) -> int:
    """How many workers are on a card beside others."""
    on = Counter(device.place for device in devices.values() if device.card is not None)
    return sum(count for count in on.values() if count > 1)


def devices_in_words(devices: Mapping[str, WorkerDevice]) -> str:
    """One line that says what computes what; empty where no worker was asked."""
    if not devices:
        return ""
    listed = ", ".join(f"{count} x {device}" for device, count in Counter(map(str, devices.values())).items())
    if solves_on_cards(devices):
        return f"workers: {listed}; they embed and solve on their cards"
    if _shared(devices):
        return (
            f"workers: {listed}; {_shared(devices)} of them share cards, so that all solve on their processors: start "
            "one worker per card, as 'dask cuda worker' does"
        )
    with_card = sum(device.card is not None for device in devices.values())
    if not with_card:
        return f"workers: {listed}; they solve on their processors"
    return (
        f"workers: {listed}; {len(devices) - with_card} of {len(devices)} have no card, so that all solve on their "
        "processors, and those with one embed on it: give evaluations a scheduler whose workers all have cards"
    )
