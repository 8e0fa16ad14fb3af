"""Dask clusters: their configuration in words of an evaluation file, their start, and workers that are gone."""

from __future__ import annotations

import gc
import importlib
import inspect
import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import yaml
from dask import config
from dask.utils import parse_bytes
from distributed import Client, KilledWorker, WorkerPlugin
from distributed.comm.core import CommClosedError
from distributed.utils import silence_logging_cmgr
from pydantic import Field
from tornado.iostream import StreamClosedError

from congruence.kernels.threads import usable_cores
from congruence.tasks.dask.gpus import cuda_cluster_options, visible_cards
from congruence.tasks.dask.workers import DASK_SETTINGS, WORKER_ENVIRONMENT, can_fork, total_memory
from congruence.tasks.runtime.errors import KEPT, ClusterError, SettingsError, mask_text
from congruence.tasks.settings.parts import CARD_SHARE_VARIABLE, ClusterSettings, Strict, checked, read_keys

NAME = "${name}"
_IDLE_SECONDS = 3600
"""After so long without a task the Dask operator removes a cluster: that of a command that was killed."""


class ClusterSpec(Strict):
    """What is started: the content of a cluster file, or what a kind stands for.

    Attributes:
        class_path: the class, as ``package.module.Class``; in the file, ``class``.
        arguments: what it is called with.
        wait_for: workers without which the work does not begin.
        timeout: seconds to wait for them: nodes may have to be started and images to be fetched.
    """

    class_path: str = Field(alias="class", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    arguments: dict[str, Any] = {}
    wait_for: int = Field(default=1, ge=1)
    timeout: float = Field(default=900.0, gt=0)

    def _contradictions(self) -> Iterator[str]:
        resource = self.arguments.get("custom_cluster_spec", {})
        if not isinstance(resource, dict):
            yield (
                f"arguments.custom_cluster_spec: write the resource itself there, with {NAME} as its name, and not the "
                "path of a file"
            )
            return
        inner = (resource.get("metadata") or {}).get("name") if resource else NAME
        names = {"name": self.arguments.get("name", NAME), "custom_cluster_spec.metadata.name": inner}
        for key, name in names.items():
            if NAME not in str(name):
                yield (
                    f"arguments.{key}: {name!r} is fixed: two evaluations would share the cluster, and the first to "
                    f"finish would delete it; write {NAME}"
                )

    def named(self, name: str) -> dict[str, Any]:
        """Returns the arguments with the cluster's name wherever their texts ask for it."""
        found: dict[str, Any] = yaml.safe_load(yaml.safe_dump(self.arguments).replace(NAME, name))
        return found


def cluster_spec(settings: ClusterSettings) -> ClusterSpec:
    """The class and the arguments that a kind other than ``address`` stands for."""
    if settings.file is not None:
        return read_cluster_spec(settings.file)
    if settings.kind == "kubernetes":
        _require("kubernetes", "the Dask operator's client", "dask_kubernetes.operator", "kubernetes")
        path, arguments = "dask_kubernetes.operator.KubeCluster", _kubernetes_options(settings)
    elif settings.kind == "cuda":
        for module in ("rmm", "dask_cuda"):  # dask_cuda imports rmm where it is asked for a pool, and does not bring it
            _require("cuda", "the GPU packages", module, "gpu")
        path, arguments = (
            "dask_cuda.LocalCUDACluster",
            cuda_cluster_options(settings, visible_cards()) | _on_this_machine(settings),
        )
    else:
        path, arguments = "distributed.LocalCluster", _local_options(settings)
    return ClusterSpec.model_validate({"class": path, "arguments": arguments})


def read_cluster_spec(file: Path) -> ClusterSpec:
    """The cluster file, checked.

    Raises:
        SettingsError: unreadable, not YAML, wrong keys, or a name that all evaluations would share.
    """
    source = f"cluster.file: {file}"
    return checked(ClusterSpec, read_keys(file, source, "a cluster", "class: and arguments:"), source)


def start_cluster(spec: ClusterSpec, place: str) -> Any:
    """A new cluster of the class that ``spec`` names, under a name of its own.

    ``place`` is where a person finds what ``spec`` says, for messages.

    Raises:
        SettingsError: no such class is installed, it is not one of a cluster, or it does not take these arguments.
        ClusterError: the cluster did not start.
    """
    module, _, attribute = spec.class_path.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{place}: class: {spec.class_path} cannot be imported ({error}); install the package that has it, or "
            "correct its path"
        ) from error
    if not (isinstance(made, type) and hasattr(made, "scheduler_address") and hasattr(made, "close")):
        raise SettingsError(
            f"{place}: class: {spec.class_path} is no class of Dask clusters, as distributed.LocalCluster is"
        )
    name = f"congruence-{secrets.token_hex(4)}"
    arguments = spec.named(name)
    signature = inspect.signature(made)
    if "name" in signature.parameters and "custom_cluster_spec" not in arguments:
        arguments.setdefault("name", name)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(f"{place}: arguments: {spec.class_path} {error}") from error
    try:
        return made(**arguments)
    except Exception as error:  # of whatever package the class is from
        said = mask_text(str(error.__cause__ or error)).strip().splitlines() or ["it said nothing"]
        raise ClusterError(
            f"{place}: {spec.class_path} did not start ({type(error).__name__}: {said[0][:300]}); see what it needs in "
            "its documentation, and in the logs of what it starts; a worker process that was killed most often lacked "
            "memory"
        ) from error


def dask_environment() -> dict[str, str]:
    """Dask's settings as the variable that hands them to schedulers and workers which others start."""
    return {"DASK_INTERNAL_INHERIT_CONFIG": config.serialize(DASK_SETTINGS)}


def worker_environment(settings: ClusterSettings) -> dict[str, str]:
    """The environment in which workers of a cluster that we start begin.

    With cards, they know their share of one, and single precision stays single precision.
    """
    if settings.kind != "cuda":
        return WORKER_ENVIRONMENT
    share = {CARD_SHARE_VARIABLE: f"{settings.card_share:.6g}"}
    return WORKER_ENVIRONMENT | share | {"CUPY_TF32": "0", "NVIDIA_TF32_OVERRIDE": "0"}


def _on_this_machine(settings: ClusterSettings) -> dict[str, Any]:
    """Nobody else reaches scheduler, workers or dashboards."""
    dashboard = {"dashboard": settings.dashboard, "dashboard_address": "127.0.0.1:0"}
    # A worker's, which links to it lead to, makes each load Bokeh: half a second. One of threads, which names no host,
    # would listen everywhere without it.
    asked = settings.dashboard or settings.kind == "threads"
    beside = {"worker_dashboard_address": "127.0.0.1:0"} if asked else {}
    return {"host": "127.0.0.1", "scheduler_kwargs": dashboard, **beside}


def _require(kind: str, what: str, module: str, extra: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(
            f"cluster.kind: '{kind}' needs {what} ({error}); install them with: "
            f"pip install -c constraints.txt '.[{extra}]'"
        ) from error


def _local_options(settings: ClusterSettings) -> dict[str, Any]:
    # Dask warns of it on a busy machine, with advice on network file systems that does not apply here.
    warnings.filterwarnings("ignore", message="Creating scratch directories")
    threads = settings.kind == "threads"
    workers = settings.workers or min(usable_cores(), 8)
    return {
        "n_workers": 1 if threads else workers,
        "threads_per_worker": workers if threads else 1,
        "processes": not threads,
        "memory_limit": settings.memory_per_worker or total_memory() // (1 if threads else workers),
        **_on_this_machine(settings),
        **({} if threads else {"env": dict(os.environ)}),  # of now, and not of when the process began that they fork
    } | ({"host": None} if threads else {})


def _kubernetes_options(settings: ClusterSettings) -> dict[str, Any]:
    """Workers of one thread, Dask's settings on all pods."""
    arguments: dict[str, Any] = {
        "image": settings.image,
        "namespace": settings.namespace,
        "n_workers": settings.workers or 2,
        "env": WORKER_ENVIRONMENT | dask_environment(),
        "worker_command": "dask worker --nworkers 1 --nthreads 1",
        "idle_timeout": _IDLE_SECONDS,
        "quiet": True,
    }
    if settings.memory_per_worker is not None:  # Kubernetes does not know "8 GiB"
        bytes_ = {"memory": str(parse_bytes(settings.memory_per_worker))}
        arguments["resources"] = {"limits": bytes_, "requests": bytes_}
    return arguments


logger = logging.getLogger(__name__)

_TLS_OPTIONS = "--protocol tls --tls-ca-file ... --tls-cert ... --tls-key ...' and certificates of the same authority"


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
    forked = settings.kind == "local" and can_fork()
    how = {"distributed.worker.multiprocessing-method": "forkserver"} if forked else {}
    with dask.config.set(dask_configuration(settings) | how), _connected(settings, announce) as client:
        address = scheduler_address(client)
        # When a scheduler is lost, each client prints the traceback of its attempt to connect again.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        try:
            yield client
        except KilledWorker as error:
            raise ClusterError(
                f"Dask worker {error.last_worker.address} died, as did those that tried the same piece of work before "
                f"({error.allowed_failures + 1} in all); most often they lack memory: see their logs, give them more "
                f"or make encoder.batch_size smaller; {KEPT}"
            ) from error
        except (CancelledError, OSError) as error:
            # An OSError of a disk or of a server is none of the cluster's.
            if client.status == "running" and not isinstance(error, CancelledError | CommClosedError):
                raise
            raise ClusterError(
                f"the Dask scheduler at {address} was lost during the work; see its log, and start it again with its "
                f"workers where that is yours to do; {KEPT}"
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
            remedy = "', or use kind: local" if settings.tls is None else f" {_TLS_OPTIONS}"
            raise SettingsError(
                f"cluster.address: no Dask scheduler answers at {settings.address} ({error}); start one with 'dask "
                f"scheduler{remedy}"
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
