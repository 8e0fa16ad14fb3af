"""The table of versions that a run ends with, as wide as the terminal and no wider."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from congruence.flows.cli.console import results
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.scores.verdict import significant

STATUS = {"evaluated": "evaluated now", "found": "evaluated before"}
MISSING = {"nll_mean": "none"}
"""Where others have the metric: an NLL is infinite or has no density, which stands below the table."""

SENTENCES = 2
"""Of what is wrong with a version, under the table."""

_NARROW_STATUS = {"evaluated": "new", "found": "found"}


def print_outcomes(
    outcomes: list[VersionOutcome], descriptions: dict[str, str] | None = None, out: Console | None = None
) -> None:
    """Print one table per split, best CCE first, what is wrong with each version, then what failed.

    Metrics for which the terminal has no room are left out, the least important first, and named below.
    """
    out = out or results()
    for split in dict.fromkeys(outcome.split for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.split == split and outcome.status in STATUS]
        if rows:
            _print_fitting(split, rows, descriptions or {}, out)
            _print_wrong(rows, out)
    if said := order_of_versions(outcomes):
        out.print(said, soft_wrap=True, markup=False)
    for outcome in outcomes:
        if outcome.status not in STATUS:
            out.print(outcome.status, style="red" if outcome.status == "failed" else "yellow", end=" ")
            out.print(f"{outcome.label} on {outcome.split}: {outcome.error}", soft_wrap=True, markup=False)


def order_of_versions(outcomes: Sequence[VersionOutcome]) -> str:
    """Where splits order the versions differently by CCE: whether their numbers compare; "" where they agree."""
    orders: dict[str, tuple[str, ...]] = {}
    protocols: dict[str, str] = {}
    measured = _measured(outcomes)
    shared = set.intersection(*measured.values()) if measured else set()
    for split in measured:
        found = sorted((item for item in outcomes if item.split == split and item.label in shared), key=_by_error)
        orders[split], protocols[split] = tuple(item.label for item in found), found[0].protocol if found else ""
    if len(shared) < 2 or len(set(orders.values())) < 2:
        return ""
    listed = "; ".join(f"on {split}: {', '.join(order)}" for split, order in orders.items())
    if len(set(protocols.values())) > 1:
        return (
            f"The splits order the versions differently ({listed}), and their protocols differ: the numbers of one do "
            "not compare with those of another; give mean and scale under encoder:, so that all have the same"
        )
    return (
        f"The splits order the versions differently ({listed}). Their protocol is the same, so each order holds for "
        "its rows; `congruence compare FILE` says which leads are beyond chance"
    )


def _measured(outcomes: Sequence[VersionOutcome]) -> dict[str, set[str]]:
    """The versions with a CCE, by split; splits with none are left out."""
    found: dict[str, set[str]] = {}
    for item in outcomes:
        if "cce_mean" in item.metrics:
            found.setdefault(item.split, set()).add(item.label)
    return found


def _print_wrong(outcomes: list[VersionOutcome], out: Console) -> None:
    """What is wrong with each version, in its first sentences, as wide as the terminal."""
    for outcome in sorted(outcomes, key=_by_error):
        if outcome.wrong:
            more = len(outcome.wrong) - SENTENCES
            rest = f" ({more} more in its report)" if more > 0 else ""
            said = Text(f"{outcome.label}: ", style="bold")
            said.append(" ".join(outcome.wrong[:SENTENCES]) + rest, style="not bold")
            out.print(Padding(said, (0, 0, 0, 2)))


def _print_fitting(split: str, outcomes: list[VersionOutcome], descriptions: dict[str, str], out: Console) -> None:
    present = [name for name in shown("headlines") if any(name in outcome.metrics for outcome in outcomes)]
    fewest = min(1, len(present))
    for kept, words in product(range(len(present), fewest - 1, -1), (STATUS, _NARROW_STATUS)):
        table = _table(split, outcomes, descriptions, present[:kept], words)
        if _width(table, out) <= out.width:
            break
    out.print(table)
    if any("nll_mean" not in item.metrics for item in outcomes) and "nll_mean" in present[:kept]:
        out.print("NLL none: a target was given no probability (an infinite NLL), or the predictions have no density")
    if left := present[kept:]:
        names = ", ".join(metric_of(name).label for name in left)
        out.print(f"no room for {names}: see MLflow, or --json", soft_wrap=True, markup=False)


def _width(table: Table, out: Console) -> int:
    """What the table would take without wrapping a cell."""
    return out.measure(table, options=out.options.update(width=10_000)).maximum


def _table(
    split: str,
    outcomes: list[VersionOutcome],
    descriptions: dict[str, str],
    metrics: Sequence[str],
    words: dict[str, str],
) -> Table:
    table = Table(title=f"split '{split}', protocol {outcomes[0].protocol}", title_justify="left")
    table.add_column("version", overflow="fold")
    if descriptions:
        table.add_column("what it is", overflow="fold")
    for name in metrics:
        table.add_column(metric_of(name).label, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for outcome in sorted(outcomes, key=_by_error):
        cells = [_number(outcome, name) for name in metrics]
        described = [descriptions.get(outcome.label, "")] if descriptions else []
        said = (outcome.verdict.short, words.get(outcome.status, outcome.status))
        table.add_row(outcome.label, *described, *cells, *said)
    return table


def _by_error(outcome: VersionOutcome) -> float:
    metric = outcome.metrics.get("cce_mean")
    return metric.value if metric is not None else float("inf")


def _number(outcome: VersionOutcome, name: str) -> str:
    metric = outcome.metrics.get(name)
    if metric is None:
        return MISSING.get(name, "–")
    if name != "cce_expected" or metric.low is None or metric.high is None:
        return significant(metric.value)
    return f"{significant(metric.value)} [{significant(metric.low)}, {significant(metric.high)}]"
