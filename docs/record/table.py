"""What a table of the record is: rows to fit on, to recalibrate on and to judge on, and the truth where it is known."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from congruence.kernels import Distribution

HERE = Path(__file__).parent
FIT_ROWS, RECALIBRATION_ROWS, TEST_ROWS = 3000, 1000, 2000
TARGET, GROUPS, TIME = "target", "group", "time"

Target = Literal["real", "positive", "counts", "proportion"]
Truth = Callable[[pd.DataFrame], Distribution]


@dataclass(frozen=True)
class Table:
    """A table: inputs are columns of numbers.

    Attributes:
        name: a word or two with hyphens.
        about: where it is from and what the target is, in one line.
        target: what values the target takes, by which a generalised linear model chooses its family.
        rows: inputs, and the columns ``target`` and, where rows depend on each other, ``group`` or ``time``. Their
            order is that of the parts: the first are fitted on, the last judged on.
        truth: the conditional distribution that the targets were drawn from, where that is known.
    """

    name: str
    about: str
    target: Target
    rows: pd.DataFrame = field(repr=False)
    truth: Truth | None = field(default=None, repr=False)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [str(name) for name in self.rows.columns if name not in (TARGET, GROUPS, TIME)]

    @property
    def fitted(self) -> tuple[pd.DataFrame, pd.Series[float]]:
        """Standardised inputs and targets of the rows that models are fitted on."""
        part = self.parts()["fit"]
        return part[self.inputs], part[TARGET]

    def parts(self) -> dict[str, pd.DataFrame]:
        """Returns the rows of ``fit``, ``recalibration`` and ``test``, with inputs standardised as of the first."""
        count = len(self.rows)
        sizes = [FIT_ROWS, RECALIBRATION_ROWS, TEST_ROWS]
        if count < sum(sizes):
            sizes = [count - RECALIBRATION_ROWS - TEST_ROWS, RECALIBRATION_ROWS, TEST_ROWS]
        rows = self.rows.reset_index(drop=True).astype(dict.fromkeys([*self.inputs, TARGET], float))
        first = rows.iloc[: sizes[0]][self.inputs]
        rows[self.inputs] = (rows[self.inputs] - first.mean()) / first.std().replace(0.0, 1.0)
        ends = np.cumsum([0, *sizes])
        names = ("fit", "recalibration", "test")
        return {name: rows.iloc[ends[i] : ends[i + 1]].reset_index(drop=True) for i, name in enumerate(names)}


def shuffled(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in random order, the same at every call: for tables whose rows are independent."""
    return rows.iloc[np.random.default_rng(0).permutation(len(rows))]


def drawn(seed: int, inputs: int) -> tuple[pd.DataFrame, np.random.Generator]:
    """Uniform inputs x0, x1, ... for all three parts of a table with known truth, and where its targets come from."""
    rng = np.random.default_rng(seed)
    count = FIT_ROWS + RECALIBRATION_ROWS + TEST_ROWS
    x = rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), (count, inputs))  # of variance 1, so that standardising leaves them
    return pd.DataFrame(x, columns=[f"x{j}" for j in range(inputs)]), rng


def of_truth(name: str, about: str, target: Target, x: pd.DataFrame, rng: np.random.Generator, truth: Truth) -> Table:
    """A table whose targets are drawn from ``truth`` of its inputs as models see them."""
    rows = x.assign(**{TARGET: 0.0})
    seen = pd.concat(Table(name, about, target, rows).parts().values(), ignore_index=True)
    targets = truth(seen).sample(1, seed=rng)[:, 0]
    return Table(name, about, target, rows.assign(**{TARGET: targets}), truth)


def modules(folder: str) -> dict[str, Any]:
    """The files of ``tables`` or ``models`` by their name: each is one table, or one kind of model."""
    names = sorted(item.name for item in pkgutil.iter_modules([str(HERE / folder)]))
    return {name: importlib.import_module(f"{folder}.{name}") for name in names}
