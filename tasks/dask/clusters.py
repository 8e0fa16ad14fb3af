"""Dask clusters by configuration: in process, on this machine, one worker per GPU, an address, Kubernetes, or a file.

Workers are sized so that nothing spills to disk: a spilled Gram block costs more than making it again. Each worker runs
one thread with one BLAS thread, because two thread pools on one core fight.
"""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import Client, KilledWorker, LocalCluster
from distributed.comm.core import CommClosedError

from congruence.kernels.memory import CARD_SHARE_VARIABLE
from congruence.kernels.threads import usable_cores
from congruence.tasks.dask.cluster_spec import ClusterSpec, await_workers, read_cluster_spec, start_cluster
from congruence.tasks.dask.log_filters import LeaveTheEndToTheClient, quiet_dask
from congruence.tasks.dask.tls import tls_configuration
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.memory import total_memory
from congruence.tasks.settings.cluster import ClusterSettings

logger = logging.getLogger(__name__)

WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Dask has glibc give each array above 128 KiB back to the system as soon as it is freed: each temporary array is
    # then paid for page by page, a third of the time of elementwise NumPy.
    "MALLOC_TRIM_THRESHOLD_": str(2**27),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
DASK_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.95,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.worker-saturation": 1.1,
    "distributed.scheduler.allowed-failures": 10,
    "distributed.comm.timeouts.connect": "60s",
    # A worker whose nanny has not brought it back by then is replaced. Loading its libraries takes longer than the
    # default, 15 s, where the machine is busy.
    "distributed.deploy.lost-worker-timeout": "2 minutes",
    "distributed.scheduler.worker-ttl": "1 hour",  # one that computes long in a busy machine is not dead
    # Every process of a cluster wakes fifty times a second to see whether its loop hangs, and a hundred times to sample
    # what its worker does: together a twentieth of a core that nobody looks at.
    "distributed.admin.tick.interval": "500ms",
    "distributed.worker.profile.interval": "100ms",
    "distributed.worker.profile.cycle": "5s",
    # Of the messages that Dask keeps for its own developers: each holds a task with all of its arguments.
    "distributed.admin.low-level-log-length": 20,
}
"""Dask reads some of these on the scheduler and some on workers: where others start those, infra/dask carries them."""
IDLE_SECONDS = 3600
"""After so long without a task the Dask operator removes a cluster: that of a command that was killed."""
WITHOUT_WORKERS_SECONDS = 300.0
"""How long work waits for a worker: a nanny or an operator starts one again in less."""
_TLS_OPTIONS = "--protocol tls --tls-ca-file ... --tls-cert ... --tls-key ...' and certificates of the same authority"
_KEPT = "finished work is saved; run the same command to resume"


@contextmanager
def dask_client(settings: ClusterSettings, announce: Callable[[str], None] = logger.warning) -> Iterator[Client]:
    """A client of the configured cluster; a cluster that this call started ends with it.

    Worker processes of a local cluster that end are replaced; where none comes up at first, threads in this process do
    the work.

    Args:
        settings: of the cluster.
        announce: takes lines for the person who waits.

    Raises:
        SettingsError: the cluster cannot be reached, or its package is not installed.
        ClusterError: the scheduler was lost inside the ``with``, or a task with every worker that took it.
    """
    with (
        dask.config.set(DASK_SETTINGS | tls_configuration(settings)),
        _connected(settings, announce) as client,
    ):
        address = scheduler_address(client)
        # When a scheduler is lost, each client prints the traceback of its attempt to connect again.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        try:
            yield client
        except KilledWorker as error:
            raise ClusterError(
                f"Dask worker {error.last_worker.address} died, as did those that tried the same piece of work before "
                f"({error.allowed_failures + 1} in all); most often they lack memory: see their logs, give them more "
                f"or make encoder.batch_size smaller; {_KEPT}"
            ) from error
        except (CancelledError, OSError) as error:
            # An OSError of a disk or of a server is none of the cluster's.
            if client.status == "running" and not isinstance(error, CancelledError | CommClosedError):
                raise
            raise ClusterError(
                f"the Dask scheduler at {address} was lost during the work; see its log, and start it again with its "
                f"workers where that is yours to do; {_KEPT}"
            ) from error


@contextmanager
def _connected(settings: ClusterSettings, announce: Callable[[str], None]) -> Iterator[Client]:
    if settings.kind == "address":
        with _closing(_at_address(settings)) as client:
            yield client
        return
    spec, place = _spec(settings)
    cluster = _of_this_machine(settings, announce) if spec is None else start_cluster(spec, place)
    with _closing(cluster) as started, _closing(Client(started)) as client:
        if spec is not None:
            await_workers(client, spec, place)
        elif settings.kind != "threads":  # workers that are processes of this machine write to our terminal
            client.register_plugin(LeaveTheEndToTheClient())
        yield client


def _at_address(settings: ClusterSettings) -> Client:
    try:
        return Client(settings.address, timeout=30)
    except OSError as error:
        raise SettingsError(
            f"cluster.address: no Dask scheduler answers at {settings.address} ({error}); start one with "
            + ("'dask scheduler', or use kind: local" if settings.tls is None else f"'dask scheduler {_TLS_OPTIONS}")
        ) from error


def _of_this_machine(settings: ClusterSettings, announce: Callable[[str], None]) -> Any:
    if settings.kind == "local":
        return _local(settings, announce)
    try:
        return _started(settings)
    except RuntimeError as error:  # distributed's, for a nanny whose worker ended before it was ready
        raise ClusterError(
            f"cluster.kind: the cluster of kind {settings.kind} did not start ({error.__cause__ or error}); if a "
            "worker process was killed, most often it lacks memory: use fewer with cluster.workers, and run again"
        ) from error


def _local(settings: ClusterSettings, announce: Callable[[str], None]) -> Any:
    """A cluster of processes on this machine, or of threads where those do not come up."""
    for left in (1, 0):
        try:
            return _started(settings)
        except (RuntimeError, OSError) as error:  # a nanny's, for a worker that ended before it was ready
            why = str(error.__cause__ or error).strip().splitlines()
            announce(
                f"the worker processes did not start ({why[0][:150] if why else type(error).__name__}); "
                + ("trying once more" if left else "going on with threads in this process")
            )
    return _started(settings.model_copy(update={"kind": "threads"}))


@contextmanager
def _closing(part: Any) -> Iterator[Any]:
    """A client or a cluster that is closed at the end; being slow to close costs nobody the work that is done."""
    try:
        yield part
    finally:
        try:
            with quiet_dask():
                part.close()
        except TimeoutError:
            logger.warning("%s did not close in time; what is left of it ends with this process", type(part).__name__)


class Workers:
    """Watches, while work is waited for, that the cluster has workers to do it."""

    def __init__(self, client: Client, announce: Callable[[str], None]) -> None:
        self._client = client
        self._announce = announce
        self._lost: float | None = None

    def require(self) -> None:
        """To be called every few seconds.

        Raises:
            ClusterError: there has been no worker for WITHOUT_WORKERS_SECONDS.
        """
        if self._client.nthreads():
            self._lost = None
            return
        now = time.monotonic()
        if self._lost is None:
            self._lost = now
            self._announce(f"No workers connected; waiting up to {WITHOUT_WORKERS_SECONDS:.0f} s.")
        elif now - self._lost > WITHOUT_WORKERS_SECONDS:
            raise ClusterError(
                f"the Dask scheduler at {scheduler_address(self._client)} has had no worker for "
                f"{WITHOUT_WORKERS_SECONDS:.0f} s; start some with 'dask worker' and see the logs of those that ended; "
                f"{_KEPT}"
            )


def scheduler_address(client: Client) -> str:
    """The address at which other clients reach the scheduler of ``client``."""
    return str(client.scheduler_info()["address"])


def _started(settings: ClusterSettings) -> Any:
    if settings.kind == "cuda":
        return _cuda_cluster(settings)
    # Dask warns of it on a busy machine, with advice on network file systems that does not apply here.
    warnings.filterwarnings("ignore", message="Creating scratch directories")
    threads = settings.kind == "threads"
    workers = settings.workers or min(usable_cores(), 8)
    cluster = LocalCluster(
        n_workers=1 if threads else workers,
        threads_per_worker=workers if threads else 1,
        processes=not threads,
        memory_limit=settings.memory_per_worker or total_memory() // (1 if threads else workers),
        host=None if threads else "127.0.0.1",
        scheduler_kwargs={"dashboard": settings.dashboard, "dashboard_address": "127.0.0.1:0"},
        worker_dashboard_address="127.0.0.1:0",
    )
    if not threads:
        cluster.adapt(minimum=workers, maximum=workers, interval="5s")  # a worker that its nanny gives up is replaced
    return cluster


def _cuda_cluster(settings: ClusterSettings) -> Any:
    try:
        import rmm  # noqa: F401 - which dask_cuda imports only where it is asked for a pool, and does not bring
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise SettingsError(
            f"cluster.kind: 'cuda' needs the GPU packages ({error}); install them with: "
            "pip install -c constraints.txt '.[gpu]'"
        ) from error
    cards = _visible_cards()
    if not cards:
        raise SettingsError(
            "cluster.kind: 'cuda' finds no NVIDIA card here (the driver shows none, or CUDA_VISIBLE_DEVICES hides "
            "them); use kind: local, or kind: address with a scheduler whose workers have cards"
        )
    with dask.config.set({"distributed.nanny.pre-spawn-environ": cuda_worker_environment(settings)}):
        return LocalCUDACluster(**cuda_cluster_options(settings, cards))


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
        "host": "127.0.0.1",
        "scheduler_kwargs": {"dashboard": settings.dashboard, "dashboard_address": "127.0.0.1:0"},
        "worker_dashboard_address": "127.0.0.1:0",
    }


def cuda_worker_environment(settings: ClusterSettings) -> dict[str, str]:
    """The environment in which workers with cards start; single precision stays single precision there."""
    share = {CARD_SHARE_VARIABLE: f"{settings.card_share:.6g}"}
    return WORKER_ENVIRONMENT | share | {"CUPY_TF32": "0", "NVIDIA_TF32_OVERRIDE": "0"}


def _visible_cards() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, else every card that the driver counts; by NVML, which makes no context."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [card.strip() for card in named.split(",") if card.strip() not in ("", "-1", "NoDevFiles")]
    import pynvml

    try:
        pynvml.nvmlInit()
        return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _spec(settings: ClusterSettings) -> tuple[ClusterSpec | None, str]:
    """What is started elsewhere, None for this machine's clusters, and where a person finds it written."""
    if settings.file is not None:
        return read_cluster_spec(settings.file), f"cluster.file: {settings.file}"
    return (kubernetes_spec(settings) if settings.kind == "kubernetes" else None), f"cluster.kind: {settings.kind}"


def kubernetes_spec(settings: ClusterSettings) -> ClusterSpec:
    """The Dask operator's cluster of kind kubernetes: workers of one thread, Dask's settings on all of its pods."""
    try:
        import dask_kubernetes.operator  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            "cluster.kind: 'kubernetes' needs the Dask operator's client; install it with: "
            "pip install -c constraints.txt '.[kubernetes]'"
        ) from error
    memory = settings.memory_per_worker
    arguments: dict[str, Any] = {
        "image": settings.image,
        "namespace": settings.namespace,
        "n_workers": settings.workers or 2,
        "env": WORKER_ENVIRONMENT | dask_environment(),
        "worker_command": "dask worker --nworkers 1 --nthreads 1",
        "idle_timeout": IDLE_SECONDS,
        "quiet": True,
    }
    if memory is not None:  # Kubernetes does not know "8 GiB"
        bytes_ = {"memory": str(parse_bytes(memory))}
        arguments["resources"] = {"limits": bytes_, "requests": bytes_}
    return ClusterSpec.model_validate({"class": "dask_kubernetes.operator.KubeCluster", "arguments": arguments})


def dask_environment() -> dict[str, str]:
    """Dask's settings as the variables that its schedulers and workers read at their start."""
    return {
        f"DASK_{re.sub('[.]', '__', key).replace('-', '_').upper()}": str(value) for key, value in DASK_SETTINGS.items()
    }
