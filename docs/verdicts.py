"""The page of verdicts: what `make papers` came to when it was last run, from ``docs/papers/outcomes.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

KEPT = Path(__file__).parent / "papers"
OUTCOMES = KEPT / "outcomes.json"
_ONE_PANEL = 700


def page() -> str:
    """The summary and a section for each experiment, in Markdown."""
    outcomes = [{"name": name, **outcome} for name, outcome in json.loads(OUTCOMES.read_text()).items()]
    claims = [claim for outcome in outcomes for claim in outcome["claims"]]
    hold = sum(claim["holds"] for claim in claims)
    seconds = [outcome["processor_seconds"] for outcome in outcomes]
    longest = max(outcomes, key=lambda outcome: outcome["processor_seconds"])
    head = (
        f"**{hold} of {len(claims)} claims hold here.** {sum(seconds) / 60:.0f} minutes of one core in all, "
        f"{max(seconds):.0f} s for the longest (`{longest['name']}`); seed {outcomes[0]['seed']}.\n\n"
        "| experiment | paper | claims that hold | processor seconds |\n|---|---|---|---|\n"
    )
    rows = [
        f"| [{outcome['title']}](#{outcome['name']}) | {outcome['paper']} | {_holding(outcome)} of "
        f"{len(outcome['claims'])} | {outcome['processor_seconds']:.0f} |"
        for outcome in outcomes
    ]
    return head + "\n".join(rows) + "\n\n" + "\n".join(_section(outcome) for outcome in outcomes)


def _holding(outcome: dict[str, Any]) -> int:
    return sum(claim["holds"] for claim in outcome["claims"])


def _section(outcome: dict[str, Any]) -> str:
    name = outcome["name"]
    lines = [f"## {outcome['title']} {{ #{name} }}\n", f"`python docs/papers {name}`\n"]
    for claim in outcome["claims"]:
        verdict = "Holds" if claim["holds"] else "Differs"
        lines.append(f"- **{verdict}:** {claim['claim']} <small>({claim['source']})</small><br>")
        lines.append(f"  {_sentence(claim['found'])}")
    lines.append("")
    lines += [_figure(f"{name}-{figure}.png", f"{outcome['title']}: {figure}") for figure in outcome["figures"]]
    lines += [_numbers(outcome["table"])] if outcome["table"] else []
    lines += [f"*{note}*\n" for note in outcome["notes"]]
    return "\n".join(lines)


def _figure(file: str, said: str) -> str:
    """A picture; one of several panels keeps its width on a narrow screen, where it scrolls."""
    with Image.open(KEPT / file) as image:
        wide = image.width > _ONE_PANEL
    shown = f"![{said}](papers/{file})\n"
    return f'<div class="panels" markdown>\n\n{shown}\n</div>\n' if wide else shown


def _numbers(table: list[dict[str, Any]]) -> str:
    rows = [list(table[0]), ["---"] * len(table[0]), *([_cell(value) for value in row.values()] for row in table)]
    message = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"<details markdown>\n<summary>The numbers</summary>\n\n{message}\n\n</details>\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _sentence(found: str) -> str:
    text = found.replace("<", "&lt;").replace("*", "\\*")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
