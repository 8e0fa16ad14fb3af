"""The page of verdicts: what `congruence reproduce all` came to when it was last kept.

``python docs/verdicts.py FOLDER`` keeps it. FOLDER is `reproduce` in the home folder of a full run; its outcomes become
``docs/papers/outcomes.json``, its figures lie beside it in few colours.
"""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from congruence.flows.reproduce.experiments import NAMES

KEPT = Path(__file__).parent / "papers"
OUTCOMES = KEPT / "outcomes.json"
_COLORS = 64
_WIDTH = 1200
_ONE_PANEL = 700
_MOST_ROWS, _MOST_COLUMNS = 24, 14  # of a table that the page shows


def keep(folder: Path) -> None:
    """Take over the outcomes and figures of a full run of all experiments.

    Raises:
        SystemExit: an experiment is missing, or was run at quick sizes.
    """
    found = []
    for name in NAMES:
        record = folder / name / "outcome.json"
        if not record.exists():
            raise SystemExit(f"{record} is missing: run `congruence reproduce {name} --data FOLDER`")
        outcome = json.loads(record.read_text())
        if outcome["quick"]:
            raise SystemExit(f"{record} is of quick sizes: run `congruence reproduce {name}`")
        table = pd.read_csv(folder / name / "table.csv")
        outcome["table"] = json.loads(table.to_json(orient="records", double_precision=6)) if _fits(table) else []
        found.append(outcome)
    for old in KEPT.glob("*.png"):
        old.unlink()
    KEPT.mkdir(exist_ok=True)
    for outcome in found:
        for figure in outcome["figures"]:
            picture = (folder / outcome["name"] / f"{figure}.png").read_bytes()
            (KEPT / f"{outcome['name']}-{figure}.png").write_bytes(_small(picture))
    OUTCOMES.write_text(json.dumps(found, indent=1) + "\n")


def _fits(table: pd.DataFrame) -> bool:
    return len(table) <= _MOST_ROWS and table.shape[1] <= _MOST_COLUMNS


def _small(picture: bytes) -> bytes:
    with Image.open(BytesIO(picture)) as opened:
        image = opened.convert("RGB")
    if image.width > _WIDTH:
        image = image.resize((_WIDTH, round(image.height * _WIDTH / image.width)), Image.Resampling.LANCZOS)
    stream = BytesIO()
    image.quantize(_COLORS, dither=Image.Dither.NONE).save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def page() -> str:
    """The summary and a section for each experiment, in Markdown."""
    outcomes: list[dict[str, Any]] = json.loads(OUTCOMES.read_text())
    claims = [claim for outcome in outcomes for claim in outcome["claims"]]
    hold = sum(claim["verdict"] == "holds" for claim in claims)
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
    return sum(claim["verdict"] == "holds" for claim in outcome["claims"])


def _section(outcome: dict[str, Any]) -> str:
    name = outcome["name"]
    lines = [f"## {outcome['title']} {{ #{name} }}\n", f"`congruence reproduce {name}`\n"]
    for claim in outcome["claims"]:
        verdict = "holds" if claim["verdict"] == "holds" else "differs"
        lines.append(f"- **{verdict.capitalize()}:** {claim['claim']} <small>({claim['source']})</small><br>")
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


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
