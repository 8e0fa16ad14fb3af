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
from typing import TYPE_CHECKING, Any

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.parts import CARD_SHARE_VARIABLE, ClusterSettings

if TYPE_CHECKING:
    from distributed import Client

DRIVER_PATHS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))


CARD_SHARE = 0.8  # of a card, where the variable says nothing else; the rest is its context's and other programs'


def card_share() -> float:
    """Returns the part of a card that this process may take, in (0, 1]: by CONGRUENCE_CARD_SHARE, or CARD_SHARE."""
    try:
        share = float(os.environ.get(CARD_SHARE_VARIABLE, CARD_SHARE))
    except ValueError:
        return CARD_SHARE
    return share if 0.0 < share <= 1.0 else CARD_SHARE


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
    if not settings.has_cards_of_its_own:
        return {}
    found: Mapping[str, WorkerDevice] = client.run(own_device, on_error="ignore")
    return dict(found)


def solves_on_cards(devices: Mapping[str, WorkerDevice]) -> bool:
    """Whether Gram matrices are made on cards: if every worker has one to itself, as each has a part of them."""
    places = [device.place for device in devices.values() if device.card is not None]
    return bool(devices) and len(places) == len(set(places)) == len(devices)


def devices_in_words(devices: Mapping[str, WorkerDevice]) -> str:
    """One line that says what computes what; empty where no worker was asked."""
    if not devices:
        return ""
    listed = ", ".join(f"{count} x {device}" for device, count in Counter(map(str, devices.values())).items())
    on_cards = Counter(device.place for device in devices.values() if device.card is not None)
    shared = sum(count for count in on_cards.values() if count > 1)
    without = len(devices) - on_cards.total()
    if shared:
        said = (
            f"{shared} of them share cards, so that all solve on their processors: start one worker per card, as "
            "'dask cuda worker' does"
        )
    elif not on_cards:
        said = "they solve on their processors"
    elif without:
        said = (
            f"{without} of {len(devices)} have no card, so that all solve on their processors, and those with one "
            "embed on it: give evaluations a scheduler whose workers all have cards"
        )
    else:
        said = "they embed and solve on their cards"
    return f"workers: {listed}; {said}"


def visible_cards() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, else every card that the driver counts; by NVML, which makes no context.

    Raises:
        SettingsError: there is none.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        cards = [card.strip() for card in named.split(",") if card.strip() not in ("", "-1", "NoDevFiles")]
    else:
        import pynvml

        try:
            pynvml.nvmlInit()
            cards = [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            cards = []
    if not cards:
        raise SettingsError(
            "cluster.kind: 'cuda' finds no NVIDIA card here (the driver shows none, or CUDA_VISIBLE_DEVICES hides "
            "them); use kind: local, or kind: address with a scheduler whose workers have cards"
        )
    return cards


def cuda_cluster_options(settings: ClusterSettings, cards: list[str]) -> dict[str, Any]:
    """What ``LocalCUDACluster`` is given for the visible ``cards``.

    torch embeds and CuPy solves on the same card: one RMM pool serves both, so neither starves the other. It begins
    with a quarter of its share and grows to it, so that a card with something else on it can be begun with.
    """
    workers = min(settings.workers or len(cards), len(cards))
    return {
        "CUDA_VISIBLE_DEVICES": cards[:workers],
        "n_workers": workers,
        "threads_per_worker": 1,
        "protocol": settings.protocol or ("ucx" if workers > 1 else "tcp"),
        "rmm_pool_size": settings.card_share / 4,
        "rmm_maximum_pool_size": settings.card_share,
        "rmm_allocator_external_lib_list": ["torch", "cupy"],
        "device_memory_limit": None,
        "memory_limit": settings.memory_per_worker or "auto",
    }
