"""What the scripts of this folder share: how an experiment is run, judged, shown and kept for the page of verdicts.

    make papers DATA=FOLDER                              # every experiment, into the documentation
    python docs/papers/discrete_wave.py --quick          # those of one file, in seconds; nothing is kept
    python docs/papers/kernel_calibration.py ols         # one of them

FOLDER holds the public data sets; an experiment whose data are not there is left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from congruence.kernels import Distribution, expected_calibration_error
from congruence.kernels.marginal_calibration import calibration_error_of_pit

Array: TypeAlias = NDArray[Any]

KEPT = Path(__file__).parent
OUTCOMES = "outcomes.json"
_COLORS = 64
_WIDTH = 1200
_MOST_ROWS, _MOST_COLUMNS = 24, 14  # of a table that the page shows


class MissingDataError(Exception):
    """The data of an experiment are not here."""


@dataclass(frozen=True)
class Options:
    """How an experiment is run.

    Attributes:
        quick: sizes that take seconds; verdicts on them are weak.
        seed: of every random choice.
        data: folder of the public data sets; None where there is none.
    """

    quick: bool = False
    seed: int = 0
    data: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """Return the one or the other."""
        return quick if self.quick else full

    def file(self, *parts: str) -> Path | None:
        """Return a file of the data folder, or None where it is not there."""
        path = None if self.data is None else self.data.joinpath(*parts)
        return path if path is not None and path.exists() else None

    def require(self, *parts: str) -> Path:
        """Return a file of the data folder.

        Raises:
            MissingDataError: it is not there.
        """
        path = self.file(*parts)
        if path is None:
            raise MissingDataError(f"{'/'.join(parts)} is not here; give the folder of the data sets with --data")
        return path


@dataclass(frozen=True)
class Claim:
    """What a paper says, where it says so, whether it ``holds`` here, and the numbers that were found, in words."""

    claim: str
    source: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Outcome:
    """What an experiment came to.

    Attributes:
        name: on the command line, and of its section.
        title: in words.
        paper: which of them: CCE, MCMD, SKCE or PIT.
        claims: with what was found.
        table: the numbers behind them, one row per line of the paper's table or curve.
        figures: by the name of the paper's figure.
        notes: what was done otherwise than in the paper, one sentence each.
    """

    name: str
    title: str
    paper: str
    claims: Sequence[Claim]
    table: pd.DataFrame = field(repr=False)
    figures: Mapping[str, Figure] = field(repr=False)
    notes: Sequence[str] = ()


Experiment = Callable[[Options], Outcome]


def name_of(experiment: Experiment) -> str:
    """Return the name of an experiment on the command line."""
    return str(getattr(experiment, "__name__", "")).replace("_", "-")


def main(*experiments: Experiment) -> None:
    """Run those of the experiments that the command line names, or all, and keep what they came to."""
    by_name = {name_of(experiment): experiment for experiment in experiments}
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(by_name)}; all by default")
    parser.add_argument("--quick", action="store_true", help="sizes that take seconds; verdicts on them are weak")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--data", type=Path, help="the folder of the public data sets")
    parser.add_argument("--output", type=Path, help="where outcomes go; by default here, and nowhere with --quick")
    given = parser.parse_args()
    for name in given.names:
        if name not in by_name:
            parser.error(f"there is no experiment '{name}'; choose from {', '.join(by_name)}")
    output = given.output or (None if given.quick else KEPT)
    for name in given.names or by_name:
        started = time.process_time()
        try:
            outcome = by_name[name](Options(given.quick, given.seed, given.data))
        except MissingDataError as error:
            print(f"{name}: left out, {error}")
            continue
        seconds = time.process_time() - started
        print(f"{outcome.title} ({outcome.paper}), {seconds:.0f} s of a processor")
        for claim in outcome.claims:
            print(f"  {'holds' if claim.holds else 'differs'}: {claim.claim}\n    {claim.found}", flush=True)
        if output is not None:
            keep(outcome, output, seed=given.seed, processor_seconds=round(seconds, 1))


def keep(outcome: Outcome, folder: Path, **said: float) -> None:
    """Write the figures of an outcome, and take it up among the outcomes of the folder in place of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{outcome.name}-*.png"):
        old.unlink()
    for figure, drawn in outcome.figures.items():
        (folder / f"{outcome.name}-{figure}.png").write_bytes(_small(drawn))
    table = outcome.table
    shown = len(table) <= _MOST_ROWS and table.shape[1] <= _MOST_COLUMNS
    content = {
        "title": outcome.title,
        "paper": outcome.paper,
        **said,
        "claims": [asdict(claim) | {"holds": bool(claim.holds)} for claim in outcome.claims],
        "notes": list(outcome.notes),
        "figures": list(outcome.figures),
        "table": json.loads(table.to_json(orient="records", double_precision=6)) if shown else [],
    }
    path = folder / OUTCOMES
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | {outcome.name: content}, indent=1) + "\n")


def _small(figure: Figure) -> bytes:
    """Return the figure as a PNG of few colours."""
    drawn, stream = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png")
    with Image.open(drawn) as opened:
        image = opened.convert("RGB")
    if image.width > _WIDTH:
        image = image.resize((_WIDTH, round(image.height * _WIDTH / image.width)), Image.Resampling.LANCZOS)
    image.quantize(_COLORS, dither=Image.Dither.NONE).save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def published_ece(y: Array, predicted: Distribution) -> float:
    """Return the ECE as the papers have it: 50 levels, weights by frequency, PIT at the top of each jump."""
    return expected_calibration_error(y, predicted, pit="nonrandomized", weights="frequency")


def largest_chance_ece(rows: int, seed: int, *, draws: int = 200, share: float = 0.99) -> float:
    """Return the ECE (50 levels, uniform weights) that ``share`` of calibrated models on ``rows`` rows stay below."""
    rng = np.random.default_rng([seed, rows])
    return float(np.quantile([calibration_error_of_pit(rng.uniform(size=rows)) for _ in range(draws)], share))
