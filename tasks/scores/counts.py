"""How a version of counts does as counts: its zeros, the frequency of each count, and coverage without discreteness."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.summary import COVERAGE_LEVELS

ROWS = 5_000
"""Rows, evenly spread over the split, that the frequencies are taken of: the sums cost rows times bins."""

BINS = 40
_REACH = 1.959963984540054
_TAIL = 0.999


@dataclass(frozen=True)
class Share:
    """An observed share beside the predicted one, and where 95 of 100 splits have it if the version is true."""

    name: str
    observed: float
    predicted: float
    low: float
    high: float


@dataclass(frozen=True)
class CountFit:
    """Counts observed and predicted.

    Attributes:
        starts: the first count of each bin, (k,); the last bin holds all counts from there up.
        observed: rows in each bin, (k,).
        expected: sum over the rows of the predicted probability of the bin, (k,).
        std: standard deviation of ``observed`` if the version is true, (k,).
        rows: that these are taken of.
        shares: of zeros, and the coverage of central intervals by randomised PIT values, over all rows.
    """

    starts: Array = field(repr=False)
    observed: Array = field(repr=False)
    expected: Array = field(repr=False)
    std: Array = field(repr=False)
    rows: int
    shares: tuple[Share, ...]


def count_fit(evaluation: Evaluation) -> CountFit | None:
    """The fit of a version that predicts one count a row; None of any other."""
    predictive, targets = evaluation.predictive, evaluation.targets
    if predictive is None or targets is None or targets.ndim != 1 or not predictive.is_discrete or len(targets) < 2:
        return None
    shares = [_zeros(predictive, targets)]
    if "pit" in evaluation.scores:
        shares += randomised_coverage(evaluation.valid_scores["pit"].to_numpy(float))
    chosen = np.unique(np.linspace(0, len(targets) - 1, min(ROWS, len(targets))).astype(int))
    return CountFit(*_frequencies(predictive[chosen], targets[chosen]), len(chosen), tuple(shares))


def randomised_coverage(pit: Array) -> list[Share]:
    """The share of randomised PIT values within level / 2 of 1/2: exactly ``level`` under the truth, counts or not.

    A central interval of counts ends on whole numbers and holds at least its level, often much more (50 % of a law
    with 95 % zeros is {0}); a point drawn uniformly from the jump at y does not (Czado, Gneiting and Held 2009).
    """
    n = len(pit)
    found = []
    for level in COVERAGE_LEVELS:
        reach = _REACH * float(np.sqrt(level * (1.0 - level) / n))
        observed = float(np.mean(np.abs(pit - 0.5) <= level / 2.0))
        name = f"randomised coverage {level:.0%}".replace("%", " %")
        found.append(Share(name, observed, level, max(0.0, level - reach), min(1.0, level + reach)))
    return found


def _zeros(predictive: Distribution, targets: Array) -> Share:
    chance = predictive.cdf(0.0) - predictive.cdf_left(0.0)
    reach = _REACH * float(np.sqrt(np.sum(chance * (1.0 - chance)))) / len(targets)
    predicted = float(np.mean(chance))
    observed = float(np.mean(targets == 0.0))
    return Share("zeros", observed, predicted, max(0.0, predicted - reach), min(1.0, predicted + reach))


def _frequencies(predictive: Distribution, targets: Array) -> tuple[Array, Array, Array, Array]:
    """Bins of equal width up to where a thousandth of the targets, and of the predictions, is left."""
    ends = (float(np.quantile(targets, _TAIL)), float(np.quantile(predictive.quantile(_TAIL), 0.9)))
    first = float(np.floor(min(np.min(targets), np.quantile(predictive.quantile(1.0 - _TAIL), 0.1))))
    width = max(1.0, float(np.ceil((max(ends) + 1.0 - first) / BINS)))
    starts = np.arange(first, max(max(ends), first + width) + 1.0, width)
    below = np.column_stack([np.zeros(len(targets)), predictive.cdf(starts[None, 1:] - 1.0), np.ones(len(targets))])
    chance = np.clip(np.diff(below, axis=1), 0.0, 1.0)
    observed = np.bincount(np.searchsorted(starts, targets, side="right") - 1, minlength=len(starts)).astype(float)
    return starts, observed, chance.sum(axis=0), np.sqrt(np.sum(chance * (1.0 - chance), axis=0))
