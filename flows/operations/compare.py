"""`congruence compare`: evaluated versions side by side on one split, each against a baseline, on the same rows.

Reads logged evaluations and computes for seconds, so it runs as a plain function and needs no Prefect server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from congruence.flows.cli.console import results
from congruence.flows.cli.environment import tracking_uri
from congruence.flows.cli.options import open_file, start
from congruence.flows.evaluation.keys import file_conditions
from congruence.flows.evaluation.tracking import use_tracking
from congruence.kernels.resampling.paired import RESAMPLES
from congruence.tasks.comparison import Comparison, PairedComparison, compare_versions
from congruence.tasks.mlflow import (
    Conditions,
    TrackingSettings,
    comparable_versions,
    log_comparison,
    logged_versions,
    place_of,
)
from congruence.tasks.models.registry import ModelVersion, select
from congruence.tasks.recalibration.rows import has_seen
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.mlflow_database import point_mlflow_at
from congruence.tasks.scores.meanings import COMPARED, meaning, probability

_LARGEST = 5


@dataclass(frozen=True)
class LoggedComparison:
    """A comparison, the MLflow run that holds its report and tables, and where people find that run."""

    comparison: Comparison
    run_id: str
    place: str


@dataclass(frozen=True)
class ComparisonRequest:
    """What a command line asks to compare: on which splits under what, versions, and where these are logged."""

    conditions: dict[str, Conditions]
    models: list[str]
    tracking: TrackingSettings
    seed: int = 0


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
        names = [part.name for part in settings.splits]
        if split is not None and split not in names:
            raise SettingsError(f"--split: {arguments[0]} has no split '{split}'; it has {', '.join(names)}")
        models = list(arguments[1:]) or settings.models
        conditions = file_conditions(settings, protocol_digest=protocol_digest)
        chosen = conditions if split is None else {split: conditions[split]}
        return ComparisonRequest(chosen, models, settings.tracking, settings.seed)
    if split is None:
        raise SettingsError("give an evaluation file, or --split NAME: which split are the versions to be compared on?")
    point_mlflow_at(tracking_uri(start(home)))
    return ComparisonRequest({split: Conditions(protocol_digest=protocol_digest)}, list(arguments), TrackingSettings())


def compare(
    split: str,
    models: Sequence[str],
    tracking: TrackingSettings,
    *,
    baseline: str | None = None,
    conditions: Conditions | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> LoggedComparison:
    """Compare versions on the split of this name and log the comparison.

    Args:
        split: the split's name.
        models: versions as ``select`` reads them; none means every version evaluated on the split.
        tracking: where evaluations are logged; MLflow must point there.
        baseline: the version to compare with; the one of lowest CCE by default.
        conditions: compare evaluations under these, for example a file's; what they leave open is the latest content
            of the split and the latest protocol that all versions share.
        resamples: of the bootstrap and of the permutation test of the metrics other than CCE.
        seed: of both.

    Raises:
        ProtocolError: the versions were measured on other splits or under other protocols.
        RegistryError: a version that is not in the registry.
        TrackingError: a version that was not evaluated.
    """
    if models:
        chosen = _distinct([version for pattern in models for version in select(pattern)])
        against = _only(baseline) if baseline is not None else None
        if against is not None:
            chosen = _distinct([*chosen, against])
        digest = "" if conditions is None else conditions.split_digest or ""
        chosen = [version for version in chosen if not has_seen(version, digest)]
        versions = comparable_versions(split, chosen, tracking, conditions=conditions or Conditions())
    else:
        against = _only(baseline) if baseline is not None else None
        versions = logged_versions(split, tracking, conditions=conditions)
    label = against.label if against is not None else None
    comparison = compare_versions(versions, baseline=label, resamples=resamples, seed=seed)
    run_id = log_comparison(comparison, tracking)
    return LoggedComparison(comparison, run_id, place_of(run_id, tracking))


def _distinct(versions: list[ModelVersion]) -> list[ModelVersion]:
    return list({version.uri: version for version in versions}.values())


def _only(pattern: str) -> ModelVersion:
    return select(pattern)[-1]


def comparison_json(logged: LoggedComparison) -> dict[str, Any]:
    """A comparison as JSON: the numbers of each version, and each pair's differences; negative is better."""
    comparison = logged.comparison
    return {
        "split": comparison.split.name,
        "protocol": f"{comparison.baseline.protocol_name} ({comparison.baseline.protocol_digest})",
        "baseline": comparison.baseline.label,
        "versions": {
            version.label: {name: metric.value for name, metric in version.metrics.items()}
            for version in comparison.versions
        },
        "differences": {
            label: {
                name: {"difference": item.difference, "low": item.low, "high": item.high, "p_value": item.p_value}
                for name, item in pair.differences.items()
            }
            for label, pair in comparison.pairs.items()
        },
        "changes": {label: list(pair.changes) for label, pair in comparison.pairs.items()},
        "notes": list(comparison.notes),
        "run_id": logged.run_id,
        "place": logged.place,
    }


def print_comparison(logged: LoggedComparison) -> None:
    """Print the versions, each one's differences from the baseline, and the inputs on which they differ most."""
    comparison, out = logged.comparison, results()
    split, baseline = comparison.split, comparison.baseline
    out.print(
        f"split '{split.name}' ({split.digest[:12]}), protocol {baseline.protocol_name} ({baseline.protocol_digest})"
    )
    out.print(_overview(comparison))
    for label, pair in comparison.pairs.items():
        out.print(_against_baseline(label, pair))
        for sentence in pair.changes:
            out.print(sentence, soft_wrap=True, markup=False)
        rows = pair.largest.head(_LARGEST)
        changed = zip(rows["key"], rows["cce_difference"], strict=True)
        listed = ", ".join(f"{key} ({change:+.3g})" for key, change in changed)
        out.print(f"differs most in CCE on: {listed}", soft_wrap=True)
    for note in comparison.notes:
        out.print(note, soft_wrap=True, markup=False)
    out.print(f"report: comparison.html of {logged.place}", soft_wrap=True)


def _overview(comparison: Comparison) -> Table:
    names = [name for name in COMPARED if any(name in version.metrics for version in comparison.versions)]
    table = Table()
    table.add_column("version")
    for name in names:
        table.add_column(meaning(name).label, justify="right")
    for version in comparison.versions:
        cells = [f"{version.metrics[name].value:.4g}" if name in version.metrics else "" for name in names]
        table.add_row(version.label, *cells)
    return table


def _against_baseline(label: str, pair: PairedComparison) -> Table:
    title = f"{label} against {pair.second.label}, {pair.rows:,} points; negative is better"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for name in ("difference", "95 % interval", "p", "points won:lost"):
        table.add_column(name, justify="right")
    for name, item in pair.differences.items():
        points = pair.points.get(name)
        won = "" if points is None else f"{points.won}:{points.lost}"
        p_value = "" if item.p_value is None else probability(item.p_value)
        interval = f"{item.low:+.3g} to {item.high:+.3g}"
        table.add_row(meaning(name).label, f"{item.difference:+.4g}", interval, p_value, won)
    return table
