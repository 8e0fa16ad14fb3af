"""The version that a gate compares with and a report names: what ``baseline:`` stands for, and its evaluation."""

from __future__ import annotations

import difflib
from typing import Literal

from mlflow import MlflowClient

from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.mlflow.connection import FailedRequestError, TrackingError, connect, with_retries
from congruence.tasks.mlflow.finished import Conditions, complete_runs, run_metrics
from congruence.tasks.mlflow.identity import facts
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import RegistryError, resolve
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.scores.evaluation import Evaluation, MetricValue

FirstVersion = Literal["pass", "refuse"]
IN_USE = "champion"
"""The alias of the version in use, where no gate names another one."""


def gate_baseline(
    candidate: ComparedVersion,
    baseline: str | None,
    settings: TrackingSettings,
    *,
    first_version: FirstVersion = "refuse",
    on_other_rows: bool = False,
) -> ComparedVersion | None:
    """The logged evaluation of the version that ``candidate`` would replace; see ``baseline_version``.

    Of its evaluations on the candidate's split under the candidate's protocol that under the same settings, else the
    latest; of stored predictions also ``on_other_rows`` of a split of that name.

    Raises:
        RegistryError: there is no such version.
        TrackingError: the version exists, but has no evaluation under the candidate's split and protocol.
    """
    version = baseline_version(candidate.model.name, baseline, settings, first_version=first_version)
    if version is None:
        return None
    client = connect(settings)
    runs = with_retries(
        "looking for evaluations", lambda: complete_runs(client, candidate.split.name, settings), settings
    )
    wanted = Conditions(None if on_other_rows else candidate.split.digest, candidate.protocol_digest)
    fitting = [run for run in runs if facts(run)["model_uri"] == version.uri and wanted.admit(run)]
    if not fitting:
        raise TrackingError(
            f"{version.uri}: the gate's baseline has no evaluation on split '{candidate.split.name}' "
            f"({candidate.split.digest[:16]}) under protocol {candidate.protocol_digest}; evaluate it too: congruence "
            f"evaluate FILE -m {version.uri}"
        )
    digests = [facts(run).get("settings_digest", "") for run in fitting]
    same = digests.index(candidate.settings_digest) if candidate.settings_digest in digests else 0
    return read_version(str(fitting[same].info.run_id), settings)


def beside_baseline(
    client: MlflowClient, evaluation: Evaluation, baseline: str, settings: TrackingSettings
) -> tuple[str, dict[str, MetricValue]] | None:
    """Name and metrics of the version in use, on the same split under the same protocol.

    None where there is none, where it is the evaluated version itself, or where it has not been evaluated yet.
    """
    try:
        version = baseline_version(evaluation.model.name, baseline, settings, first_version="pass")
    except (RegistryError, FailedRequestError):  # no such version, or a model that is not registered
        return None
    if version is None or version.uri == evaluation.model.uri:
        return None
    runs = complete_runs(client, evaluation.split.name, settings)
    wanted = Conditions(evaluation.split.digest, evaluation.protocol.digest)
    run = next((run for run in runs if facts(run)["model_uri"] == version.uri and wanted.admit(run)), None)
    return None if run is None else (version.label, run_metrics(run))


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
    raise RegistryError(
        f"{said}; its aliases are {', '.join(known) or 'none'}. Put the alias on the version in use, or write "
        "first_version: pass under gate: to accept a first version by its thresholds alone"
    )
