"""`congruence validate`: everything that a run checks before its long work, and what that work would be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from congruence.flows.cli.console import print_line
from congruence.kernels.arrays import Array
from congruence.kernels.dependence.correlation import sample
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import CongruenceError
from congruence.kernels.rng import stream
from congruence.tasks.contract.model import read_description, settings_in
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import require_pictures, split_of_rows
from congruence.tasks.evaluate.pieces import checked_version
from congruence.tasks.evaluate.plan import Plan, SplitPlan, protocol_name
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.models.evaluated_rows import contract_rows
from congruence.tasks.models.processes import warm_model
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import AUTO, ModelVersion

CONTRACT_ROWS = 8
MEAN_ROWS = 2_000
"""Rows, of tables and texts, by which the mean of the predictions is set beside that of the targets."""

FEW_ROWS = 100


@dataclass(frozen=True)
class CheckedVersion:
    """What a run would do with a version on a split: nothing (``found``), evaluate it (``to do``), or fail.

    ``said`` is the family of its predictions, or why it cannot be evaluated; ``warnings`` what is worth knowing.
    """

    label: str
    split: str
    status: str
    said: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Validation:
    """What a run of an evaluation file would do: rows of each split by name, the protocol, and each version on each.

    ``notes`` are what to know of the splits: rows that are left out, too few rows.
    """

    splits: dict[str, int]
    protocol: str
    notes: list[str] = field(default_factory=list)
    versions: list[CheckedVersion] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing would fail."""
        return all(version.status != "fails" for version in self.versions)


def validate(settings: EvaluationSettings) -> Validation:
    """Check data, encoder, models and gate of an evaluation, each as the run would, and start nothing.

    Every row of the splits is read once, as the run would have to; each version that is not evaluated yet is loaded,
    which runs its author's code, and asked for the distributions of a few rows.

    Raises:
        CongruenceError: data, an encoder, a model's name or a gate with which no version could be evaluated.
    """
    plan = Plan(settings)
    if settings.gate is not None:
        from congruence.flows.operations.gate import require_baselines

        require_baselines(settings)
    result = Validation({}, protocol_name(plan.splits[0].protocol), notes=list(plan.said))
    for part in plan.splits:
        split, missing = part.split, part.settings.encoder.missing
        result.splits[split.name] = result.splits.get(split.name, 0) + split.rows
        said = split.require_measurable(settings.max_invalid, missing=missing)
        left_out = sum(part.rows for part in split.facts.left_out(missing))
        result.notes.extend(_about_rows(split, said, left_out))
        shown = require_pictures(split, settings.max_invalid, settings.encoder.max_pixels)
        result.notes.extend([] if shown is None else shown.splitlines())
        found = (CheckedVersion(item.label, split.name, item.status, item.error or "") for item in part.outcomes)
        result.versions.extend(found)
        result.versions.extend(_tried(part))
    return result


def _about_rows(split: Split, said: str | None, left_out: int) -> list[str]:
    """Rows that a run leaves out, and how little few rows can show."""
    notes = [] if said is None else said.splitlines()
    usable = split.rows - left_out
    if usable < FEW_ROWS:
        notes.append(
            f"split {split.name!r}: {usable} rows show gross faults at most; bring {FEW_ROWS} or more, 1,000 to see a "
            "spread that is wrong by a fifth"
        )
    total, squares = split.facts.weights
    if squares > 0.0:
        effective = total * (total / squares)
        notes.append(
            f"split {split.name!r}: weighted by {split.settings.weight!r}, its {split.rows:,} rows say as much as "
            f"{effective:,.0f} of equal weight"
        )
    return notes


def _tried(part: SplitPlan) -> list[CheckedVersion]:
    """Check the versions that are to be evaluated as the run would, and look at what they predict for some rows."""
    if not part.versions:
        return []
    split, settings = part.split, part.settings
    rows = CONTRACT_ROWS if split.settings.input_kind == "image" else MEAN_ROWS
    frame, targets = contract_rows(split, rows, missing=settings.encoder.takes_missing)
    tried = []
    for version in part.versions:
        try:
            served, report = checked_version(settings, split, version)
            warnings = [*report.warnings, *([] if split.settings.stored else _overridden(version, settings))]
            if targets is not None and targets.ndim == 1:
                warnings += about_targets(warm_model(served).predict(frame), targets)
            tried.append(CheckedVersion(version.label, split.name, "to do", report.family, tuple(warnings)))
        except CongruenceError as error:
            tried.append(CheckedVersion(version.label, split.name, "fails", str(error)))
    return tried


def _overridden(version: ModelVersion, settings: EvaluationSettings) -> list[str]:
    """Where the file reads the predictions otherwise than the version's own metadata say."""
    predictions = settings.entry_of(version.uri).predictions
    if predictions is None:
        return []
    own = settings_in(read_description(version).metadata, version.label)
    if own.family in (AUTO, predictions.family):
        return []
    return [
        f"predictions.family: the file says {predictions.family}, the version's own metadata {own.family}; "
        "the file's is used: leave predictions: out to use the version's"
    ]


def about_targets(predictive: Distribution, targets: Array) -> list[str]:
    """What some rows show of the mean of the predictions beside that of the targets, and of counts read as others."""
    said = []
    counts = bool(np.all(targets >= 0.0) and np.all(targets == np.round(targets)))
    if counts and len(np.unique(targets)) <= len(targets) / 5 and not predictive.is_discrete:
        said.append(
            f"the targets are counts, and {type(predictive).__name__} has a density between them: a family of counts "
            "(poisson, negative_binomial, ...) describes them"
        )
    observed, predicted = float(np.mean(targets)), float(np.mean(predictive.mean()))
    if np.all(targets >= 0.0) and observed > 0.0 and np.isfinite(predicted):
        ratio = predicted / observed
        doubt = "" if 2.0 / 3.0 < ratio < 1.5 else ": is an exposure missing, or another unit predicted?"
        said.append(f"mean prediction over mean target: {ratio:.3g} on {len(targets):,} rows{doubt}")
    return said


def print_validation(result: Validation) -> None:
    """Print what a run would do."""
    splits = ", ".join(f"'{name}' ({rows:,} rows)" for name, rows in result.splits.items())
    print_line(f"splits {splits}; protocol {result.protocol}")
    for note in result.notes:
        print_line(note)
    for version in result.versions:
        said = f": {version.said.removeprefix(f'{version.label}: ')}" if version.said else ""
        print_line(f"{version.status:<6} {version.label} on {version.split}{said}")
        for warning in version.warnings:
            print_line(f"       {warning}")
    counts = Counter(version.status for version in result.versions)
    words = {"to do": "to do", "found": "found", "left out": "left out", "fails": "fail" + "s" * (counts["fails"] == 1)}
    print_line("; ".join(f"{counts[status]} {word}" for status, word in words.items() if counts[status]))


ROWS = 2_000
_PURPOSE = "rows of a quick look"
SHARDS = 32
"""A sample is of rows from so many shards at the most: of a large split, only those are read."""


def quick(settings: EvaluationSettings, rows: int = ROWS) -> EvaluationSettings:
    """The evaluation on a random sample of ``rows`` rows of every split, without its gate.

    A sampled split is a file of its own in the home folder and is named ``<split>-quick``: its evaluations never meet
    those of the whole. The same split gives the same sample.

    Raises:
        CongruenceError: a split that cannot be opened.
    """
    settings = opened(settings)
    sampled = {
        "splits": [_sampled(split, settings, rows) for split in settings.splits],
        "reference": None if settings.reference is None else _sampled(settings.reference, settings, rows),
        "gate": None,
    }
    return settings.model_copy(update=sampled)


def _sampled(settings: SplitSettings, evaluation: EvaluationSettings, rows: int) -> SplitSettings:
    split = open_split(settings, evaluation.plans_folder)
    if split.rows <= rows:
        return settings
    named = sha256(f"{split.digest} {rows} {settings.model_dump_json()}".encode()).hexdigest()[:16]
    path = evaluation.home_folder / "quick" / f"{named}.parquet"
    return split_of_rows(split, _drawn(split, rows), path, f"{settings.name}-quick")


def _drawn(split: Split, rows: int) -> Array:
    """Numbers of rows drawn without replacement, ascending: from some shards; whole groups or stretches of time."""
    if (dependence := split.design().dependence()) is not None:
        return sample(dependence, rows, 0, _PURPOSE)
    draw = stream(0, _PURPOSE)
    places = np.sort(draw.choice(len(split.shards), size=min(SHARDS, len(split.shards)), replace=False))
    held = np.concatenate([np.arange(split.shards[place].start, split.shards[place].stop) for place in places])
    return np.sort(draw.choice(held, size=min(rows, len(held)), replace=False))
