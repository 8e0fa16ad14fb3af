"""A client of the configured Dask cluster: connected, watched, its loss said in a sentence, quiet at its end.

Workers are sized so that nothing spills to disk: a spilled Gram block costs more than making it again.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, KilledWorker, WorkerPlugin
from distributed.comm.core import CommClosedError
from distributed.utils import silence_logging_cmgr
from tornado.iostream import StreamClosedError

from congruence.tasks.dask.cluster_spec import DASK_SETTINGS, cluster_spec, start_cluster, worker_environment
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.settings.computing import ClusterSettings

logger = logging.getLogger(__name__)

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
    with dask.config.set(dask_configuration(settings)), _connected(settings, announce) as client:
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


def dask_configuration(settings: ClusterSettings) -> dict[str, Any]:
    """Dask's whole configuration inside an evaluation: what stands in its files, ours over it, and the client's TLS.

    Raises:
        SettingsError: a certificate is not there, or the address asks for TLS and nothing names certificates.
    """
    keys = {"ca_file": "ca-file", "cert_file": "client.cert", "key_file": "client.key"}
    changed: dict[str, Any] = {"distributed.nanny.pre-spawn-environ": worker_environment(settings)}
    if settings.tls is not None:
        changed["distributed.comm.require-encryption"] = True
        for key, place in keys.items():
            file = getattr(settings.tls, key)
            if not file.is_file():
                raise SettingsError(f"cluster.tls.{key}: there is no file {file}; give the path of a PEM file")
            changed[f"distributed.comm.tls.{place}"] = str(file)
    elif (settings.address or "").startswith("tls://"):
        missing = [key for key, place in keys.items() if not dask.config.get(f"distributed.comm.tls.{place}", None)]
        if missing:
            raise SettingsError(
                f"cluster.address: {settings.address} asks for TLS, and nothing names {', '.join(missing)}; write tls: "
                "{ca_file: ..., cert_file: ..., key_file: ...} beside it, or set distributed.comm.tls in Dask's files"
            )
    whole = dask.config.merge(dask.config.config, DASK_SETTINGS)
    dask.config.set(changed, config=whole)
    return whole


@contextmanager
def quiet_dask() -> Iterator[None]:
    """Inside, Dask writes nothing to this process's terminal: it tells of every attempt to connect by a traceback."""
    with ExitStack() as stack:
        for name in ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application"):
            stack.enter_context(silence_logging_cmgr(logging.CRITICAL + 1, root=name))
        yield


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
        elif self._lost is None:
            self._lost = time.monotonic()
            self._announce(f"No workers connected; waiting up to {WITHOUT_WORKERS_SECONDS:.0f} s.")
        elif time.monotonic() - self._lost > WITHOUT_WORKERS_SECONDS:
            raise ClusterError(
                f"the Dask scheduler at {scheduler_address(self._client)} has had no worker for "
                f"{WITHOUT_WORKERS_SECONDS:.0f} s; start some with 'dask worker' and see the logs of those that ended; "
                f"{_KEPT}"
            )


def scheduler_address(client: Client) -> str:
    """The address at which other clients reach the scheduler of ``client``."""
    return str(client.scheduler_info()["address"])


class _LeaveTheEndToTheClient(WorkerPlugin):
    """Drops, from the log of a worker, the tracebacks of closed connections: a heartbeat may be under way at the end.

    For clusters whose scheduler lives in the process that the person started: how that ends it says itself, in one
    sentence, and its workers write to the same terminal.
    """

    name = "congruence-lost-scheduler"

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Called by the worker, when it starts or joins."""
        for name in ("worker", "core", "batched", "comm.tcp"):
            logging.getLogger(f"distributed.{name}").addFilter(_tells_of_no_closed_connection)
        logging.getLogger("tornado.application").addFilter(_tells_of_no_closed_connection)

    def teardown(self, worker: Any) -> None:  # noqa: ARG002
        """Called when the worker ends: looking through all that it has loaded once more would take seconds."""
        gc.freeze()


def _tells_of_no_closed_connection(record: logging.LogRecord) -> bool:
    closed = (CommClosedError, StreamClosedError, ConnectionError)
    return not (record.exc_info and isinstance(record.exc_info[1], closed))


@contextmanager
def _connected(settings: ClusterSettings, announce: Callable[[str], None]) -> Iterator[Client]:
    if settings.kind == "address":
        try:
            client = Client(settings.address, timeout=30)
        except OSError as error:
            raise SettingsError(
                f"cluster.address: no Dask scheduler answers at {settings.address} ({error}); start one with "
                + (
                    "'dask scheduler', or use kind: local"
                    if settings.tls is None
                    else f"'dask scheduler {_TLS_OPTIONS}"
                )
            ) from error
        with _closing(client):
            yield client
        return
    place = f"cluster.kind: {settings.kind}" if settings.file is None else f"cluster.file: {settings.file}"
    spec = cluster_spec(settings)
    cluster = _local_cluster(settings, announce) if settings.kind == "local" else start_cluster(spec, place)
    with _closing(cluster), _closing(Client(cluster)) as client:
        try:
            client.wait_for_workers(spec.wait_for, timeout=spec.timeout)
        except TimeoutError as error:
            came = len(client.scheduler_info(n_workers=-1)["workers"])
            raise ClusterError(
                f"{place}: {came} of {spec.wait_for} workers came within {spec.timeout:.0f} s; see why the others wait "
                "(on Kubernetes: kubectl describe pod), or give them longer with timeout:"
            ) from error
        if settings.kind in ("local", "cuda"):  # their workers are processes that write to our terminal
            client.register_plugin(_LeaveTheEndToTheClient())
        yield client


def _local_cluster(settings: ClusterSettings, announce: Callable[[str], None]) -> Any:
    """A cluster of processes on this machine, or of threads where those do not come up."""
    place = "cluster.kind: local"
    for left in (1, 0):
        try:
            cluster = start_cluster(cluster_spec(settings), place)
        except ClusterError as error:  # a worker ended before it was ready
            announce(
                f"the worker processes did not start ({error.__cause__}); "
                + ("trying once more" if left else "going on with threads in this process")
            )
        else:
            workers = len(cluster.worker_spec)
            cluster.adapt(
                minimum=workers, maximum=workers, interval="5s"
            )  # a worker that its nanny gives up is replaced
            return cluster
    return start_cluster(cluster_spec(settings.model_copy(update={"kind": "threads"})), place)


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
