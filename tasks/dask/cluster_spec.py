"""What is started as a cluster, whatever the kind: a class and its arguments.

A cluster file (kind ``spec``) has both::

    class: dask_kubernetes.operator.KubeCluster
    arguments:
      namespace: congruence
      image: registry.example.org/congruence:0.1.0
      n_workers: 8

``${name}`` in any text of the arguments stands for the cluster's name, which is new for each evaluation. A class
that takes ``name`` is given it without being asked. The other kinds are specifications that we write.
"""

from __future__ import annotations

import importlib
import inspect
import secrets
import warnings
from pathlib import Path
from typing import Any

import yaml
from dask import config
from dask.utils import parse_bytes
from pydantic import Field

from congruence.kernels.threads import usable_cores
from congruence.tasks.dask.gpus import visible_cards
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.runtime.memory import CARD_SHARE_VARIABLE, total_memory
from congruence.tasks.settings.computing import ClusterSettings
from congruence.tasks.settings.strict import Strict, checked, read_keys

DASK_SETTINGS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("dask.yaml").read_text(encoding="utf-8"))
WORKER_ENVIRONMENT: dict[str, str] = DASK_SETTINGS["distributed"]["nanny"]["pre-spawn-environ"]
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


def cluster_spec(settings: ClusterSettings) -> ClusterSpec:
    """The class and the arguments that a kind other than ``address`` stands for.

    Raises:
        SettingsError: a cluster file cannot be read or says what it may not, or kind ``cuda`` finds no card.
    """
    if settings.file is not None:
        return read_cluster_spec(settings.file)
    if settings.kind == "kubernetes":
        _require("kubernetes", "the Dask operator's client", "dask_kubernetes.operator", "kubernetes")
        path, arguments = "dask_kubernetes.operator.KubeCluster", _kubernetes_options(settings)
    elif settings.kind == "cuda":
        for module in ("rmm", "dask_cuda"):  # dask_cuda imports rmm where it is asked for a pool, and does not bring it
            _require("cuda", "the GPU packages", module, "gpu")
        path, arguments = "dask_cuda.LocalCUDACluster", cuda_cluster_options(settings, visible_cards())
    else:
        path, arguments = "distributed.LocalCluster", _local_options(settings)
    return ClusterSpec.model_validate({"class": path, "arguments": arguments})


def read_cluster_spec(file: Path) -> ClusterSpec:
    """The cluster file, checked.

    Raises:
        SettingsError: unreadable, not YAML, wrong keys, or a name that all evaluations would share.
    """
    source = f"cluster.file: {file}"
    spec = checked(ClusterSpec, read_keys(file, source, "a cluster", "class: and arguments:"), source)
    resource = spec.arguments.get("custom_cluster_spec", {})
    if not isinstance(resource, dict):
        raise SettingsError(
            f"{source}: arguments.custom_cluster_spec: write the resource itself there, with {NAME} as its name, and "
            "not the path of a file"
        )
    inner = (resource.get("metadata") or {}).get("name") if resource else NAME
    names = {"name": spec.arguments.get("name", NAME), "custom_cluster_spec.metadata.name": inner}
    for key, name in names.items():
        if NAME not in str(name):
            raise SettingsError(
                f"{source}: arguments.{key}: {name!r} is fixed: two evaluations would share the cluster, and the first "
                f"to finish would delete it; write {NAME}"
            )
    return spec


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
    arguments = _named(spec.arguments, name)
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
        "host": None if threads else "127.0.0.1",
        "scheduler_kwargs": {"dashboard": settings.dashboard, "dashboard_address": "127.0.0.1:0"},
        "worker_dashboard_address": "127.0.0.1:0",
    }


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


def _named(value: Any, name: str) -> Any:
    """``value`` with the cluster's name wherever its texts ask for it."""
    if isinstance(value, str):
        return value.replace(NAME, name)
    if isinstance(value, dict):
        return {key: _named(item, name) for key, item in value.items()}
    return [_named(item, name) for item in value] if isinstance(value, list) else value
