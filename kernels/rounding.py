r"""Targets that are rounded: how coarsely, and scores that compare like with like on them.

A density at a rounded target speaks of a point, where the data say an interval. With targets on a grid of step delta,
every law, that of all targets included, is scored by the probability of the cell around the target,

.. math::  -\log \{F(y + \delta / 2) - F(y - \delta / 2)\} + \log \delta,

which tends to the negative log density as delta goes to 0, and is the negative log mass of counts at delta = 1.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.streams import stream

ON_GRID = 0.99
"""Share of the targets that lie on a grid where they are called rounded."""

_FEWEST_ROWS = 50
_LOOKED_AT = 20_000
_BESIDE = 0.98  # of the targets that are not the commonest one
_TIED = 0.01  # of the rows share their value with another; fewer do in finer grids, where a density is as good
_FINEST = 1e-5  # of the targets' spread; single precision alone is a grid of 1e-7
_OFF = 1e-3  # of a step
_OF_A_CELL = 10
_BLOCK = 2**14


def resolution(y: Array) -> float | None:
    """The step delta of the grid on which at least 99 % of targets y (n,) lie; None where they lie on none.

    Of several grids the coarsest. Fewer than 50 targets, or targets of which fewer than 1 % come again, say nothing.
    """
    targets = np.asarray(y, dtype=np.float64)
    if targets.ndim != 1 or len(targets) < _FEWEST_ROWS:
        return None
    if len(targets) > _LOOKED_AT:
        targets = targets[stream(0, "targets whose resolution is looked at").integers(len(targets), size=_LOOKED_AT)]
    values, counts = np.unique(targets, return_counts=True)
    spread = float(np.std(targets))
    if len(values) < 3 or np.sum(counts[counts > 1]) < _TIED * len(targets):
        return None
    gaps = np.sort(np.diff(values))
    steps = [float(gaps[int(share * (len(gaps) - 1))]) for share in (0.0, 0.02, 0.05, 0.1, 0.3)]
    exponents = range(int(np.floor(np.log10(_FINEST * spread))), int(np.ceil(np.log10(np.ptp(values)))) + 1)
    steps += [digit * 10.0**exponent for digit, exponent in product((1.0, 2.0, 2.5, 5.0), exponents)]
    commonest = values[np.argmax(counts)]
    for step in sorted((step for step in steps if _FINEST * spread < step <= np.ptp(values) / 2.0), reverse=True):
        for offset in (0.0, commonest):
            places = (values - offset) / step
            held = counts * (np.abs(places - np.rint(places)) < _OFF)
            # Where most targets are one value, the others must say so, too.
            beside = np.sum(held[values != commonest]) / np.sum(counts[values != commonest])
            if np.sum(held) >= ON_GRID * len(targets) and beside >= _BESIDE:
                return float(f"{step:.6g}")
    return None


def cell_log_scores(predictive: Distribution, y: Array, step: float) -> Array:
    """-log P(y_i - step / 2 < Y <= y_i + step / 2) + log step, (n,), of one target each; infinite where that is 0."""
    scores = np.empty(len(y))
    for rows in row_slices(len(y), _BLOCK):
        scores[rows] = np.log(step) - predictive[rows].log_mass(y[rows] - step / 2.0, y[rows] + step / 2.0)
    return scores


def marginal_log_score(y: Array, step: float | None = None) -> float:
    """The mean log score of the law of all targets at these (n,), as far as the targets themselves tell it.

    Of targets with a ``step`` that of the cells, by their frequencies where these hold ten targets on average; where
    they hold fewer, targets of a cell are spread evenly over it, and spacings (Vasicek 1976) smooth over the cells. Of
    others the masses of values that come again and a density, by spacings, beside them.
    """
    from scipy.stats import differential_entropy  # a second of imports that a refusal need not wait for

    n = len(y)
    values, counts = np.unique(y, return_counts=True)
    if step is not None and n < _OF_A_CELL * len(values):
        tied = np.repeat(counts, counts)
        place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
        return float(differential_entropy(np.repeat(values, counts) + step * ((place + 0.5) / tied - 0.5)))
    atoms = counts >= max(2.0, _TIED * n) if step is None else np.ones(len(values), dtype=bool)
    others = np.repeat(values[~atoms], counts[~atoms])
    if len(others) < _OF_A_CELL:  # too few for a density
        atoms, others = np.ones(len(values), dtype=bool), others[:0]
    shares = counts[atoms] / n
    # Frequencies say too little by half a target a value (Miller 1955).
    entropy = -float(np.sum(shares * np.log(shares))) + (np.count_nonzero(atoms) - 1.0) / (2.0 * n)
    if len(others):
        rest = len(others) / n
        return entropy + rest * float(differential_entropy(others) - np.log(rest))
    return entropy + (0.0 if step is None else float(np.log(step)))
