"""Which rows a fit may see and which are held out from it: rows that depend on each other are never on both sides.

Every hold-out, fold and sample is drawn here. Groups stay whole. Time is cut at few places, and beside a cut a stretch
is left out: of a tenth of the rows where the length of runs is not known, since with longer ones there are fewer than
ten and nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, RowDependence
from congruence.kernels.streams import keyed_uniforms, stream

WINDOWS = 4
"""Stretches of time that a sample of rows is of."""

_PURPOSE = "rows that a recalibration is fitted on"


@dataclass(frozen=True)
class HoldOut:
    """Two parts of some rows, as masks (n,): a row beside a cut of time is in neither."""

    fitting: Array
    held_out: Array

    @property
    def parts(self) -> tuple[Array, Array]:
        """The numbers of the rows of both."""
        return np.flatnonzero(self.fitting), np.flatnonzero(self.held_out)


def hold_out(keys: Any, dependence: RowDependence | None = None) -> HoldOut:
    """About half of the rows to fit on, the same half for every version, whatever the order of the rows.

    Independent rows by their keys (n,), groups by their values. Of time the earlier rows are fitted on and the later
    ones held out, with a tenth of the rows between them in neither.
    """
    if dependence is not None and dependence.groups is None:
        place = _places(dependence.time)
        margin = 0.5 / FEWEST_BLOCKS
        return HoldOut(place < 0.5 - margin, place >= 0.5 + margin)
    named = keys if dependence is None else dependence.groups
    fitting = np.asarray(keyed_uniforms(named, 0, _PURPOSE) < 0.5)
    return HoldOut(fitting, ~fitting)


@dataclass(frozen=True)
class Folds:
    """The fold of every row, (n,), and which rows a fit without their neighbours' fold must leave out, (n,)."""

    numbers: Array
    beside_cuts: Array


def folds(keys: Any, count: int, seed: int, purpose: str, blocks: DependentBlocks | None = None) -> Folds:
    """``count`` folds: of equal sizes by the keys of independent rows, of whole groups, or of stretches of time."""
    n = len(keys)
    if blocks is None:
        numbers = np.empty(n, dtype=np.intp)
        numbers[np.argsort(keyed_uniforms(keys, seed, purpose), kind="stable")] = np.arange(n) % count
        return Folds(numbers, np.zeros(n, dtype=bool))
    if blocks.kind != "time":
        of_block = stream(seed, purpose).permutation(blocks.count) % count
        return Folds(of_block[blocks.labels], np.zeros(n, dtype=bool))
    of_block = np.arange(blocks.count) * count // blocks.count
    cut = np.append(of_block[1:] != of_block[:-1], False)
    return Folds(of_block[blocks.labels], cut[blocks.labels])


def sample(dependence: RowDependence, rows: int, seed: int, purpose: str) -> Array:
    """Numbers of some ``rows``, ascending: whole groups, at least ten, or a few stretches of time."""
    rng = stream(seed, purpose)
    if dependence.groups is not None:
        _, labels, sizes = np.unique(dependence.groups, return_inverse=True, return_counts=True)
        order = rng.permutation(len(sizes))
        enough = int(np.searchsorted(np.cumsum(sizes[order]), rows, side="right"))
        chosen = order[: max(enough, min(FEWEST_BLOCKS, len(order)))]
        return np.flatnonzero(np.isin(labels.reshape(-1), chosen))
    n, length = len(_required(dependence.time)), rows // WINDOWS
    order = np.argsort(_places(dependence.time), kind="stable")
    free = n - WINDOWS * length
    starts = np.sort(rng.integers(0, free + 1, WINDOWS)) + length * np.arange(WINDOWS)
    return np.sort(np.concatenate([order[start : start + length] for start in starts.tolist()]))


def _places(time: Array | None) -> Array:
    """The share of rows before each time, (n,): rows of one time have one place."""
    values = _required(time)
    return np.searchsorted(np.sort(values), values, side="left") / len(values)


def _required(time: Array | None) -> Array:
    assert time is not None, "rows depend on each other within groups or near in time"
    return time
