"""The table of versions that a run ends with."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from congruence.flows.outcomes import VersionOutcome
from congruence.tasks.scores.meanings import HEADLINES, meaning, significant


def print_outcomes(outcomes: list[VersionOutcome], descriptions: dict[str, str] | None = None) -> None:
    """Print one table per split, best CCE first, then what failed."""
    out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for split in dict.fromkeys(outcome.split for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.split == split and outcome.status != "failed"]
        if rows:
            out.print(_table(split, rows, descriptions or {}))
    for outcome in outcomes:
        if outcome.status == "failed":
            out.print(f"[red]failed[/red] {outcome.label} on {outcome.split}: {outcome.error}", soft_wrap=True)


def _table(split: str, outcomes: list[VersionOutcome], descriptions: dict[str, str]) -> Table:
    table = Table(title=f"split '{split}', protocol {outcomes[0].protocol}", title_justify="left")
    table.add_column("version")
    if descriptions:
        table.add_column("what it is")
    present = [name for name in HEADLINES if any(name in outcome.metrics for outcome in outcomes)]
    for name in present:
        table.add_column(meaning(name).label, justify="right")
    table.add_column("")
    for outcome in sorted(outcomes, key=_by_error):
        cells = [_number(outcome, name) for name in present]
        described = [descriptions.get(outcome.label, "")] if descriptions else []
        table.add_row(outcome.label, *described, *cells, "" if outcome.status == "evaluated" else outcome.status)
    return table


def _by_error(outcome: VersionOutcome) -> float:
    metric = outcome.metrics.get("cce_mean")
    return metric.value if metric is not None else float("inf")


def _number(outcome: VersionOutcome, name: str) -> str:
    metric = outcome.metrics.get(name)
    if metric is None:
        return ""
    if name != "cce_expected" or metric.low is None or metric.high is None:
        return significant(metric.value)
    return f"{significant(metric.value)} [{significant(metric.low)}, {significant(metric.high)}]"
