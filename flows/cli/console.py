"""What a command says to the person who runs it: lines and progress on standard error; the table of its versions.

The table has on a terminal what one decides by, in a file or a pipe everything.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from congruence.tasks.runtime.lines import LINE_SECONDS, LOGGER, Advance, Lines, is_json, with_file
from congruence.tasks.scores.evaluation import PROPER, ranked
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.sentences.calibration import percent, probability, significant

if TYPE_CHECKING:  # `list` prints tables, too, and plans nothing
    from congruence.tasks.evaluate.plan import VersionOutcome

LOG_WIDTH = 160
"""Characters of a line where standard output is no terminal."""

console = Console(stderr=True, highlight=False)


def results() -> Console:
    """Where results are printed: as wide as the terminal, or as a line of a log."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


def print_line(text: str) -> None:
    """Print a line of results, as it stands and as long as it is."""
    results().print(with_file(text), soft_wrap=True, markup=False)


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: Collection[str], title: str = ""
) -> Table:
    """A table of texts: columns of ``words`` stand at the left, those of numbers at the right."""
    table = Table(title=title or None, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    return table


_last_said = time.monotonic()

on_page: ContextVar[logging.Logger | logging.LoggerAdapter[Any] | None] = ContextVar("on_page", default=None)
"""The logger of the run in Prefect whose page shows the lines, where a server has started it and nobody sees them."""


def say(line: str) -> None:
    """Show a line among the stages. (A flow that names the console itself could not be sent to a worker.)"""
    global _last_said
    _last_said = time.monotonic()
    if is_json():
        logging.getLogger(LOGGER).info("%s", line)
    elif (page := on_page.get()) is not None:
        page.info("%s", line)
    else:
        console.print(line, soft_wrap=True, markup=False)


_LOOK_SECONDS = 0.5

Detail = Callable[[], str]


@contextmanager
def stage(
    title: str, total: int, unit: str = "rows", found: int = 0, detail: Detail | None = None, at_once: int = 1
) -> Iterator[Advance]:
    """Shows how far a stage of ``total`` units is; the value is called with the number of units just done.

    In a log there is a line at least every 5 s, of the stage or of a step of it (``detail``, asked only where nothing
    else was said), also while no unit is done. No rate and no forecast counts units that were ``found`` done before;
    ``at_once`` are worked on at a time: when the first ends, so many are about to.
    """
    if console.is_terminal and not is_json():
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(title, total=total)
            bar.advance(task, found)
            yield lambda done: bar.advance(task, done)
    else:
        lines = Lines(title, total, unit, say, found, at_once=at_once)
        with _never_silent(lines, detail):
            yield lines.advance


@contextmanager
def _never_silent(lines: Lines, detail: Detail | None) -> Iterator[None]:
    """Has ``lines`` say how far they are where nobody has said anything for 5 s."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if time.monotonic() - _last_said >= LINE_SECONDS - _LOOK_SECONDS:
                lines.remind("" if detail is None else detail())

    thread = Thread(target=copy_context().run, args=(watch,), daemon=True, name="progress")  # with fields of log lines
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
        out.print(with_file(said), soft_wrap=True, markup=False)
    for outcome in outcomes:
        if outcome.status not in STATUS:
            out.print(outcome.status, style="red" if outcome.status == "failed" else "yellow", end=" ")
            out.print(with_file(outcome.why_not), soft_wrap=True, markup=False)


def order_of_versions(outcomes: Sequence[VersionOutcome]) -> str:
    """Where splits order the versions differently: whether their numbers compare; "" where they agree."""
    measured: dict[str, dict[str, VersionOutcome]] = {}  # by split and label
    for item in outcomes:
        if "cce_mean" in item.metrics:
            measured.setdefault(item.split, {})[item.label] = item
    shared = set.intersection(*map(set, measured.values())) if measured else set()
    orders: dict[str, list[str]] = {}
    for split, found in measured.items():
        some = [item for label, item in found.items() if label in shared]
        orders[split] = [item.label for item in ranked(some)]
    if len(shared) < 2 or len(set(map(tuple, orders.values()))) < 2:
        return ""
    protocols = {item.protocol for found in measured.values() for item in found.values()}
    listed = "; ".join(f"on {split}: {', '.join(order)}" for split, order in orders.items())
    if len(protocols) > 1:
        return (
            f"The splits order the versions differently ({listed}), and their protocols differ: the numbers of one do "
            "not compare with those of another; give mean and scale under encoder:, so that all have the same"
        )
    return (
        f"The splits order the versions differently ({listed}). Their protocol is the same, so each order holds for "
        "its rows; `congruence compare FILE` says which leads are beyond chance"
    )


def _print_wrong(outcomes: list[VersionOutcome], out: Console) -> None:
    """What is wrong with each version, in its first sentences, as wide as the terminal."""
    for outcome in ranked(outcomes):
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
    alike: dict[str, list[str]] = {}
    for outcome in ranked(outcomes):
        alike.setdefault(outcome.statement, []).append(outcome.label)
    for outcome in ranked(outcomes):
        described = [descriptions.get(outcome.label, "")] if descriptions else []
        cells = [outcome.label, *described, outcome.verdict.short, *(_number(outcome, name) for name in names)]
        cells.append(probability(outcome.verdict.p_value))
        ends = outcome.label == alike[outcome.statement][-1]
        table.add_row(*cells, *([] if out.is_terminal else [STATUS[outcome.status]]), end_section=ends)
    width = out.width
    if not out.is_terminal:
        out.width = max(width, out.measure(table, options=out.options.update(width=10_000)).maximum)
    out.print(table)
    out.width = width
    if any("nll_mean" not in item.metrics for item in outcomes) and "nll_mean" in names:
        out.print("NLL none: a target was given no probability (an infinite NLL), or the predictions have no density")
    if len(alike) > 1:
        listed = "; ".join(f"{statement} ({', '.join(labels)})" for statement, labels in alike.items())
        said = f"CRPS, skill and ECE compare only among versions that state the same: {listed}"
        out.print(said, soft_wrap=True, markup=False)
    counted = {item.label: item.verdict.rows for item in outcomes if item.verdict.rows}
    if len(set(counted.values())) > 1:
        listed = ", ".join(f"{label}: {count:,}" for label, count in counted.items())
        said = f"Judged on different rows ({listed}): part of a difference may come from the rows"
        out.print(f"{said}; `congruence compare` allows for it", soft_wrap=True, markup=False)


def _number(outcome: VersionOutcome, name: str) -> str:
    metric = outcome.metrics.get(name)
    if metric is None:
        return MISSING.get(name, "–")
    if name == "crps_skill":
        return percent(metric.value)
    if name != "cce_expected" or metric.low is None or metric.high is None:
        return significant(metric.value)
    return f"{significant(metric.value)} [{significant(metric.low)}, {significant(metric.high)}]"
