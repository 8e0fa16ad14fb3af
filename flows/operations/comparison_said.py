"""What is said of a comparison: as JSON, and in a terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from congruence.flows.cli.console import results
from congruence.flows.operations.compare import LoggedComparison
from congruence.kernels.score_parts import ScoreParts
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import CCE, MetricDifference, infinite_metrics
from congruence.tasks.comparison.versions import Comparison, PairedComparison
from congruence.tasks.comparison.who_won import ALL_ROWS, WhoWon, named_parts, recalibrated_label
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.sentences.calibration import probability, significant

_LARGEST = 5


def comparison_json(logged: LoggedComparison, file: str | None = None) -> dict[str, Any]:
    """A comparison as JSON: the numbers of each version, and each pair's differences; negative is better.

    Args:
        logged: the comparison.
        file: the evaluation file, which commands name.
    """
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
            label: {name: _plain(item) for name, item in pair.differences.items()}
            for label, pair in comparison.pairs.items()
        },
        "parts": {label: parts_json(pair.won) for label, pair in comparison.pairs.items() if pair.won is not None},
        "recalibrated": {
            label: {
                "command": _recalibrate_command(comparison, label, file),
                **{name: {"value": item.first, **_plain(item)} for name, item in found.items()},
            }
            for label, found in comparison.recalibrated.items()
        },
        "may_be_best": comparison.may_be_best,
        "best_p_values": comparison.best,
        "may_be_best_recalibrated": comparison.may_be_best_recalibrated,
        "faults": {version.label: list(version.wrong) for version in comparison.versions},
        "notes": list(comparison.notes),
        "run_id": logged.run_id,
        "place": logged.place,
    }


def _plain(item: MetricDifference) -> dict[str, Any]:
    return {"difference": item.difference, "low": item.low, "high": item.high, "p_value": item.p_value}


def _recalibrate_command(comparison: Comparison, label: str, file: str | None) -> str | None:
    """What makes a version of the registry as it would be when recalibrated; None of one that cannot be asked."""
    version = next(version for version in comparison.versions if version.label == label)
    if not version.model.version or version.is_stored:
        return None
    return f"congruence recalibrate {file or 'FILE'} --version {version.model.uri}"


def parts_json(won: WhoWon) -> dict[str, Any]:
    """What a difference of CRPS, and of the log score, owes to honesty and to knowledge, over all rows and by slice."""

    def plain(parts: ScoreParts) -> dict[str, Any]:
        return {"rows": parts.rows, **{name: vars(part) for name, part in named_parts(parts).items()}}

    def placed(places: dict[str, ScoreParts]) -> dict[str, Any]:
        slices = {name: plain(each) for name, each in places.items() if name != ALL_ROWS}
        return {**plain(places[ALL_ROWS]), "slices": slices}

    log_score = {"log_score": placed(won.scores["nll"])} if "nll" in won.scores else {}
    return {"sentence": won.sentence, **placed(won.scores["crps"]), **log_score}


def _may_be_best(comparison: Comparison) -> str:
    left, all_of_them = comparison.may_be_best, len(comparison.versions)
    if len(left) == all_of_them:
        said = f"Any of the {all_of_them} versions may be the best by CRPS (95 % confidence set)."
    elif len(left) == 1:
        said = f"{left[0]} is the best by CRPS (95 % confidence set)."
    else:
        said = f"May be the best by CRPS (95 % confidence set): {', '.join(left)}."
    if corrected := comparison.may_be_best_recalibrated:
        said += f" With those that recalibration would help, as they would be then: {'; '.join(corrected)}."
    return said


def print_comparison(
    logged: LoggedComparison, *, details: bool = True, chosen: bool = True, file: str | None = None
) -> None:
    """Print the versions by their metrics, what differs from the baseline beyond chance marked.

    Args:
        logged: the comparison.
        details: also each version's differences with their intervals, and the inputs on which two differ most.
        chosen: whether a person or a gate named the baseline; else it is the one that ranks first, and that is said.
        file: the evaluation file, which commands name.
    """
    comparison, out = logged.comparison, results()
    split, baseline = comparison.split, comparison.baseline
    out.print(
        f"split '{split.name}' ({split.digest[:12]}), protocol {baseline.protocol_name} ({baseline.protocol_digest})"
    )
    out.print(_overview(comparison))
    out.print(_how_to_read(comparison, chosen), soft_wrap=True, markup=False)
    for label, pair in comparison.pairs.items():
        if details:
            out.print(_against_baseline(label, pair))
            if pair.won is not None:
                out.print(_parts(label, pair.won))
        said = [] if pair.won is None else [pair.won.sentence]
        if pair.first.verdict.is_wrong and pair.first.wrong:
            said.append(f"{label}, by itself: {pair.first.wrong[0]}")
        if said:
            out.print(" ".join(said), soft_wrap=True, markup=False)
        if not details:
            continue
        rows = pair.largest.head(_LARGEST)
        changed = zip(rows["key"], rows["cce_difference"], strict=True)
        listed = ", ".join(f"{key} ({change:+.3g})" for key, change in changed)
        if listed:
            out.print(f"differs most in CCE on: {listed}", soft_wrap=True)
    if comparison.best:
        out.print(_may_be_best(comparison), soft_wrap=True, markup=False)
    for label in comparison.recalibrated:
        if (command := _recalibrate_command(comparison, label, file)) is not None:
            out.print(f"{label} is corrected by: {command}", soft_wrap=True, markup=False)
    for note in comparison.notes:
        out.print(note, soft_wrap=True, markup=False)
    more = "" if details else "; --details: every difference with its interval and p-value"
    out.print(f"report: comparison.html of {logged.place}{more}", soft_wrap=True)


def _how_to_read(comparison: Comparison, chosen: bool) -> str:
    label = comparison.baseline.label
    apart = any(version.split.digest != comparison.split.digest for version in comparison.versions)
    kind = "difference on different rows" if apart else "paired difference"
    said = f"+ worse, - better than {label}, beyond the 95 % interval of the {kind}"
    if chosen:
        return said
    leads = [pair.differences[CCE] for pair in comparison.pairs.values() if CCE in pair.differences]
    within = sum(item.low <= 0.0 <= item.high for item in leads)
    lead = f", though its lead in CCE over {within} of {len(leads)} others is within chance" if within else ""
    why = "it ranks first, by CRPS or NLL where these differ beyond noise, else by CCE"
    return f"{said}\n{label} is compared with because {why}{lead}; --baseline names another"


def _overview(comparison: Comparison) -> Table:
    names = [name for name in shown("compared") if any(name in version.metrics for version in comparison.versions)]
    table = Table()
    table.add_column("version")
    for name in names:
        table.add_column(metric_of(name).label, justify="right")
    for version in comparison.versions:
        pair = comparison.pairs.get(version.label)
        differences = {} if pair is None else pair.differences
        cells = [_cell(version, name, differences.get(name)) for name in names]
        table.add_row(f"{version.label} (baseline)" if pair is None else version.label, *cells)
    for label, found in comparison.recalibrated.items():
        known = {name: f"{significant(item.first)} {_mark(item)}" for name, item in found.items()}
        table.add_row(recalibrated_label(label), *(known.get(name, "–") for name in names))
    return table


def _cell(version: ComparedVersion, name: str, item: MetricDifference | None) -> str:
    """A metric with its mark; why there is none, where it is known."""
    if name not in version.metrics:
        return "infinite" if name in infinite_metrics(version.scores) else "–"
    return f"{significant(version.metrics[name].value)} {_mark(item)}"


def _mark(item: MetricDifference | None) -> str:
    return " " if item is None or item.low <= 0.0 <= item.high else "+" if item.low > 0.0 else "-"


def _parts(label: str, won: WhoWon) -> Table:
    title = f"why {label} differs: what it knows, how honest it is, what it would gain by recalibration"
    table = Table(title=title, title_justify="left")
    for name in ("score", "rows", "difference", "knowledge", "honesty", "would gain"):
        table.add_column(name, justify="left" if name in ("score", "rows") else "right")
    for score, places in won.scores.items():
        for place, parts in places.items():
            shown_parts = parts.total, parts.knowledge, parts.honesty, parts.gains[0]
            cells = [f"{part.value:+.3g} ({part.low:+.2g} to {part.high:+.2g})" for part in shown_parts]
            table.add_row(score.upper(), place, *cells)
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
        table.add_row(metric_of(name).label, f"{item.difference:+.3g}", interval, p_value, won)
    return table
