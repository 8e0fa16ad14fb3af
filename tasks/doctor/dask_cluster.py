"""The Dask cluster of an evaluation: scheduler, workers, their packages, cards, clocks, and what they can reach."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client

from congruence.kernels.memory import total_memory
from congruence.kernels.threads import usable_cores
from congruence.tasks.dask.cluster_spec import read_cluster_spec
from congruence.tasks.dask.clusters import DASK_SETTINGS, kubernetes_spec
from congruence.tasks.dask.gpus import WorkerDevice, devices_in_words, own_device
from congruence.tasks.dask.log_filters import quiet_dask
from congruence.tasks.dask.tls import tls_configuration
from congruence.tasks.data.index import source_files
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.doctor.answers import clock, host_and_port, why_none
from congruence.tasks.doctor.cards import Cards, judged, own_cards
from congruence.tasks.doctor.certificates import certificates
from congruence.tasks.doctor.findings import Finding, Step, fine, warning, wrong
from congruence.tasks.doctor.packages import own_versions, unlike
from congruence.tasks.doctor.stores import probe
from congruence.tasks.runtime.plain_text import readable
from congruence.tasks.settings.cluster import ClusterSettings

PLACE, WORKERS = "Dask", "Dask's workers"
_CONNECT_SECONDS = 5.0
_LISTED = 4
_SAME = (
    "install the same packages on both: pip install -c constraints.txt 'congruence[pipeline]', or use the same image"
)
_SCHEDULER_SETTINGS = ("distributed.scheduler.allowed-failures", "distributed.scheduler.worker-ttl")
_WORKER_SETTINGS = ("distributed.worker.memory.spill", "distributed.worker.memory.terminate")


@dataclass(frozen=True)
class Reach:
    """What workers must read and write themselves.

    Attributes:
        home: the home folder.
        store: address of the store.
        options: of its file system; may hold secrets.
        splits: the data.
    """

    home: Path
    store: str
    options: Mapping[str, Any]
    splits: tuple[SplitSettings, ...] = ()


@dataclass(frozen=True)
class WorkerReport:
    """What a worker says of itself."""

    host: str
    versions: Mapping[str, str | None]
    time: float
    device: WorkerDevice
    cards: Cards
    settings: Mapping[str, Any]


def dask_cluster(settings: ClusterSettings, reach: Reach) -> Iterator[Finding | Step]:
    """Look at the cluster that ``settings`` name; one that an evaluation would start itself is not started."""
    if settings.kind == "address":
        yield from _scheduler(settings, reach)
        return
    if settings.kind in ("spec", "kubernetes"):
        yield Step("reading what is to be started", "see cluster: in the file")
        spec = read_cluster_spec(settings.file) if settings.file is not None else kubernetes_spec(settings)
        yield fine(PLACE, f"each evaluation starts its own {spec.class_path}, which is not started to look at it")
        return
    cores, memory = usable_cores(), total_memory()
    workers = settings.workers or min(cores, 8)
    said = f"kind {settings.kind} starts {workers} workers here, on {cores} cores and {readable(memory)} of memory"
    if workers > cores and settings.kind != "cuda":
        yield warning(PLACE, f"{said}: they take turns", f"write cluster.workers: {cores}, or leave it out")
    elif memory // workers < 2**30:
        yield warning(PLACE, f"{said}: less than 1 GiB each", "write fewer in cluster.workers")
    else:
        yield fine(PLACE, said)


def _scheduler(settings: ClusterSettings, reach: Reach) -> Iterator[Finding | Step]:
    address = str(settings.address)
    if settings.tls is not None:
        yield Step("reading the certificates", "give PEM files that this user may read")
        found = list(certificates(settings.tls))
        yield from found
        if any(item.level == "wrong" for item in found):
            return
    start = f"start it (`dask scheduler`), or correct cluster.address: {address}"
    yield Step(f"connecting to {address}", start)
    try:
        socket.create_connection(host_and_port(address), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        yield wrong(PLACE, f"{address}: {why_none(error) or error}", start)
        return
    yield Step(
        f"speaking to the scheduler at {address}",
        "see whether both sides speak TLS with certificates of one authority, or neither does, and whether it is a "
        "Dask scheduler that listens there",
    )
    with (
        quiet_dask(),
        dask.config.set(tls_configuration(settings)),
        Client(address, timeout=_CONNECT_SECONDS, set_as_default=False) as client,
    ):
        yield from _cluster(client, address, reach)


def _cluster(client: Client, address: str, reach: Reach) -> Iterator[Finding | Step]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    yield fine(PLACE, f"the scheduler at {address} answers")
    if not workers:
        yield wrong(
            WORKERS, "there are none: work waits 5 minutes for one, then fails", f"start some: dask worker {address}"
        )
        return
    yield Step("comparing packages", f"see the logs of the workers; {_SAME}")
    yield from _versions(client)
    yield from _threads(workers)
    yield Step("asking the workers", "see their logs; one that computes without a pause answers late")
    asked = time.time()
    reports = client.run(report, on_error="return", wait=True)
    middle = (asked + time.time()) / 2
    good = {at: said for at, said in reports.items() if isinstance(said, WorkerReport)}
    yield from _without_us({at: error for at, error in reports.items() if at not in good})
    if good:
        yield from _told(client, good, middle)
        yield from _reached(client, good, reach)


def report() -> WorkerReport:
    """What this process is, as a worker."""
    settings = {key: dask.config.get(key, None) for key in _WORKER_SETTINGS}
    return WorkerReport(socket.gethostname(), own_versions(), time.time(), own_device(), own_cards(), settings)


def _versions(client: Client) -> Iterator[Finding]:
    found: Any = client.get_versions()
    ours, scheduler = found["client"]["packages"], (found["scheduler"] or {}).get("packages", {})
    needed = {"dask", "distributed", "cloudpickle", "tornado", "toolz", "python"}
    different = unlike(_shortened(ours, needed), _shortened(scheduler, needed))
    if different:
        yield wrong(PLACE, f"the scheduler has other packages: {'; '.join(different.values())}", _SAME)


def _shortened(packages: Mapping[str, Any], names: set[str]) -> dict[str, str | None]:
    return {name: ".".join(str(packages[name]).split(".")[:3]) for name in names if packages.get(name)}


def _without_us(errors: Mapping[str, Any]) -> Iterator[Finding]:
    for at, error in list(errors.items())[:_LISTED]:
        said = f"{at} cannot answer ({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''})"
        yield wrong(WORKERS, said, _SAME if isinstance(error, ImportError) else "see its log")


def _told(client: Client, reports: Mapping[str, WorkerReport], now: float) -> Iterator[Finding]:
    ours = own_versions()
    different = Counter(text for each in reports.values() for text in unlike(ours, each.versions).values())
    if different:
        listed = "; ".join(f"{text} ({count} of {len(reports)} workers)" for text, count in sorted(different.items()))
        yield wrong(WORKERS, f"have other packages: {listed}", _SAME)
    else:
        hosts = len({each.host for each in reports.values()})
        yield fine(WORKERS, f"{len(reports)} on {hosts} host{'s' if hosts > 1 else ''}, with this machine's packages")
    yield from _settings(client, reports)
    worst = max((each.time - now for each in reports.values()), key=abs)
    yield from clock(WORKERS, worst)
    devices = {at: each.device for at, each in reports.items()}
    if any(device.card or device.reason for device in devices.values()):
        yield fine(WORKERS, devices_in_words(devices))
    for host in sorted({each.host for each in reports.values() if each.cards.driver}):
        cards = next(each.cards for each in reports.values() if each.host == host)
        yield from judged(cards, f"on {host}", wanted=False)


def _settings(client: Client, reports: Mapping[str, WorkerReport]) -> Iterator[Finding]:
    on_scheduler = client.run_on_scheduler(_configured, _SCHEDULER_SETTINGS)
    on_workers = next(iter(reports.values())).settings
    other = [
        f"{key}: {found}"
        for held, keys in ((on_scheduler, _SCHEDULER_SETTINGS), (on_workers, _WORKER_SETTINGS))
        for key in keys
        if (found := held[key]) != DASK_SETTINGS[key]
    ]
    if other:
        remedy = (
            "start scheduler and workers with DASK_CONFIG=infra/dask/congruence.yaml, or put that file into /etc/dask"
        )
        yield warning(PLACE, f"has Dask's own settings, by which evaluations fail sooner ({', '.join(other)})", remedy)


def _configured(keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: dask.config.get(key, None) for key in keys}


def _threads(workers: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    several = [at for at, worker in workers.items() if int(worker["nthreads"]) > 1]
    if several:
        said = f"{len(several)} of {len(workers)} have several threads, which fight for their cores and memory"
        yield warning(WORKERS, said, "start them with --nworkers for the cores and --nthreads 1")


def _reached(client: Client, reports: Mapping[str, WorkerReport], reach: Reach) -> Iterator[Finding | Step]:
    """What one worker of each host can read and write."""
    first = {each.host: at for at, each in sorted(reports.items(), reverse=True)}
    chosen = sorted(first.values())
    hosts = {at: host for host, at in first.items()}

    def on_each(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return dict(client.run(function, *arguments, workers=chosen, on_error="return"))

    remedy = "mount the same folder there by the same path"
    yield Step("looking for the home folder on the workers", remedy)
    if reach.home.is_dir():
        with _marked(reach.home) as (mark, text):
            seen = on_each(sees, mark, text)
        yield from _summed(seen, hosts, f"the home folder {reach.home}", remedy)
    yield Step("writing to the store from the workers", "see whether they can reach it by the same address")
    wrote = on_each(probe, reach.store, dict(reach.options))
    yield from _summed(
        wrote, hosts, "the store", "give them the same folder or bucket by the same address, and its keys"
    )
    for split in reach.splits:
        yield Step(
            f"looking for split '{split.name}' on the workers", "see whether they can reach it by the same address"
        )
        listed = on_each(listable, split.absolute())
        yield from _summed(listed, hosts, f"split '{split.name}'", "mount the data there, or put them into a bucket")


@contextmanager
def _marked(home: Path) -> Iterator[tuple[str, str]]:
    """A file in the home folder, and its text, which those alone see who see this very folder."""
    text = secrets.token_hex(8)
    mark = home / f".doctor-{text}"
    mark.write_text(text)
    try:
        yield str(mark), text
    finally:
        mark.unlink()


def sees(mark: str, text: str) -> str | None:
    """Why this process does not see the file ``mark`` with ``text`` and may write beside it; None where it does."""
    path = Path(mark)
    if not path.is_file() or path.read_text() != text:
        return "is not seen there" if not path.parent.is_dir() else "is another folder there"
    return None if os.access(path.parent, os.W_OK) else "cannot be written there"


def listable(split: SplitSettings) -> str | None:
    """Why this process does not find the files of a split; None where it does."""
    try:
        source_files(split)
    except Exception as error:
        return str(error)
    return None


def _summed(said: Mapping[str, Any], hosts: Mapping[str, str], what: str, remedy: str) -> Iterator[Finding]:
    """One line for all hosts where all is well, else one for each of the first few where it is not."""
    bad = {at: item for at, item in said.items() if item is not None}
    for at, item in list(bad.items())[:_LISTED]:
        why, fix = item if isinstance(item, tuple) else (str(item), remedy)
        yield wrong(WORKERS, f"{what}: on {hosts.get(at, at)}: {why}", fix)
    if said and not bad:
        yield fine(WORKERS, f"reach {what}")
