"""Clusters by a file: any Dask cluster class with its arguments, under a name that no other evaluation has.

A file has the class and what it is called with::

    class: dask_kubernetes.operator.KubeCluster
    arguments:
      namespace: congruence
      image: registry.example.org/congruence:0.1.0
      n_workers: 8

``${name}`` in any text of the arguments stands for the cluster's name, which is new for each evaluation. A class
that takes ``name`` is given it without being asked.
"""

from __future__ import annotations

import importlib
import inspect
import secrets
from pathlib import Path
from typing import Any

from distributed import Client
from pydantic import Field

from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.settings.strict import Strict
from congruence.tasks.settings.yaml_file import checked, read_keys

NAME = "${name}"
_FIXED = f"is fixed: two evaluations would share the cluster, and the first to finish would delete it; write {NAME}"


class ClusterSpec(Strict):
    """The content of a cluster file.

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


def unique_name() -> str:
    """A name for one evaluation's cluster: short, and of the letters that Kubernetes takes."""
    return f"congruence-{secrets.token_hex(4)}"


def read_cluster_spec(file: Path) -> ClusterSpec:
    """The cluster file, checked.

    Raises:
        SettingsError: unreadable, not YAML, wrong keys, or a name that all evaluations would share.
    """
    source = f"cluster.file: {file}"
    spec = checked(ClusterSpec, read_keys(file, source, "a cluster", "class: and arguments:"), source)
    _require_own_name(file, spec.arguments)
    return spec


def _require_own_name(file: Path, arguments: dict[str, Any]) -> None:
    resource = arguments.get("custom_cluster_spec", {})
    if not isinstance(resource, dict):
        raise SettingsError(
            f"cluster.file: {file}: arguments.custom_cluster_spec: write the resource itself there, with {NAME} as its "
            "name, and not the path of a file"
        )
    metadata = resource.get("metadata") or {}
    for key, name in (
        ("arguments.name", arguments.get("name", NAME)),
        ("arguments.custom_cluster_spec.metadata.name", metadata.get("name") if resource else NAME),
    ):
        if NAME not in str(name):
            raise SettingsError(f"cluster.file: {file}: {key}: {name!r} {_FIXED}")


def start_cluster(spec: ClusterSpec, place: str) -> Any:
    """A new cluster of the class that ``spec`` names, under a name of its own.

    ``place`` is where a person finds what ``spec`` says, for messages.

    Raises:
        SettingsError: no such class is installed, it is not one of a cluster, or it does not take these arguments.
        ClusterError: the cluster did not start.
    """
    cluster = _cluster_class(spec.class_path, place)
    arguments = _named(spec.arguments, unique_name())
    signature = inspect.signature(cluster)
    if "name" in signature.parameters and "name" not in arguments and "custom_cluster_spec" not in arguments:
        arguments["name"] = unique_name()
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(f"{place}: arguments: {spec.class_path} {error}") from error
    try:
        return cluster(**arguments)
    except Exception as error:  # of whatever package the class is from
        said = mask_text(str(error)).strip().splitlines() or ["it said nothing"]
        raise ClusterError(
            f"{place}: {spec.class_path} did not start ({type(error).__name__}: {said[0][:300]}); see what it needs in "
            "its documentation, and in the logs of what it starts"
        ) from error


def await_workers(client: Client, spec: ClusterSpec, place: str) -> None:
    """Return once the cluster has the workers without which the work does not begin.

    Raises:
        ClusterError: they have not come in time.
    """
    try:
        client.wait_for_workers(spec.wait_for, timeout=spec.timeout)
    except TimeoutError as error:
        came = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{place}: {came} of {spec.wait_for} workers came within {spec.timeout:.0f} s; see why the others wait "
            "(on Kubernetes: kubectl describe pod), or give them longer with timeout:"
        ) from error


def _cluster_class(path: str, place: str) -> type:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"{place}: class: {path} cannot be imported ({error}); install the package that has it, or correct its path"
        ) from error
    if not (isinstance(found, type) and hasattr(found, "scheduler_address") and hasattr(found, "close")):
        raise SettingsError(
            f"{place}: class: {path} is no class of Dask clusters; write for example distributed.LocalCluster"
        )
    return found


def _named(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace(NAME, name)
    if isinstance(value, dict):
        return {key: _named(item, name) for key, item in value.items()}
    return [_named(item, name) for item in value] if isinstance(value, list) else value
