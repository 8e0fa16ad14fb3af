"""The table of versions that a run ends with: on a terminal what one decides by, in a file or a pipe everything."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from congruence.flows.cli.console import results
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.scores.correction import percent
from congruence.tasks.scores.evaluation import PROPER, ranked
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.sentences.calibration import probability, significant

STATUS = {"evaluated": "evaluated now", "found": "evaluated before"}
MISSING = {"nll_mean": "none"}
"""Where others have the metric: an NLL is infinite or has no density, which stands below the table."""

SENTENCES = 2
"""Of what is wrong with a version, under the table."""

_HEADINGS = {"crps_skill": "skill", "cce_excess": "CCE beyond\nnoise"}


def print_outcomes(
    outcomes: list[VersionOutcome], descriptions: dict[str, str] | None = None, out: Console | None = None
) -> None:
    """Print one table per split, the best version first, what is wrong with each, then what failed."""
    out = out or results()
    for split in dict.fromkeys(outcome.split for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.split == split and outcome.status in STATUS]
        if rows:
            _print_table(split, rows, descriptions or {}, out)
            _print_wrong(rows, out)
    if said := order_of_versions(outcomes):
        out.print(said, soft_wrap=True, markup=False)
    for outcome in outcomes:
        if outcome.status not in STATUS:
            out.print(outcome.status, style="red" if outcome.status == "failed" else "yellow", end=" ")
            out.print(f"{outcome.label} on {outcome.split}: {outcome.error}", soft_wrap=True, markup=False)


def order_of_versions(outcomes: Sequence[VersionOutcome]) -> str:
    """Where splits order the versions differently: whether their numbers compare; "" where they agree."""
    orders: dict[str, tuple[str, ...]] = {}
    protocols: dict[str, str] = {}
    measured = _measured(outcomes)
    shared = set.intersection(*measured.values()) if measured else set()
    for split in measured:
        some = [item for item in outcomes if item.split == split and item.label in shared]
        found = ranked(some, lambda item: item.metrics)
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
    for outcome in ranked(outcomes, lambda item: item.metrics):
        if outcome.wrong:
            more = len(outcome.wrong) - SENTENCES
            rest = f" ({more} more in its report)" if more > 0 else ""
            said = Text(f"{outcome.label}: ", style="bold")
            said.append(" ".join(outcome.wrong[:SENTENCES]) + rest, style="not bold")
            out.print(Padding(said, (0, 0, 0, 2)))


def _print_table(split: str, outcomes: list[VersionOutcome], descriptions: dict[str, str], out: Console) -> None:
    """What a reader decides by on a terminal; every headline where the output goes to a file or a pipe."""
    proper = next((name for name in PROPER if any(name in item.metrics for item in outcomes)), "")
    names = [name for name in ("crps_skill", proper, "cce_excess") if any(name in item.metrics for item in outcomes)]
    if not out.is_terminal:
        names += [name for name in shown("headlines") if name not in (*names, "p_value")]
        names = [name for name in names if any(name in item.metrics for item in outcomes)]
    table = Table(title=f"split '{split}', protocol {outcomes[0].protocol}", title_justify="left")
    for name in ("version", *(["what it is"] if descriptions else []), "verdict"):
        table.add_column(name, overflow="fold")
    for name in names:
        table.add_column(_HEADINGS.get(name, metric_of(name).label), justify="right", overflow="fold")
    table.add_column("p", justify="right", no_wrap=True)
    if not out.is_terminal:
        table.add_column("status", no_wrap=True)
    for outcome in ranked(outcomes, lambda item: item.metrics):
        described = [descriptions.get(outcome.label, "")] if descriptions else []
        cells = [outcome.label, *described, outcome.verdict.short, *(_number(outcome, name) for name in names)]
        cells.append(probability(outcome.verdict.p_value))
        table.add_row(*cells, *([] if out.is_terminal else [STATUS[outcome.status]]))
    width = out.width
    if not out.is_terminal:
        out.width = max(width, _width(table, out))
    out.print(table)
    out.width = width
    if any("nll_mean" not in item.metrics for item in outcomes) and "nll_mean" in names:
        out.print("NLL none: a target was given no probability (an infinite NLL), or the predictions have no density")


def _width(table: Table, out: Console) -> int:
    """What the table would take without wrapping a cell."""
    return out.measure(table, options=out.options.update(width=10_000)).maximum


def _number(outcome: VersionOutcome, name: str) -> str:
    metric = outcome.metrics.get(name)
    if metric is None:
        return MISSING.get(name, "–")
    if name == "crps_skill":
        return percent(metric.value)
    if name != "cce_expected" or metric.low is None or metric.high is None:
        return significant(metric.value)
    return f"{significant(metric.value)} [{significant(metric.low)}, {significant(metric.high)}]"
