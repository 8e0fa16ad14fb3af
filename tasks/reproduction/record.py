"""Outcomes on disk, one folder each, and the page that says all of their verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from congruence.kernels.plots.style import png
from congruence.tasks.report.rendering import inline_png, records, render
from congruence.tasks.reproduction.outcome import Claim, Outcome, Plan
from congruence.tasks.runtime.atomic_files import write_whole

_RECORD, _TABLE, PAGE = "outcome.json", "table.csv", "index.html"
_LINES = 40  # of a table on the page; the file beside it has all


@dataclass(frozen=True)
class Recorded:
    """An outcome as it lies in its folder; ``quick`` sizes give weak verdicts.

    ``seconds`` passed while it was made; ``processor_seconds`` of one core is what that took on an idle machine.
    """

    folder: Path
    name: str
    title: str
    paper: str
    quick: bool
    seed: int
    seconds: float
    processor_seconds: float
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def differing(self) -> int:
        """Number of claims that do not hold here."""
        return sum(claim.verdict == "differs" for claim in self.claims)


def write_outcome(outcome: Outcome, plan: Plan, took: tuple[float, float], output: Path) -> Recorded:
    """Write figures, table and, last, the record into ``output/NAME``; ``took``: seconds, and those of a processor."""
    folder = output / outcome.name
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in outcome.figures.items():
        write_whole(folder / f"{name}.png", png(figure))
    write_whole(folder / _TABLE, outcome.table.to_csv(index=False).encode())
    content = {
        "name": outcome.name,
        "title": outcome.title,
        "paper": outcome.paper,
        "quick": plan.quick,
        "seed": plan.seed,
        "seconds": round(took[0], 1),
        "processor_seconds": round(took[1], 1),
        "claims": [asdict(claim) for claim in outcome.claims],
        "notes": list(outcome.notes),
        "figures": list(outcome.figures),
    }
    write_whole(folder / _RECORD, json.dumps(content, indent=2).encode())
    return read_outcome(folder)


def read_outcome(folder: Path) -> Recorded:
    """The outcome in a folder."""
    content = json.loads((folder / _RECORD).read_text())
    claims = tuple(Claim(**claim) for claim in content.pop("claims"))
    figures, notes = tuple(content.pop("figures")), tuple(content.pop("notes"))
    return Recorded(folder=folder, claims=claims, figures=figures, notes=notes, **content)


def write_page(output: Path, order: Sequence[str]) -> Path:
    """The page of all outcomes that lie in ``output``, in the order of their names in ``order``."""
    found = [read_outcome(output / name) for name in order if (output / name / _RECORD).exists()]
    page = output / PAGE
    content = render(
        "reproduction.html",
        title="The papers' experiments, reproduced",
        outcomes=found,
        claims=sum(len(outcome.claims) for outcome in found),
        differing=sum(outcome.differing for outcome in found),
        quick=any(outcome.quick for outcome in found),
        pictures={
            outcome.name: [
                (name, inline_png((outcome.folder / f"{name}.png").read_bytes())) for name in outcome.figures
            ]
            for outcome in found
        },
        tables={outcome.name: records(pd.read_csv(outcome.folder / _TABLE).head(_LINES)) for outcome in found},
    )
    write_whole(page, content.encode())
    return page
