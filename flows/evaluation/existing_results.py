"""Evaluations that MLflow holds already: looked up before a server, a cluster, an encoder or a model is started."""

from __future__ import annotations

import os
from collections.abc import Sequence

from congruence.flows.evaluation.keys import encoder_protocol, evaluation_identity
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.flows.evaluation.tracking import for_workers, use_tracking
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.identity import encoder_identity
from congruence.tasks.mlflow.connection import with_retries
from congruence.tasks.mlflow.finished import FinishedEvaluation, finished_evaluations
from congruence.tasks.models.registry import ModelVersion, RegistryError, select
from congruence.tasks.recalibration.rows import FITTED_ON, has_seen
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.mlflow_database import database_file
from congruence.tasks.settings.evaluation import EvaluationSettings


def asked_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """The registry versions that ``models:`` names, each once.

    Raises:
        SettingsError: none named.
        RegistryError: a name, number or alias that does not exist; says which do.
        TrackingError: MLflow does not answer.
    """

    def named(pattern: str) -> list[ModelVersion]:
        return with_retries(f"looking up {pattern}", lambda: select(pattern), settings.tracking)

    versions = [version for pattern in settings.models for version in named(pattern)]
    if not versions:
        raise SettingsError("models: none given; name one, for example --model models:/digit-angle/1")
    return list({version.uri: version for version in versions}.values())


def _require_registry(settings: EvaluationSettings) -> None:
    """Refuse models of a database on this machine that is not there: MLflow would make it first, and then say so."""
    uri = str(for_workers(settings).tracking.uri)
    file = database_file(os.environ.get("MLFLOW_REGISTRY_URI", uri))
    if settings.models and file is not None and not file.exists():
        raise RegistryError(
            f"{settings.models[0]}: not in the registry {uri}, which is not there yet; registered models: none; set "
            "tracking.uri or MLFLOW_TRACKING_URI to another server"
        )


def find_all(settings: EvaluationSettings) -> list[VersionOutcome] | None:
    """The outcomes of an evaluation of which nothing is left to do; None where something is.

    What they are is exactly what the flow would find. The data are known by the state of their files, an encoder's
    weights by the state of theirs; neither is read, unless it was never seen in this home folder or has changed.

    Raises:
        SettingsError: no models named.
        RegistryError: a version that does not exist.
        TrackingError: MLflow does not answer.
        CongruenceError: a split or an encoder that cannot be opened.
    """
    _require_registry(settings)
    use_tracking(settings)
    versions = asked_versions(settings)
    finished = {split.name: finished_evaluations(split.name, settings.tracking) for split in settings.splits}
    for held in finished.values():
        wanted = {version.uri for version in versions if FITTED_ON not in version.tags}
        if not wanted <= {item.model_uri for item in held.values()}:
            return None  # known without opening the data
    settings = with_fitted_encoder(settings)
    encoder = encoder_identity(settings.encoder, settings.home_folder / "encoders")
    outcomes: list[VersionOutcome] = []
    for split_settings in settings.splits:
        split = open_planned(split_settings, settings)
        protocol = encoder_protocol(settings, encoder)
        found, missing = divide(settings, split, protocol, versions, finished[split.name])
        if missing:
            return None
        outcomes += found
    return outcomes


def divide(
    settings: EvaluationSettings,
    split: Split,
    protocol: EvaluationProtocol,
    versions: Sequence[ModelVersion],
    finished: dict[str, FinishedEvaluation] | None = None,
) -> tuple[list[VersionOutcome], list[ModelVersion]]:
    """The outcomes of the versions whose evaluation on ``split`` MLflow holds, and the versions that it lacks.

    Versions that have seen targets of the split are in neither: their outcome is ``left out``.

    The settings' encoder has its statistics; ``finished`` is what MLflow holds on this split, where that was asked for
    already.

    Raises:
        TrackingError: MLflow does not answer.
    """
    known = finished_evaluations(split.name, settings.tracking) if finished is None else finished
    outcomes, judged = left_out(versions, split)
    name, missing = protocol_name(protocol), list[ModelVersion]()
    for version in judged:
        held = known.get(evaluation_identity(settings, split, protocol, version).digest)
        if held is None:
            missing.append(version)
        else:
            found = (held.run_id, held.metrics, name, held.wrong)
            outcomes.append(VersionOutcome(version.label, split.name, "found", *found))
    return outcomes, missing


def left_out(versions: Sequence[ModelVersion], split: Split) -> tuple[list[VersionOutcome], list[ModelVersion]]:
    """The outcomes of versions that were fitted on targets of ``split``, where no number of theirs says anything.

    And the versions that can be judged by it.
    """
    seen = [version for version in versions if has_seen(version, split.digest)]
    why = "was fitted on rows of this split, which therefore says nothing of it; "
    on = {version.label: version.tags.get("recalibrated_on", split.name) for version in seen}
    outcomes = [
        VersionOutcome(label, split.name, "left out", error=f"{why}recalibrated_on: {name}")
        for label, name in on.items()
    ]
    return outcomes, [version for version in versions if version not in seen]


def protocol_name(protocol: EvaluationProtocol) -> str:
    """Name and digest of a protocol, as people read it: numbers compare under equal ones."""
    return f"{protocol.name} ({protocol.digest})"
