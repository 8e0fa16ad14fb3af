"""What GitHub Actions shows of a gate: annotations at the evaluation file, and a table in the step's summary."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from congruence.tasks.comparison.gate import GateCheck, GateDecision, worst
from congruence.tasks.evaluate.plan import VersionOutcome

SUMMARY = "GITHUB_STEP_SUMMARY"
_LEVELS = {"failed": "error", "undecided": "warning", "passed": "notice"}
_HEAD = "| | rule | value | limit | difference [95 %] | why |\n|---|---|---|---|---|---|"
_MARKS = {"failed": "❌ failed", "undecided": "❔ undecided", "passed": "✅ passed"}


def annotation_lines(
    decisions: Iterable[GateDecision], file: Path, outcomes: Iterable[VersionOutcome] = ()
) -> list[str]:
    """One for each version, and one for each that was not evaluated on a split."""
    found = [
        annotation("error", f"not evaluated: {item.label} on {item.split}", item.error or "no reason given", file)
        for item in outcomes
        if item.status == "failed"
    ]
    for decision in decisions:
        title = f"gate {decision.outcome}: {decision.candidate.label}"
        lines = [*decision.reasons, *decision.notes]
        found.append(annotation(_LEVELS[decision.outcome], title, "\n".join(lines), file))
    return found


def summary(decisions: Sequence[GateDecision], outcomes: Iterable[VersionOutcome] = ()) -> str:
    """The decisions in GitHub's Markdown: each version's rules, the failed ones first."""
    missing = [item for item in outcomes if item.status == "failed"]
    whole = "failed" if missing else worst(decision.outcome for decision in decisions)
    parts = [f"## Gate: {_MARKS[whole]}" if decisions or missing else "## Gate: no version was judged"]
    parts += [f"{_MARKS['failed']}: {item.label} was not evaluated on {item.split}: {item.error}" for item in missing]
    for decision in decisions:
        against = "" if decision.baseline is None else f", against {decision.baseline.label}"
        parts.append(f"### {_MARKS[decision.outcome]}: {decision.candidate.label}{against}")
        rows = [_row(check) for check in decision.sorted_checks]
        parts.append("\n".join([_HEAD, *rows]))
        parts += [f"- {note}" for note in decision.notes]
        if decision.place is not None:
            parts.append(f"All rules: {decision.place}")
    return "\n\n".join(parts) + "\n"


def _row(check: GateCheck) -> str:
    difference = f"{_number(check.difference)} {_interval(check)}" if check.difference is not None else ""
    value = _number(check.value) if difference else f"{_number(check.value)} {_interval(check)}"
    cells = [_MARKS[check.outcome], check.rule, value.strip(), _number(check.limit), difference, check.reason]
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _interval(check: GateCheck) -> str:
    return "" if check.low is None or check.high is None else f"[{check.low:.3g}, {check.high:.3g}]"


def show(decisions: Sequence[GateDecision], file: Path, outcomes: Sequence[VersionOutcome] = ()) -> None:
    """Print the annotations, and append the summary to the step's, or print it where no step has one."""
    for line in annotation_lines(decisions, file, outcomes):
        print(line, flush=True)
    text = summary(decisions, outcomes)
    if target := os.environ.get(SUMMARY):
        with Path(target).open("a", encoding="utf-8") as written:
            written.write(text)
    else:
        print(text, flush=True)


def annotation(level: str, title: str, message: str, file: Path) -> str:
    """``::error file=...,line=...,title=...::message`` at the ``gate:`` of an evaluation file.

    Source: GitHub Docs, "Workflow commands for GitHub Actions"; what would end a part of the line is escaped.
    """
    properties = {"file": _in_the_checkout(file), "line": str(_line_of_the_gate(file)), "title": title}
    written = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{level} {written}::{_escaped(message)}"


def _escaped(text: str, separators: str = "") -> str:
    for character in "%\r\n" + separators:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _in_the_checkout(file: Path) -> str:
    """Relative to the repository, where GitHub looks for it."""
    root = Path(os.environ.get("GITHUB_WORKSPACE", ".")).resolve()
    path = file.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(file)


def _line_of_the_gate(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return 1
    return next((number for number, line in enumerate(lines, 1) if line.startswith("gate:")), 1)
