"""What stands beside the means: frequencies of counts, rare targets, coverage against the share of rows withheld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.rare import Extremes, Masses, extremes, masses
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import FoundBlocks
from congruence.kernels.marginal_calibration import CountFrequencies, count_frequencies
from congruence.kernels.rng import stream
from congruence.kernels.scores import central_intervals, resolution
from congruence.tasks.scores.evaluation import Evaluation, MetricValue, finite_metrics
from congruence.tasks.scores.metrics.metric import COVERAGE_LEVELS
from congruence.tasks.scores.summary import slice_groups
from congruence.tasks.scores.wrong import is_numeric
from congruence.tasks.sentences.calibration import is_off
from congruence.tasks.sentences.counts import MOST_NAMED, extremes_finding, mass_finding
from congruence.tasks.sentences.findings import Finding

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


NOT_STATED = "Targets far out were not counted: what was predicted states no probability as small as 0.001."

FEW = 0.1
"""Share of the targets: of more far out, the spread or the mean is what is wrong."""

COUNTED = (0.0, 1.0)
"""Values whose masses the finding on counts with many zeros has anyway."""


@dataclass(frozen=True)
class RareTargets:
    """The targets of a version far out, and the values that many share; None of either where it was not looked for."""

    far: Extremes | None = None
    shared: Masses | None = None

    @classmethod
    def of(cls, targets: Array, predictive: Distribution, found: FoundBlocks) -> RareTargets:
        """Of targets (v,); nothing of vectors, and of rows that depend on each other in too few blocks."""
        if targets.ndim != 1 or found.refused:
            return cls()
        step = resolution(targets)
        shared = masses(targets, predictive, step, found.blocks)
        at_values = () if shared is None else shared.faults()
        return cls(extremes(targets, predictive, step, found.blocks, at_values), shared)

    def metrics(self) -> dict[str, MetricValue]:
        """The p-values of both, and what the most is wrong with: numbers of targets, and shares of a value."""
        known: dict[str, float] = {}
        if self.far is not None and self.far.p_value is not None and (most := self.far.most) is not None:
            known |= {"extremes_p_value": self.far.p_value, "extremes_level": most.level}
            known |= {"extremes_observed": most.observed, "extremes_expected": most.expected}
        if self.shared is not None and self.shared.p_value is not None:
            known["masses_p_value"] = self.shared.p_value
            for mass in self.shared.faults()[:1]:
                known |= {"mass_value": mass.value, "mass_observed": mass.observed_share}
                known["mass_expected"] = mass.expected_share
        return finite_metrics(known)

    @property
    def method(self) -> str:
        """What was not looked at, if anything was not."""
        return NOT_STATED if self.far is not None and not self.far.counts else ""

    def findings(
        self, overall: GroupReading | None, names: Callable[[Array], list[str]], *, of_counts: bool
    ) -> list[Finding]:
        """The largest fault of a single value, and targets far out beyond what the fault of all rows explains.

        Args:
            overall: the reading of all rows by their PIT values; None of versions that are read in their own terms.
            names: of rows by their numbers.
            of_counts: whether counts with many zeros are read, whose finding speaks of 0 and 1.
        """
        at = () if self.shared is None else self.shared.faults()
        found = [mass_finding(mass) for mass in at if not (of_counts and mass.value in COUNTED)][:1]
        shift, factor = (overall.shift, overall.factor) if overall is not None and is_off(overall) else (0.0, 1.0)
        beyond = None if self.far is None else self.far.beyond(shift, factor)
        if self.far is not None and beyond is not None and beyond.observed <= FEW * self.far.rows:
            found.append(extremes_finding(self.far, beyond, names(self.far.farthest[:MOST_NAMED])))
        return found


LEVEL = 0.9
FEWEST_ROWS, MOST_ROWS = 500, 10_000
CLASSIFIER = {"max_iter": 50, "max_leaf_nodes": 8, "random_state": 0}
"""Of scikit-learn's HistGradientBoostingClassifier: a fifth of the time of its defaults, and as much found."""


@cache
def is_available() -> bool:
    """Whether MAPIE has the measure, and what it is computed by is installed, too."""
    return all(find_spec(name) is not None for name in ("mapie", "covmetrics")) and (
        find_spec("mapie.metrics.conditional") is not None
    )


def coverage_risk(inputs: pd.DataFrame, targets: Array, predictive: Distribution, seed: int) -> dict[str, MetricValue]:
    """``ert_90`` of the central 90 % intervals of n scalar laws; of more than 10,000 rows, of as many at random.

    None of counts, whose intervals cover more than their level though they are right; none of fewer than 500 rows, or
    where the packages are not installed.

    Args:
        inputs: numbers or words, (n, k).
        targets: (n,).
        predictive: n laws.
        seed: of the rows drawn.
    """
    if not is_available() or predictive.is_discrete or targets.ndim != 1 or inputs.empty or len(targets) < FEWEST_ROWS:
        return {}
    from mapie.metrics.conditional import excess_risk_target_coverage  # type: ignore[import-untyped]  # and torch

    rows = stream(seed, "rows of the excess risk of coverage").permutation(len(targets))[:MOST_ROWS]
    ((low, high),) = central_intervals(predictive[rows], (LEVEL,))
    with threadpool_limits(limits=1):  # on a busy machine OpenMP's threads wait for each other
        found = excess_risk_target_coverage(
            _numbers(inputs.iloc[rows]),
            targets[rows],
            LEVEL,
            y_intervals=np.column_stack([low, high]),
            model_kwargs=CLASSIFIER,
            random_state=0,
        )
    return finite_metrics({"ert_90": found})


def _numbers(inputs: pd.DataFrame) -> Array:
    """Numbers as they are, words by their codes; what is missing lies below all that is known."""
    columns = []
    for name in inputs.columns:
        column = inputs[name]
        if is_numeric(column):
            values = column.to_numpy(float, na_value=np.nan)
            known = values[np.isfinite(values)]
            columns.append(np.where(np.isfinite(values), values, known.min() - 1.0 if len(known) else 0.0))
        else:
            columns.append(slice_groups(column)[0].astype(float))
    return np.column_stack(columns)
