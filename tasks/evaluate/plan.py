"""The plan of an evaluation: versions, rows, and what MLflow holds already; made once and handed on.

It is made before a server, a cluster, an encoder or a model is started. What it says of a split (``SplitPlan``) is all
that the evaluation of that split needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.verdict import Verdict
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.loading import EncoderIdentity, encoder_identity, statistics
from congruence.tasks.evaluate.stored import opened, with_stored
from congruence.tasks.mlflow.connection import database_file, use_tracking, with_retries
from congruence.tasks.mlflow.identity import Conditions, EvaluationIdentity, finished_evaluations
from congruence.tasks.models.registry import STORED, RegistryError, select
from congruence.tasks.runtime.errors import SettingsError, SplitError
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings, ModelEntry, entry_digest, settings_digest
from congruence.tasks.settings.sections import FITTED_ON, EncoderSettings, ModelVersion


@dataclass(frozen=True)
class VersionOutcome:
    """What became of one version on one split: ``evaluated`` now, ``found`` finished earlier, or ``failed``.

    Or ``left out``: a version that has seen the targets of the split.

    ``protocol`` is its name and digest, with the encoder and the reference split: numbers compare under equal ones.
    ``verdict`` is what the table says of it, and ``wrong`` says what is wrong with the version, in sentences, where
    calibration given the input was measured. ``statement`` is what its predictions state.
    """

    label: str
    split: str
    status: str
    run_id: str | None = None
    metrics: dict[str, MetricValue] = field(default_factory=dict)
    protocol: str = ""
    verdict: Verdict = field(default_factory=Verdict)
    wrong: tuple[str, ...] = ()
    statement: str = ""
    error: str | None = None

    @property
    def why_not(self) -> str:
        """Returns which version has no evaluation on which split, and why; errors name their version, too."""
        return f"{self.label} on {self.split}: {(self.error or 'no reason given').removeprefix(f'{self.label}: ')}"

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON: as it stands, each metric with its interval where it has one."""
        metrics: dict[str, dict[str, float | None]] = {}
        for name, metric in self.metrics.items():
            metrics[name] = {"value": metric.value}
            if metric.low is not None or metric.high is not None:
                metrics[name] |= {"low": metric.low, "high": metric.high}
        judged = (
            {
                "verdict": str(self.verdict),
                "p_value": self.verdict.p_value,
                "parts": {part.name: part.p_value for part in self.verdict.parts},
            }
            if self.status != "failed"
            else {"verdict": None}
        )
        return asdict(replace(self, metrics={})) | judged | {"metrics": metrics}


class Failures(dict[str, str]):
    """Why versions failed, by their labels."""


def require_none(failures: Failures) -> None:
    """Raise CongruenceError with the first of some failures."""
    for message in failures.values():
        raise CongruenceError(message)


@dataclass(frozen=True)
class SplitPlan:
    """What is to be done on one split.

    Attributes:
        settings: of the evaluation, with the encoder's statistics and the servers' addresses.
        split: the split.
        reference: the labelled rows that the system is made of, where they are another split.
        protocol: with its encoder and reference split.
        identities: under what the evaluations that MLflow lacks are logged, by the labels of their versions.
        outcomes: of the others, which were found or are left out.
        again: whether what is kept and logged of the versions is made again; embeddings stay.
    """

    settings: EvaluationSettings
    split: Split = field(repr=False)
    reference: Split | None = field(repr=False)
    protocol: EvaluationProtocol
    identities: dict[str, EvaluationIdentity]
    outcomes: list[VersionOutcome]
    again: bool = False

    @property
    def versions(self) -> list[ModelVersion]:
        """Those whose evaluation MLflow lacks."""
        return [identity.model for identity in self.identities.values()]


class Plan:
    """What an evaluation file asks for and what of it is done.

    Attributes:
        settings: with the addresses of servers written out.
        versions: the registry versions that ``models:`` names, each once.
        again: make again what was evaluated before. Embeddings, which are found by the content of the inputs and the
            encoder, are kept.
        said: what to know of the rows of stored predictions.

    Raises:
        SettingsError: no models named.
        RegistryError: a name, number or alias that does not exist; says which do.
        TrackingError: MLflow does not answer.
    """

    def __init__(self, settings: EvaluationSettings, *, again: bool = False) -> None:
        self.settings, self.again, self.said = settings.for_workers(), again, tuple[str, ...]()
        _require_registry(self.settings)
        use_tracking(self.settings.tracking)
        if self.settings.is_of_stored_predictions:
            self.settings, self.said = with_stored(self.settings)
        self.versions, entries = _requested(self.settings)
        self.settings = self.settings.model_copy(update={"model_entries": entries})

    @cached_property
    def splits(self) -> list[SplitPlan]:
        """What is to be done on each split; they are opened, and indexed where their index is not kept.

        Raises:
            CongruenceError: a split or an encoder that cannot be opened.
        """
        settings = with_fitted_encoder(self.settings)
        encoder = encoder_identity(settings.encoder, settings.home_folder / "encoders")
        reference = None if settings.reference is None else open_split(settings.reference, settings.plans_folder)
        protocol = encoder_protocol(settings, encoder, reference)
        return [
            self._of_split(settings, open_split(split, settings.plans_folder), reference, protocol)
            for split in settings.splits
        ]

    def outcomes(self) -> list[VersionOutcome] | None:
        """Returns the outcomes of an evaluation of which nothing is left to do; None where something is.

        The data are known by the state of their files, an encoder's weights by the state of theirs; neither is read,
        unless it was never seen in this home folder or has changed.

        Raises:
            CongruenceError: a split or an encoder that cannot be opened.
        """
        judged = {version.uri for version in self.versions if FITTED_ON not in version.tags}
        for split in () if self.again else self.settings.splits:
            asked = judged & split.stored.keys() if split.stored else judged
            if not asked <= {item.model.uri for item in self._finished[split.name].values()}:
                return None  # known without opening the data
        if self.again or any(part.versions for part in self.splits):
            return None
        return [outcome for part in self.splits for outcome in part.outcomes]

    @cached_property
    def _finished(self) -> dict[str, dict[str, ComparedVersion]]:
        """By split and the digest of the identity: of two of one identity, the latest first, the older one stays."""
        logged = {
            split.name: finished_evaluations(self.settings.tracking, split.name) for split in self.settings.splits
        }
        return {split: {each.identity: each for each in found} for split, found in logged.items()}

    def _of_split(
        self, settings: EvaluationSettings, split: Split, reference: Split | None, protocol: EvaluationProtocol
    ) -> SplitPlan:
        versions = [each for each in self.versions if not split.settings.stored or each.uri in split.settings.stored]
        outcomes, judged = left_out(versions, split)
        missing = {}
        for version in judged:
            identity = EvaluationIdentity(
                model=version,
                split_name=split.name,
                split_digest=split.digest,
                protocol_digest=protocol.digest,
                metric_list=requested_metrics(settings.metrics),
                settings_digest=settings_digest(settings, split.settings),
                own_settings=entry_digest(settings, split.settings, version.uri),
                target=split.settings.target_name,
                period=split.period,
            )
            held = None if self.again else self._finished[split.name].get(identity.digest)
            if held is None:
                missing[version.label] = identity
            else:
                found = (held.run_id, held.metrics, protocol_name(protocol), held.verdict, held.wrong, held.statement)
                outcomes.append(VersionOutcome(version.label, split.name, "found", *found))
        return SplitPlan(settings, split, reference, protocol, missing, outcomes, self.again)


def with_fitted_encoder(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with the statistics of tabular features, of ``statistics_split`` where they are not given.

    Of stored predictions they are those of the rows of all versions. To be asked once for a whole evaluation: settings
    that name fewer splits might be fitted to another one.
    """
    if not settings.encoder.needs_statistics:
        return settings
    stored = any(split.stored for split in settings.splits)
    splits = settings.splits if stored else [settings.statistics_split]
    found = (open_split(split, settings.plans_folder) for split in splits)
    return settings.model_copy(update={"encoder": with_statistics(settings.encoder, *found)})


def with_statistics(settings: EncoderSettings, *splits: Split) -> EncoderSettings:
    """The settings with mean and scale of the valid rows of ``splits`` where they are not given.

    They enter the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Raises:
        SplitError: no row of the splits can be used.
    """
    if not settings.needs_statistics:
        return settings
    moments = [each.facts.present if settings.takes_missing else each.facts.complete for each in splits]
    known = [each for each in moments if each is not None]
    found = reduce(add, known) if known else None
    facts = splits[0].facts
    lacking = sorted([*facts.inputs.first, *facts.missing.first, *facts.targets.first])
    if lacking and (found is None or not found.count.any()):
        raise SplitError(
            f"split {splits[0].name!r}: no row has all its features and a finite target, the first of them "
            f"({splits[0].place(lacking[0][0])}) because {lacking[0][1]}; repair these columns or name others"
        )
    try:
        mean, scale = statistics(found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {splits[0].name!r}: {error}") from error
    return settings.model_copy(update={"mean": mean, "scale": scale})


def requested_versions(settings: EvaluationSettings) -> list[ModelVersion]:
    """Returns the registry versions that ``models:`` names, each once.

    Raises:
        SettingsError: none named.
        RegistryError: a name, number or alias that does not exist; says which do.
        TrackingError: MLflow does not answer.
    """
    return _requested(opened(settings))[0]


def _requested(settings: EvaluationSettings) -> tuple[list[ModelVersion], dict[str, ModelEntry]]:
    """The versions under labels that differ, and what ``models:`` says of some of them, by their own address."""

    def named(pattern: str) -> list[ModelVersion]:
        return with_retries(f"looking up {pattern}", lambda: select(pattern), settings.tracking)

    versions: dict[str, ModelVersion] = {}
    entries: dict[str, ModelEntry] = {}
    for pattern in settings.models:
        entry = settings.model_entries.get(pattern)
        for version in named(pattern):
            called = version
            if entry is not None:
                entries[version.uri] = entry
                if entry.name is not None and version.version:
                    raise SettingsError(
                        f"models: name: {entry.name}: {version.label} is registered under its own name; leave name out"
                    )
                called = replace(version, name=entry.name or version.name)
            versions[version.uri] = called
    if not versions:
        raise SettingsError("models: none given; name one, for example --model models:/digit-angle/1")
    labels = Counter(version.label for version in versions.values())
    for uri, version in versions.items():
        if labels[version.label] > 1 and not version.version:  # two logged models of a name: told apart by their ids
            short = (version.model_id or version.run_id or "").removeprefix("m-")[:8]
            versions[uri] = replace(version, name=f"{version.name} ({short})")
    return list(versions.values()), entries


def _require_registry(settings: EvaluationSettings) -> None:
    """Refuse models of a database on this machine that is not there: MLflow would make it first, and then say so."""
    uri = str(settings.tracking.registry)
    file = database_file(uri)
    asked = [pattern for pattern in settings.models if not pattern.startswith(STORED)]
    if asked and file is not None and not file.exists():
        raise RegistryError(
            f"{asked[0]}: not in the registry {uri}, which is not there yet; registered models: none; set "
            "tracking.uri or MLFLOW_TRACKING_URI to another server"
        )


def left_out(versions: Sequence[ModelVersion], split: Split) -> tuple[list[VersionOutcome], list[ModelVersion]]:
    """Returns the outcomes of versions that were fitted on targets of ``split``, and the versions that it can judge.

    Of the former no number on this split says anything.
    """
    seen = [version for version in versions if version.has_seen(split.digest)]
    why = "was fitted on rows of this split, which therefore says nothing of it; "
    on = {version.label: version.tags.get("recalibrated_on", split.name) for version in seen}
    outcomes = [
        VersionOutcome(label, split.name, "left out", error=f"{why}recalibrated_on: {name}")
        for label, name in on.items()
    ]
    return outcomes, [version for version in versions if version not in seen]


def encoder_protocol(
    settings: EvaluationSettings, encoder: Encoder | EncoderIdentity, reference: Split | None = None
) -> EvaluationProtocol:
    """The settings' protocol with its encoder and reference split, without which its numbers do not compare.

    ``reference`` is the settings' reference split, where it has been opened already.
    """
    protocol = replace(settings.protocol.protocol(), encoder=f"{encoder.id} {encoder.preprocessing_digest}")
    if settings.reference is None:
        return protocol
    return replace(
        protocol, reference_split=(reference or open_split(settings.reference, settings.plans_folder)).digest
    )


def protocol_name(protocol: EvaluationProtocol) -> str:
    """Name and digest of a protocol, as people read it: numbers compare under equal ones."""
    return f"{protocol.name} ({protocol.digest})"


def split_conditions(
    settings: EvaluationSettings, *, protocol_digest: str | None = None
) -> list[tuple[SplitSettings, Conditions]]:
    """Split by split the digests under which these settings evaluate, whatever else may have been logged on it.

    Args:
        settings: the evaluation file's.
        protocol_digest: to be taken in place of the file's own, for which the encoder must be known.

    Raises:
        CongruenceError: a split or an encoder that cannot be opened.
    """
    settings = with_fitted_encoder(settings)
    if protocol_digest is None:
        encoder = encoder_identity(settings.encoder, settings.home_folder / "encoders")
        protocol_digest = encoder_protocol(settings, encoder).digest
    found = []
    for split in settings.splits:
        digest = open_split(split, settings.plans_folder).digest
        found.append((split, Conditions(digest, protocol_digest, settings_digest(settings, split))))
    return found
