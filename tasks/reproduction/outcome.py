"""What an experiment of a paper came to: a verdict per claim, a table, and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels.errors import CongruenceError

Verdict = Literal["holds", "differs"]


class MissingDataError(CongruenceError):
    """An experiment on data that are not here: says which, and how to point at them."""


@dataclass(frozen=True)
class Plan:
    """How an experiment is to be run.

    Attributes:
        quick: sizes that take a second, for tests and a first look; verdicts on them are weak.
        seed: of every random choice.
        data: folder of the public data sets; None where there is none.
    """

    quick: bool = False
    seed: int = 0
    data: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """The one or the other."""
        return quick if self.quick else full

    def file(self, *parts: str) -> Path | None:
        """A file of the data folder, if it is there."""
        path = None if self.data is None else self.data.joinpath(*parts)
        return path if path is not None and path.exists() else None

    def require(self, *parts: str) -> Path:
        """A file of the data folder.

        Raises:
            MissingDataError: it is not there.
        """
        path = self.file(*parts)
        if path is None:
            where = "no --data was given" if self.data is None else f"--data is {self.data}"
            raise MissingDataError(
                f"needs {'/'.join(parts)}, which is not here ({where}); give the folder of the data sets with --data"
            )
        return path


@dataclass(frozen=True)
class Claim:
    """One claim of a paper and what is found here.

    Attributes:
        claim: what the paper says.
        source: where it says so.
        verdict: whether it holds here.
        found: numbers in words, with noise floors, expected values and intervals; where it differs, why.
        values: the numbers by name.
    """

    claim: str
    source: str
    verdict: Verdict
    found: str
    values: Mapping[str, float] = field(default_factory=dict)


def judged(claim: str, source: str, holds: bool, found: str, **values: float) -> Claim:
    """A claim that ``holds`` or differs."""
    numbers = {name: float(value) for name, value in values.items()}
    return Claim(claim, source, "holds" if holds else "differs", found, numbers)


@dataclass(frozen=True)
class Outcome:
    """An experiment's claims, table and figures.

    Attributes:
        name: of the experiment on the command line.
        title: in words.
        paper: which one.
        claims: with their verdicts.
        table: the numbers behind them, one row per line of the paper's table or curve.
        figures: by file name without its ending; ``figures[name]`` is what the paper's figure shows.
        notes: what was done otherwise than in the paper, one sentence each.
    """

    name: str
    title: str
    paper: str
    claims: tuple[Claim, ...]
    table: pd.DataFrame = field(repr=False)
    figures: Mapping[str, Figure] = field(repr=False)
    notes: tuple[str, ...] = ()
