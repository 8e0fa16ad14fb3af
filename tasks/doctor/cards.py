"""NVIDIA cards: driver, packages and what CUDA they were built for, without a context on any card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from congruence.tasks.dask.gpus import DRIVER_PATHS
from congruence.tasks.doctor.findings import Finding, fine, warning, wrong
from congruence.tasks.doctor.packages import cuda_versions

PLACE = "cards"
_PACKAGES = "pip install -c constraints.txt 'congruence[gpu]'"


@dataclass(frozen=True)
class Cards:
    """What a machine has of cards.

    Attributes:
        driver: whether an NVIDIA driver is loaded.
        names: of its cards.
        cuda: the highest major version of CUDA that the driver serves; 0 where it does not tell.
        built_for: packages and the major version of CUDA that they were built for.
        reason: why the cards could not be asked, where a driver is.
    """

    driver: bool = False
    names: tuple[str, ...] = ()
    cuda: int = 0
    built_for: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


def own_cards() -> Cards:
    """The cards of this machine, by NVML."""
    built_for = cuda_versions()
    if not any(path.exists() for path in DRIVER_PATHS):
        return Cards(built_for=built_for)
    try:
        import pynvml
    except ImportError:
        return Cards(True, built_for=built_for, reason="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2() // 1000
    except pynvml.NVMLError as error:
        return Cards(True, built_for=built_for, reason=str(error))
    return Cards(
        True, tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names), cuda, built_for
    )


def judged(cards: Cards, where: str, wanted: bool) -> Iterator[Finding]:
    """What is to be said of the cards ``where``; ``wanted`` where evaluations cannot run without."""
    if not cards.driver:
        if wanted:
            yield wrong(PLACE, f"no NVIDIA driver {where}", "install the driver there, or choose another cluster.kind")
        return
    if cards.reason or not cards.names:
        said = f"a driver {where}, but its cards cannot be asked ({cards.reason or 'it shows none'})"
        yield (wrong if wanted else warning)(PLACE, said, f"see what `nvidia-smi` says; {_PACKAGES}")
        return
    count = f"{len(cards.names)} x {cards.names[0]}"
    missing = [name for name in ("cupy", "torch") if not cards.built_for.get(name)]
    if missing:
        what = {"cupy": "CuPy is not installed", "torch": "torch is built for processors alone"}
        said = f"{count} {where}, but {' and '.join(what[name] for name in missing)}: the cards stay idle"
        yield (wrong if wanted else warning)(PLACE, said, _PACKAGES)
    built = {name: major for name, major in cards.built_for.items() if major}
    listed = ", ".join(f"{name} for CUDA {major}" for name, major in sorted(built.items()))
    if len(set(built.values())) > 1:
        yield wrong(PLACE, f"{where}: {listed} do not share a card's memory", _PACKAGES)
    elif cards.cuda and any(major > cards.cuda for major in built.values()):
        remedy = f"update the driver to one for CUDA {max(built.values())}"
        yield wrong(PLACE, f"{where}: {listed}, but the driver serves CUDA {cards.cuda}", remedy)
    elif not missing:
        yield fine(PLACE, f"{count} {where}; {listed}")
