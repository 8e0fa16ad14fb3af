"""How a version of counts does as counts: its zeros, the frequency of each count, and coverage without discreteness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.marginal_calibration import CountFrequencies, count_frequencies
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.metrics.rows import COVERAGE_LEVELS

_REACH = 1.959963984540054


@dataclass(frozen=True)
class Share:
    """An observed share beside the predicted one, and where 95 of 100 splits have it if the version is true."""

    name: str
    observed: float
    predicted: float
    low: float
    high: float


@dataclass(frozen=True)
class CountFit(CountFrequencies):
    """Counts observed and predicted, of ``rows`` rows, and what sums them up.

    Attributes:
        shares: the mean, the shares of zeros, ones, two and more, and the coverage of central intervals by randomised
            PIT values, over all rows.
    """

    shares: tuple[Share, ...]


def count_fit(evaluation: Evaluation) -> CountFit | None:
    """The fit of a version that predicts one count a row; None of any other."""
    predictive, targets = evaluation.predictive, evaluation.targets
    if predictive is None or targets is None or targets.ndim != 1 or not predictive.is_discrete or len(targets) < 2:
        return None
    shares = _own_terms(predictive, targets)
    if "pit" in evaluation.scores:
        shares += randomised_coverage(evaluation.valid_scores["pit"].to_numpy(float))
    found = count_frequencies(targets, predictive)
    return CountFit(found.starts, found.observed, found.expected, found.std, found.rows, tuple(shares))


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


def _own_terms(predictive: Distribution, targets: Array) -> list[Share]:
    n = len(targets)
    zero, one = (np.exp(predictive.log_prob(count)) for count in (0.0, 1.0))
    shares = [_share("mean", targets, predictive.mean(), float(np.sum(predictive.std() ** 2)), n)]
    for name, found, chance in (
        ("zeros", targets == 0.0, zero),
        ("ones", targets == 1.0, one),
        ("two and more", targets >= 2.0, np.clip(1.0 - zero - one, 0.0, 1.0)),
    ):
        shares.append(_share(name, found, chance, float(np.sum(chance * (1.0 - chance))), n, most=1.0))
    return shares


def _share(name: str, found: Array, chance: Array, variance: float, n: int, *, most: float = np.inf) -> Share:
    reach, predicted = _REACH * float(np.sqrt(variance)) / n, float(np.mean(chance))
    return Share(name, float(np.mean(found)), predicted, max(0.0, predicted - reach), min(most, predicted + reach))
