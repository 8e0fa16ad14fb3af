"""Logging a comparison of versions to MLflow."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.comparison.versions import Comparison
from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.mlflow.logged_run import RunContent, log_once
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.tables import table_json
from congruence.tasks.scores.meanings import probability

COMPARISON_FILE = "comparison.html"


def log_comparison(comparison: Comparison, settings: TrackingSettings) -> str:
    """Log a comparison beside the split's evaluations and return its run id; the same comparison is logged once."""
    split, baseline = comparison.split, comparison.baseline
    identity = {
        "versions": sorted(version.run_id or version.model.uri for version in comparison.versions),
        "baseline": baseline.label,
        "split": split.digest,
        "protocol": baseline.protocol_digest,
        "resamples": comparison.resamples,
        "seed": comparison.seed,
        "method": "CCE by the influence of the reference rows",
    }
    tags = {
        PREFIX + "kind": "comparison",
        PREFIX + "split": split.name,
        PREFIX + "split_digest": split.digest,
        PREFIX + "protocol_digest": baseline.protocol_digest,
    }
    name = f"{len(comparison.versions)} versions on {split.name}, against {baseline.label}"
    experiment = settings.comparison_experiment_name(split.name)
    run = log_once(experiment, name, identity, tags, partial(_content, comparison), settings)
    return str(run.info.run_id)


def _content(comparison: Comparison, folder: Path) -> RunContent:
    params = {
        "split": comparison.split.name,
        "split_digest": comparison.split.digest,
        "protocol_digest": comparison.baseline.protocol_digest,
        "baseline": comparison.baseline.label,
        "resamples": comparison.resamples,
        "seed": comparison.seed,
    }
    metrics = {
        f"{_metric_name(label)}/{name}{suffix}": value
        for label, pair in comparison.pairs.items()
        for name, item in pair.differences.items()
        for suffix, value in (
            ("_difference", item.difference),
            ("_difference_low", item.low),
            ("_difference_high", item.high),
            ("_p_value", item.p_value),
        )
        if value is not None
    }
    tables = _write(comparison, folder)
    return RunContent(params, metrics, tables, _note(comparison), [(path, None) for path in sorted(folder.iterdir())])


def _write(comparison: Comparison, folder: Path) -> dict[str, str]:
    """Write report and plot of a comparison under ``folder``; returns the small tables by name."""
    # Loaded here: Matplotlib and scikit-learn are of no use to a comparison that is refused.
    from congruence.tasks.plots.evaluation import versions_figure
    from congruence.tasks.plots.style import png
    from congruence.tasks.report.comparison import comparison_report

    figure = png(versions_figure({version.label: version.metrics for version in comparison.versions}))
    (folder / "versions.png").write_bytes(figure)
    (folder / COMPARISON_FILE).write_text(comparison_report(comparison))
    tables = {"versions.json": comparison.table()}
    for label, pair in list(comparison.pairs.items())[:20]:
        tables[f"{_metric_name(label)}-differences.json"] = pair.table()
        tables[f"{_metric_name(label)}-points.json"] = pair.largest
    return {name: table_json(table) for name, table in tables.items()}


def _note(comparison: Comparison) -> str:
    baseline = comparison.baseline
    lines = [
        f"{len(comparison.versions)} versions on **{comparison.split.name}** (protocol `{baseline.protocol_digest}`), "
        f"each against **{baseline.label}** on the same points. Read `{COMPARISON_FILE}` first.",
        "",
        "| version | mean CCE | difference [95 % interval] | difference of squared CCE [95 % interval] | p |",
        "|---|---|---|---|---|",
    ]
    for version in comparison.versions:
        mean = version.metrics.get("cce_mean")
        found = comparison.pairs[version.label].differences if version is not baseline else {}
        cells = [_cell(found.get("cce_mean")), _cell(found.get("cce_squared_mean"))]
        squared = found.get("cce_squared_mean")
        cells.append("-" if squared is None else probability(squared.p_value))
        lines.append(" | ".join(["| " + version.label, f"{mean.value:.4g}" if mean else "-", *cells]) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in comparison.notes)])


def _cell(item: MetricDifference | None) -> str:
    return "-" if item is None else f"{item.difference:+.3g} [{item.low:+.3g}, {item.high:+.3g}]"


def _metric_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
