"""`congruence compare`: evaluated versions side by side on one split, each against a baseline, on the same rows.

Reads logged evaluations and computes for seconds, so it runs as a plain function and needs no Prefect server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from congruence.flows.cli.options import open_file, start
from congruence.kernels.resampling.paired import RESAMPLES
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.versions import Comparison, compare_versions
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.evaluate.plan import file_conditions, split_conditions
from congruence.tasks.evaluate.splits import open_planned, opened, use_tracking
from congruence.tasks.mlflow.baselines import baseline_version
from congruence.tasks.mlflow.comparisons import log_comparison
from congruence.tasks.mlflow.finished import ANY, Conditions
from congruence.tasks.mlflow.pages import place_of
from congruence.tasks.mlflow.reading import comparable_versions, logged_versions
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import RegistryError, select
from congruence.tasks.monitor.best import MayBeBest
from congruence.tasks.recalibration.rows import has_seen
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.runtime.mlflow_access import point_mlflow_at
from congruence.tasks.settings.evaluation import EvaluationSettings


@dataclass(frozen=True)
class LoggedComparison:
    """A comparison, the MLflow run that holds its report and tables, and where people find that run."""

    comparison: Comparison
    run_id: str
    place: str


@dataclass(frozen=True)
class ComparisonRequest:
    """What a command line asks to compare: on which splits under what, versions, and where these are logged.

    ``baseline`` is the one of the file's gate, where it has one; ``stored`` are the settings of a file that names
    stored predictions; ``names_versions`` says whether the command line names versions, so that others may be left out.
    """

    conditions: dict[str, Conditions]
    models: list[str]
    tracking: TrackingSettings
    seed: int = 0
    baseline: str | None = None
    stored: EvaluationSettings | None = None
    names_versions: bool = False


def comparison_request(
    arguments: Sequence[str], split: str | None, home: Path | None, *, protocol_digest: str | None = None
) -> ComparisonRequest:
    """Read ``[EVALUATION FILE] [VERSION ...]`` and point MLflow where the file says, else at the home folder.

    A file says under what the versions are compared: its data, encoder, protocol and settings. ``protocol_digest``
    replaces its protocol.

    Raises:
        SettingsError: neither a file nor a split, or a file that cannot be read.
        CongruenceError: the file's split or encoder cannot be opened.
    """
    if arguments and Path(arguments[0]).suffix in (".yaml", ".yml"):
        settings = open_file(Path(arguments[0]), home)
        use_tracking(settings)
        if settings.is_of_stored_predictions:
            given = None if settings.gate is None else settings.gate.baseline
            models = list(arguments[1:]) or settings.models
            return ComparisonRequest({}, models, settings.tracking, settings.seed, given, settings)
        names = [part.name for part in settings.splits]
        if split is not None and split not in names:
            raise SettingsError(f"--split: {arguments[0]} has no split '{split}'; it has {', '.join(names)}")
        models = list(arguments[1:]) or settings.models
        conditions = file_conditions(settings, protocol_digest=protocol_digest)
        chosen = conditions if split is None else {split: conditions[split]}
        baseline = None if settings.gate is None else settings.gate.baseline
        named = len(arguments) > 1
        return ComparisonRequest(chosen, models, settings.tracking, settings.seed, baseline, names_versions=named)
    if split is None:
        raise SettingsError("give an evaluation file, or --split NAME: which split are the versions to be compared on?")
    point_mlflow_at(tracking_uri(start(home)))
    conditions = {split: Conditions(protocol_digest=protocol_digest)}
    return ComparisonRequest(conditions, list(arguments), TrackingSettings(), names_versions=bool(arguments))


def compare(
    split: str,
    models: Sequence[str],
    tracking: TrackingSettings,
    *,
    baseline: str | None = None,
    conditions: Conditions = ANY,
    resamples: int = RESAMPLES,
    seed: int = 0,
    mark: bool = False,
) -> LoggedComparison:
    """Compare versions on the split of this name and log the comparison.

    Args:
        split: the split's name.
        models: versions as ``select`` reads them; none means every version evaluated on the split.
        tracking: where evaluations are logged; MLflow must point there.
        baseline: the version to compare with; the first by a proper score, else by CCE, by default.
        conditions: compare evaluations under these, for example a file's; what they leave open is the latest content
            of the split and the latest protocol that all versions share.
        resamples: of the bootstrap and of the permutation test of the metrics other than CCE.
        seed: of both.
        mark: whether these are all versions of the split, so that lists may say which may be the best.

    Raises:
        ProtocolError: the versions were measured on other splits or under other protocols.
        RegistryError: a version that is not in the registry.
        TrackingError: a version that was not evaluated.
    """
    against = select(baseline)[-1] if baseline is not None else None
    if models:
        named = [version for pattern in models for version in select(pattern)]
        distinct = {version.uri: version for version in [*named, *([] if against is None else [against])]}
        chosen = [each for each in distinct.values() if not has_seen(each, conditions.split_digest or "")]
        versions = comparable_versions(split, chosen, tracking, conditions=conditions)
    else:
        versions = logged_versions(split, tracking, conditions=conditions)
    label = against.label if against is not None else None
    comparison = compare_versions(versions, baseline=label, resamples=resamples, seed=seed)
    run_id = log_comparison(comparison, tracking)
    if mark and comparison.best:
        runs = {version.label: (version.model, str(version.run_id)) for version in comparison.versions}
        best = MayBeBest(tuple(comparison.may_be_best), runs, f"of {len(runs)} versions")
        best.mark(split, tracking)
    return LoggedComparison(comparison, run_id, place_of(run_id, tracking))


def compare_stored(
    settings: EvaluationSettings, models: Sequence[str], *, baseline: str | None = None
) -> list[LoggedComparison]:
    """Compare versions by the predictions that production stored, on the rows that they share as far as they do.

    All at once where one split holds predictions of all. Else each is compared with the baseline, row by row on a split
    of both, or, where they share no rows, on the rows of each, by wider intervals.

    Args:
        settings: the evaluation file's; MLflow must point where they say.
        models: names or addresses of versions; none means all.
        baseline: the version to compare with; by default the first one in the rows, unless all are on one split.

    Raises:
        SettingsError: fewer than two versions, or one that the rows do not have.
        TrackingError: a version that was not evaluated.
    """
    found = opened(settings.model_copy(update={"models": [*models, *([] if baseline is None else [baseline])]}))
    uris = list(dict.fromkeys(found.models))
    if len(uris) < 2:
        raise SettingsError(f"versions: {len(uris)} to compare; name at least two that have labelled rows")
    against = found.models[-1] if baseline is not None else None
    splits = split_conditions(found)

    def held(*wanted: str) -> tuple[SplitSettings, Conditions] | None:
        fitting = [pair for pair in splits if set(wanted) <= pair[0].stored.keys()]
        return max(fitting, key=lambda pair: open_planned(pair[0], found).rows, default=None)

    def read(uri: str, at: tuple[SplitSettings, Conditions] | None) -> ComparedVersion:
        split, wanted = at or held(uri) or splits[0]
        return comparable_versions(split.name, [select(uri)[-1]], settings.tracking, conditions=wanted)[0]

    def compared(group: Sequence[str], base: str | None) -> LoggedComparison:
        at = held(*group)
        versions = {uri: read(uri, at) for uri in group}
        label = None if base is None else versions[base].label
        comparison = compare_versions(list(versions.values()), baseline=label, seed=settings.seed)
        run_id = log_comparison(comparison, settings.tracking)
        return LoggedComparison(comparison, run_id, place_of(run_id, settings.tracking))

    if held(*uris) is not None:
        return [compared(uris, against)]
    base = against or uris[0]
    return [compared([uri, base], base) for uri in uris if uri != base]


def named_baseline(written: str | None, models: Sequence[str], tracking: TrackingSettings) -> str | None:
    """The gate's ``baseline:`` as a version of the registry, for a comparison; None where no version is it yet.

    A bare alias or number is one of the first model that is compared.
    """
    if written is None or not models:
        return None
    name = models[0].removeprefix("models:/").partition("/")[0].partition("@")[0]
    try:
        found = baseline_version(name, written, tracking, first_version="pass")
    except RegistryError:
        return None
    return None if found is None else found.uri
