"""Model versions in the MLflow registry: what a URI or a name stands for, and which version a gate compares with.

MLflow's current tracking and registry URIs are used, as set by ``mlflow.set_tracking_uri`` or its environment
variables.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion as RegistryEntry
from mlflow.exceptions import MlflowException

from congruence.kernels.errors import CongruenceError
from congruence.tasks.mlflow.connection import all_pages, connect, is_transient, with_retries
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

_LOGGED_MODEL = re.compile(r"^models:/(?P<model_id>m-[0-9a-f]{32})(/.*)?$")
_VERSION = re.compile(r"^models:/(?P<name>[^/@]+)/(?P<version>[^/@]+)$")
_ALIAS = re.compile(r"^models:/(?P<name>[^/@]+)@(?P<alias>[^/@]+)$")
_SHORT = re.compile(r"^[^/@:]+[/@][^/@:]+$")
STORED = "stored:"
"""Begins the address of a version that is known by its stored predictions alone."""
_NAME = re.compile(r"^(models:/)?(?P<name>[^/@:]+)$")


class RegistryError(CongruenceError, LookupError):
    """A model URI that the registry cannot resolve: names the URI, what is there instead, and the accepted forms."""


def model_name(pattern: str) -> str:
    """Returns the registered name in ``models:/name/3``, ``name@alias`` or ``name``."""
    return re.split("[/@]", pattern.removeprefix("models:/"))[0]


def resolve(uri: str) -> ModelVersion:
    """The version behind ``models:/name/3``, ``models:/name@champion``, ``models:/m-<id>`` or ``runs:/<run>/<path>``.

    ``name/3`` and ``name@champion`` may be written without ``models:/``. A version that only its stored predictions
    are known of is ``stored:name``; no registry is asked for it.

    Raises:
        RegistryError: the URI has another form, or nothing is registered there.
        MlflowException: MLflow does not answer.
    """
    if uri.startswith(STORED):
        return ModelVersion(uri.removeprefix(STORED), "", uri)
    client = MlflowClient()
    if _SHORT.match(uri):
        uri = f"models:/{uri}"
    if match := _LOGGED_MODEL.match(uri):
        return _logged_model(client, match["model_id"], uri)
    if uri.startswith("runs:/"):
        return _run_model(client, uri)
    with _found(
        lambda error: f"{uri}: not in the registry {mlflow.get_registry_uri()} ({error}); {_known(client, uri)}"
    ):
        if match := _ALIAS.match(uri):
            return _registered(client, client.get_model_version_by_alias(match["name"], match["alias"]))
        if match := _VERSION.match(uri):
            if match["version"] == "latest":
                return list_versions(match["name"])[-1]
            return _registered(client, client.get_model_version(match["name"], match["version"]))
    raise RegistryError(
        f"{uri}: not a model URI; write models:/NAME/VERSION, models:/NAME@ALIAS, models:/m-ID or runs:/RUN/PATH"
    )


def select(pattern: str) -> list[ModelVersion]:
    """The versions that ``pattern`` names: a URI (see ``resolve``) is one version, a bare name is all of its versions.

    Raises:
        RegistryError: nothing is registered under it.
    """
    match = _NAME.match(pattern)
    if match and not re.fullmatch(r"m-[0-9a-f]{32}", match["name"]):
        return list_versions(match["name"])
    return [resolve(pattern)]


def list_versions(name: str) -> list[ModelVersion]:
    """Every version of the registered model ``name`` that is ready, oldest first.

    Raises:
        RegistryError: there is no such model, or it has no version yet.
    """
    client = MlflowClient()
    found = _ready(client, name)
    if not found:
        raise RegistryError(
            f"models:/{name}: no version in the registry {mlflow.get_registry_uri()}; {_known(client, name)}"
        )
    return _with_aliases(found, client.get_registered_model(name).aliases)


def matching_versions(
    patterns: Sequence[str], *, aliases: Collection[str] = (), tags: Mapping[str, str] | None = None
) -> list[ModelVersion]:
    """Every ready version of the registered models whose names match, oldest first; nothing registered is no error.

    Args:
        patterns: names with shell wildcards, or URIs of single versions (see ``resolve``).
        aliases: only versions that hold one of these.
        tags: only versions that carry all of these.

    Raises:
        RegistryError: a URI that the registry cannot resolve.
    """
    client = MlflowClient()
    uris = [pattern for pattern in patterns if not _NAME.match(pattern)]
    names = [pattern.removeprefix("models:/") for pattern in patterns if pattern not in uris]
    found = [version for uri in uris for version in select(uri)]
    for model in all_pages(lambda token: client.search_registered_models(max_results=200, page_token=token)):
        if any(fnmatchcase(str(model.name), pattern) for pattern in names):
            found += _with_aliases(_ready(client, str(model.name)), model.aliases)
    distinct = {version.uri: version for version in found}.values()
    chosen = [version for version in distinct if not aliases or set(aliases) & set(version.aliases)]
    return [version for version in chosen if (tags or {}).items() <= version.tags.items()]


def _ready(client: MlflowClient, name: str) -> list[ModelVersion]:
    """The versions of a model that can be loaded, oldest first; MLflow's search leaves their aliases out."""
    found = [entry for entry in _search(client, name) if entry.status == "READY"]
    return [_registered(client, entry) for entry in sorted(found, key=lambda entry: int(entry.version))]


def _with_aliases(versions: Iterable[ModelVersion], holders: Mapping[str, Any]) -> list[ModelVersion]:
    """The versions of a model with the aliases that each holds."""
    held: dict[str, list[str]] = defaultdict(list)
    for alias in sorted(holders):
        held[str(holders[alias])].append(alias)
    return [replace(version, aliases=tuple(held[version.version])) for version in versions]


def _search(client: MlflowClient, name: str) -> list[RegistryEntry]:
    if "'" in name:
        raise RegistryError(f"models:/{name}: a model name with a quote cannot be searched in MLflow; rename the model")
    wanted = f"name = '{name}'"
    return list(all_pages(lambda token: client.search_model_versions(wanted, page_token=token)))


@dataclass(frozen=True)
class LoggedModelRecord:
    """A logged model's name, the run that logged it (None without one) and the address of its artifacts.

    They never change, and MLflow's own record brings every metric that was ever logged for the model.
    """

    name: str
    run_id: str | None
    artifacts: str


@lru_cache(maxsize=1024)
def logged_model_record(tracking_uri: str, model_id: str) -> LoggedModelRecord:
    """The record of the logged model of this id on a tracking server, read once a process.

    Raises:
        MlflowException: there is none, or MLflow does not answer.
    """
    found = MlflowClient(tracking_uri=tracking_uri).get_logged_model(model_id)
    return LoggedModelRecord(str(found.name or ""), found.source_run_id or None, str(found.artifact_location))


def _registered(client: MlflowClient, entry: RegistryEntry) -> ModelVersion:
    # The registry's version object does not carry the LoggedModel id: it is in the source URI.
    match = _LOGGED_MODEL.match(entry.source or "")
    run_id = entry.run_id or None
    model_id = match["model_id"] if match else None
    if model_id and run_id is None:
        run_id = logged_model_record(str(client.tracking_uri), model_id).run_id
    return ModelVersion(
        name=entry.name,
        version=str(entry.version),
        uri=f"models:/{entry.name}/{entry.version}",
        model_id=model_id,
        run_id=run_id,
        aliases=tuple(sorted(entry.aliases or ())),
        tags=dict(entry.tags or {}),
    )


def _logged_model(client: MlflowClient, model_id: str, uri: str) -> ModelVersion:
    with _found(lambda error: f"{uri}: no logged model of this id in {mlflow.get_tracking_uri()} ({error})"):
        logged = client.get_logged_model(model_id)
    return ModelVersion(
        name=logged.name or model_id,
        version="",
        uri=f"models:/{model_id}",
        model_id=model_id,
        run_id=logged.source_run_id or None,
        tags={key: str(value) for key, value in (logged.tags or {}).items()},
    )


def _run_model(client: MlflowClient, uri: str) -> ModelVersion:
    run_id, _, path = uri.removeprefix("runs:/").partition("/")
    with _found(lambda error: f"{uri}: no run of this id in {mlflow.get_tracking_uri()} ({error})"):
        run = client.get_run(run_id)
    for output in run.outputs.model_outputs if run.outputs else []:
        logged = client.get_logged_model(output.model_id)
        if logged.name == path:
            return _logged_model(client, output.model_id, uri)
    return ModelVersion(name=path or run_id, version="", uri=uri, run_id=run_id)


@contextmanager
def _found(otherwise: Callable[[MlflowException], str]) -> Iterator[None]:
    """What MLflow does not have is a RegistryError; where it does not answer, its own error stands."""
    try:
        yield
    except MlflowException as error:
        if is_transient(error):
            raise
        raise RegistryError(otherwise(error)) from error


def _known(client: MlflowClient, uri: str) -> str:
    names = sorted(model.name for model in client.search_registered_models(max_results=20))
    wanted = re.split(r"[/@]", uri.removeprefix("models:/"))[0]
    entries = [] if "'" in wanted else _search(client, wanted)
    if entries or wanted in names:
        versions = sorted(int(entry.version) for entry in entries)
        aliases = sorted(client.get_registered_model(wanted).aliases)
        return f"{wanted} has versions {versions or 'none'} and aliases {aliases or 'none'}"
    return f"registered models: {', '.join(names) or 'none'}; set tracking.uri or MLFLOW_TRACKING_URI to another server"


IN_USE = "champion"
"""The alias of the version in use, where no gate names another one."""

FirstVersion = Literal["pass", "refuse"]


def baseline_version(
    name: str, baseline: str | None, settings: TrackingSettings, *, first_version: FirstVersion = "refuse"
) -> ModelVersion | None:
    """The version that a gate on the registered model ``name`` compares with.

    Args:
        name: the candidate's registered model.
        baseline: ``champion`` (an alias of that model) or ``3`` (one of its versions), or of any model
            ``models:/name/3``, ``models:/name@champion``; None for no comparison.
        settings: where the registry is.
        first_version: ``pass`` to give None for an alias that no version holds yet, unless it is spelt much like
            one that a version does hold.

    Raises:
        RegistryError: there is no such version or alias: names those that there are.
    """
    if baseline is None:
        return None
    reference = baseline.removeprefix("models:/")
    if "@" in reference and "/" not in reference:
        name, _, alias = reference.partition("@")
        return _holder(name, alias, settings, first_version)
    if "/" in reference or ":" in reference:
        return _resolved(baseline, settings)
    if reference.isdigit():
        return _resolved(f"models:/{name}/{reference}", settings)
    return _holder(name, reference, settings, first_version)


def _resolved(uri: str, settings: TrackingSettings) -> ModelVersion:
    try:
        return with_retries(f"looking up {uri}", lambda: resolve(uri), settings)
    except RegistryError as error:
        raise RegistryError(f"gate.baseline: {error}") from error


def _holder(name: str, alias: str, settings: TrackingSettings, first_version: FirstVersion) -> ModelVersion | None:
    model = with_retries("reading the aliases", lambda: connect(settings).get_registered_model(name), settings)
    if alias in model.aliases:
        return _resolved(f"models:/{name}/{model.aliases[alias]}", settings)
    said = f"gate.baseline: {name} has no alias '{alias}'"
    known = sorted(model.aliases)
    close = difflib.get_close_matches(alias, known, 1)
    if close:
        raise RegistryError(f"{said}; did you mean '{close[0]}'? Its aliases are {', '.join(known)}")
    if first_version == "pass":
        return None
    has = f"its aliases are {', '.join(known)}" if known else "no version of it has an alias"
    raise RegistryError(
        f"{said}; {has}. Put the alias on the version in use, or write "
        "first_version: pass under gate: to accept a first version by its thresholds alone"
    )
