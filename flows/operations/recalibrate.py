"""`congruence recalibrate`: correct a version where it is wrong, register the result and evaluate both.

Of one split, a fixed half of the rows is for fitting and the other half is held out, whole groups or the later rows of
time where these depend on each other (``kernels.dependence.correlation.hold_out``). The other half is written as a
split of its own, ``<split>-held-out``, on which version and corrected version are then evaluated side by side. With
``--fit`` a whole other split of the file is for fitting, and both are evaluated on the rest of the file as it stands.
CCE and the tests of calibration smooth targets over neighbours, so cross-fitting on the judged rows themselves would
flatter them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np
from prefect import flow

from congruence.flows.cli.console import print_line, print_outcomes
from congruence.flows.evaluate import STAGES, TERMINAL, OnDemand, evaluate, in_flow
from congruence.kernels.errors import CongruenceError
from congruence.kernels.verdict import SIGNIFICANCE
from congruence.tasks.comparison.versions import compare_pair
from congruence.tasks.contract.model import resolved_contract
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import split_of_rows
from congruence.tasks.encoders.loading import warm_encoder
from congruence.tasks.evaluate.evaluation import Steps, index
from congruence.tasks.evaluate.pieces import rows_of
from congruence.tasks.evaluate.plan import Plan, VersionOutcome, encoder_protocol, require_none, with_fitted_encoder
from congruence.tasks.evaluate.stored import require_models
from congruence.tasks.mlflow.connection import use_tracking, with_retries
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.models.registry import model_name, resolve
from congruence.tasks.recalibration.versions import (
    FittedVersion,
    Origin,
    find_recalibrated,
    fit_version,
    halves_of,
    register_recalibrated,
    require_given,
)
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.sentences.calibration import PreviewRow, judgement, probability
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion

HELD_OUT = "-held-out"
JUDGED = ("nll_mean", "crps_mean", "cce_mean", "mae")


class NothingToMendError(CongruenceError):
    """A version whose targets fall as predicted, as far as its rows show: there is nothing to correct."""


@dataclass(frozen=True)
class RecalibratedVersion:
    """What came of it: versions before and after, and in words what the fit rests on and what falls or rises by split.

    ``said`` is what the correction changes; None where the version was made before and is found. ``outcomes`` are the
    evaluations of both, on rows that the fit has not seen.
    """

    parent: ModelVersion
    version: ModelVersion
    fitted_on: str
    said: str | None
    outcomes: list[VersionOutcome] = field(repr=False)
    judgements: dict[str, str] = field(default_factory=dict)


def recalibrate(
    settings: EvaluationSettings,
    version: str | None = None,
    *,
    fit: str | None = None,
    force: bool = False,
    evaluated: bool = True,
) -> RecalibratedVersion:
    """Recalibrate one version, register the corrected model, and evaluate both on rows that it was not fitted on.

    The arguments are those of the command; without ``evaluated`` the versions are not evaluated.

    Raises:
        NothingToMendError: no fault is found, or no correction pays.
        CongruenceError: settings, data or a version that cannot be recalibrated.
    """
    require_models(settings, "recalibrate")
    settings, half = settings.for_workers(), fit is None
    use_tracking(settings.tracking)
    parent = with_retries("looking up the version", partial(asked_version, settings, version), settings.tracking)
    if not parent.version:
        raise SettingsError(f"{parent.uri}: is not registered, so it can have no new version; register it first")
    labelled = _split_to_fit(settings, fit)
    with OnDemand(settings) as cluster:  # the statistics of the inputs, as an evaluation of the whole file fits them
        for part in {item.name: item for item in (labelled, settings.statistics_split)}.values():
            index(settings, part, cluster, TERMINAL)
    settings = with_fitted_encoder(settings)
    split = open_split(labelled, settings.plans_folder)
    made, said = _corrected(settings, split, parent, half=half, force=force)
    judged = _judged(settings, labelled, split, [parent, made], half=half) if evaluated else None
    outcomes = [] if judged is None else evaluate(Plan(judged))
    fitted_on = made.tags.get("recalibrated_on", split.name)
    return RecalibratedVersion(parent, made, fitted_on, said, outcomes, _judgements(parent, made, outcomes, settings))


def _corrected(
    settings: EvaluationSettings, split: Split, parent: ModelVersion, *, half: bool, force: bool
) -> tuple[ModelVersion, str | None]:
    """The corrected version, and what its correction changes; None of one that was made before and is found."""
    encoder = warm_encoder(settings.encoder)
    protocol, predictions = encoder_protocol(settings, encoder), resolved_contract(parent, settings.predictions)
    origin = Origin(parent, predictions, split, half, protocol, settings.seed)
    if (before := find_recalibrated(origin, settings.tracking)) is not None:
        return before, None
    fitted = _fitted(settings, origin)
    require_fault(parent, fitted, force=force)
    require_given(split, predictions, fitted)
    return register_recalibrated(settings, origin, fitted, encoder), fitted.said


def _judgements(
    parent: ModelVersion, made: ModelVersion, outcomes: list[VersionOutcome], settings: EvaluationSettings
) -> dict[str, str]:
    """What the correction changes on each split, by paired comparison of the logged evaluations."""
    found = {}
    for split in dict.fromkeys(outcome.split for outcome in outcomes):
        runs = {item.label: item.run_id for item in outcomes if item.split == split and item.run_id is not None}
        if parent.label not in runs or made.label not in runs:
            continue
        after, before = (read_version(str(runs[version.label]), settings.tracking) for version in (made, parent))
        pair = compare_pair(after, before, seed=settings.seed)
        rows = [
            PreviewRow(metric_of(name).label, item.second, item.first, item.standard_error)
            for name, item in pair.differences.items()
            if name in JUDGED and name not in pair.drawn
        ]
        found[split] = judgement(rows)
    return found


def asked_version(settings: EvaluationSettings, version: str | None) -> ModelVersion:
    """The version that a person named.

    Raises:
        SettingsError: a name is missing or is not the only one.
        RegistryError: there is no such version.
    """
    if version is not None and ("/" in version or "@" in version or ":" in version):
        return resolve(version)
    if version is None:
        if len(settings.models) == 1 and model_name(settings.models[0]) != settings.models[0].removeprefix("models:/"):
            return resolve(settings.models[0])
        raise SettingsError("--version: name the version to recalibrate, by number, alias or models:/name/3")
    names = set(map(model_name, settings.models))
    if len(names) != 1:
        raise SettingsError(f"--version {version}: the file names {len(names)} models; write models:/NAME/{version}")
    (name,) = names
    return resolve(f"models:/{name}/{version}" if version.isdigit() else f"models:/{name}@{version}")


def require_fault(parent: ModelVersion, fitted: FittedVersion, *, force: bool) -> None:
    """Refuse where there is nothing to recalibrate.

    Raises:
        NothingToMendError: the test finds no fault (unless forced), or cross-validation chose no change.
    """
    if not fitted.said:
        raise NothingToMendError(
            f"Nothing to recalibrate in {parent.label}: on {fitted.rows:,} rows no correction improves the log score "
            "of held-out rows by two standard errors."
        )
    if fitted.p_value >= SIGNIFICANCE and not force:
        raise NothingToMendError(
            f"Nothing to recalibrate in {parent.label}: its predictions agree with the targets at every input, as far "
            f"as {fitted.rows:,} rows show (p = {probability(fitted.p_value)}); --force corrects it all the same."
        )


def _split_to_fit(settings: EvaluationSettings, fit: str | None) -> SplitSettings:
    if fit is None:
        return settings.splits[0]
    if settings.reference is not None and fit == settings.reference.name:
        raise SettingsError(
            f"--fit {fit}: is the reference split, whose targets judge every version; fit on another split of the file"
        )
    split = settings.split_named(fit, "--fit")
    if len(settings.splits) == 1:
        raise SettingsError(
            f"--fit {fit}: is the file's only split, so none is left to judge by; leave --fit out: half of its rows "
            "are then held out"
        )
    return split


def _judged(
    settings: EvaluationSettings, labelled: SplitSettings, split: Split, versions: list[ModelVersion], *, half: bool
) -> EvaluationSettings:
    """The evaluation of both versions: on the other splits, or on the rows of this one that are held out."""
    uris = [version.uri for version in versions]
    if not half:
        others = [item for item in settings.splits if item.name != labelled.name]
        return settings.model_copy(update={"models": uris, "splits": others, "gate": None})
    named = sha256(f"{split.digest} {labelled.model_dump_json()}".encode()).hexdigest()[:16]
    path = settings.home_folder / "held-out" / f"{named}.parquet"
    held_out = split_of_rows(split, np.flatnonzero(halves_of(split).held_out), path, labelled.name + HELD_OUT)
    return settings.model_copy(update={"models": uris, "splits": [held_out], "gate": None})


def _fitted(settings: EvaluationSettings, origin: Origin) -> FittedVersion:
    """Embed and predict the split, as far as that is not kept, and fit on a worker: a run in Prefect.

    Raises:
        CongruenceError: the version does not answer, or cannot be fitted.
    """
    parent, split = origin.parent, origin.split

    @flow(name="fit-recalibration", flow_run_name=f"recalibrate {parent.label} on {split.name}")
    def fit(settings: EvaluationSettings) -> FittedVersion:
        with in_flow(settings) as cluster:
            steps = Steps(settings, cluster(), STAGES)
            rows = rows_of(settings, split)
            require_none(steps.check(rows, [parent]))
            steps.embed(rows)
            require_none(steps.predict(rows, [parent]))
            work = partial(fit_version, origin.protocol, rows, half=origin.half, seed=origin.seed)
            (done,) = steps.executor.map(work, [parent.label], name="fit")
            if (why := done.failure(parent.label, "fit it")) is not None:
                raise CongruenceError(why)
            return done.result()

    return fit(settings)


def print_recalibrated(made: RecalibratedVersion) -> None:
    """Print what was made, on what it was fitted, and both versions where it was not."""
    said = "made before from the same rows" if made.said is None else made.said
    print_line(f"{made.parent.label} recalibrated is {made.version.label}: {said}")
    print_line(f"fitted on {made.fitted_on}; both are evaluated on rows that it has not seen:")
    print_outcomes(made.outcomes)
    for split, judged in made.judgements.items():
        print_line(f"{made.version.label} beside {made.parent.label} on {split}: {judged}")
