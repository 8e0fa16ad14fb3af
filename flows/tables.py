"""The table of versions that a run ends with."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from congruence.flows.evaluate import VersionOutcome

_COLUMNS = {
    "cce_mean": "CCE",
    "cce_noise_floor": "noise floor",
    "cce_excess": "excess",
    "cce_p_value": "p",
    "ece": "ECE",
    "nll_mean": "NLL",
    "crps_mean": "CRPS",
    "mae": "MAE",
}


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
    present = [name for name in _COLUMNS if any(name in outcome.metrics for outcome in outcomes)]
    for name in present:
        table.add_column(_COLUMNS[name], justify="right")
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
    return "" if metric is None else f"{metric.value:.4f}" if abs(metric.value) < 10 else f"{metric.value:.2f}"
