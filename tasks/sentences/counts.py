"""Sentences on counts and on rare targets; how well counts fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import CountReading
from congruence.kernels.conditional_calibration.rare import Extremes, Mass, TailCount
from congruence.kernels.conditional_calibration.reading import Coverage, LevelReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.marginal_calibration import CountFrequencies, count_frequencies
from congruence.tasks.scores.metrics.metric import COVERAGE_LEVELS
from congruence.tasks.sentences.calibration import listed, percent, place_in_words
from congruence.tasks.sentences.findings import Finding

MISSING = 1.5
"""Times from which an exposure that was left out is the first thing to look for."""


def count_fault(reading: CountReading) -> str:
    """The fault in two to four words."""
    if reading.mean_comes_first:
        return "predicted mean too high" if reading.ratio < 1.0 else "predicted mean too low"
    return _spread(reading)


def count_clause(reading: CountReading, *, of_others: bool = False) -> str:
    """The fault with its size: "the predicted mean is 2.1 times too high (1.8 to 2.4): 83 observed, 174 expected".

    ``of_others``: whether some of the rows that were read are others than those that the sentence counts.
    """
    shape = f"the counts are {_spread(reading)}: {_share_clause(reading)}"
    if not reading.mean_is_off:
        return shape
    total = reading.total
    sums = f"{_amount(total.observed)} observed, {_amount(total.expected)} expected"
    side = "high" if reading.ratio < 1.0 else "low"
    if total.observed <= 0.0:
        mean = f"the predicted mean is too {side}: {sums}"
    else:
        ends = reading.ratio, reading.low, reading.high
        times, low, high = ends if reading.ratio >= 1.0 else [1.0 / max(end, 1e-12) for end in (ends[0], *ends[:0:-1])]
        mean = f"the predicted mean is {times:.3g} times too {side} ({low:.3g} to {high:.3g})"
        mean += "" if of_others else f": {sums}"
        mean += "; is an exposure missing?" if times >= MISSING and reading.more.observed > 0.0 else ""  # no 0 and 1
    return mean if reading.mean_comes_first else f"{shape}; {mean}"


def _share_clause(reading: CountReading) -> str:
    """Of zeros, or else the share that is the most wrong: "95 % of the targets are 0 where 91 % are predicted"."""
    named = list(zip(("0", "1", "2 or more"), reading.shares, strict=True))
    what, share = named[0] if reading.zeros.is_off() else min(named, key=lambda each: each[1].p_value)
    both = share.observed_share, share.expected_share
    held, stated = percent(*both), percent(*reversed(both))
    return f"{held} of the targets are {what} where {stated} are predicted"


def count_finding(reading: CountReading, place: str = "", words: str = "") -> Finding:
    """The finding of a reading that is off."""
    mean = reading.mean_comes_first
    amount = abs(math.log(max(reading.ratio, 1e-12))) if mean else abs(reading.zeros.relative)
    return Finding(
        place,
        words or place_in_words(place),
        reading.rows,
        reading.share,
        count_clause(reading),
        count_fault(reading),
        reading.size / max(reading.rows, 1),
        f"mean {reading.ratio < 1.0}" if mean else _spread(reading),
        amount,
    )


def _spread(reading: CountReading) -> str:
    more = [share.observed > share.expected for share in (reading.zeros, reading.more)]
    if all(more):
        return "more widely spread than predicted"
    return "distributed otherwise than predicted" if any(more) else "less widely spread than predicted"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def level_fault(reading: LevelReading) -> str:
    """The fault in a few words: "90 % interval holds 71 %"."""
    (first, *_) = reading.faults
    held = percent(first.observed, first.probability)
    return f"{first.name[4:]} holds {held}" if first.is_interval else f"{held} below {first.name[4:]}"


def level_finding(reading: LevelReading, place: str = "", words: str = "") -> Finding:
    """The finding of a reading that is off: "the 90 % interval holds 71 % of the targets (66 to 76 %)", and another."""
    (kind, amount), *others = (_kind_and_amount(each) for each in reading.faults)
    return Finding(
        place,
        words or place_in_words(place),
        reading.rows,
        reading.share,
        "; ".join(_clause(each) for each in reading.faults),
        level_fault(reading),
        amount**2,
        kind,
        amount,
        dict(others),
    )


def _kind_and_amount(fault: Coverage) -> tuple[str, float]:
    """What a fault is and how large, the same for all levels: of 99 each place has another one that tells it best."""
    apart = fault.observed - fault.probability
    spread = max(fault.probability * (1.0 - fault.probability), 1e-12) ** 0.5
    return f"{'interval' if fault.is_interval else 'level'} {apart > 0}", abs(apart) / spread


def _clause(fault: Coverage) -> str:
    ends = f"{percent(fault.low).removesuffix(' %')} to {percent(fault.high)}"
    held = f"{percent(fault.observed, fault.probability)} of the targets ({ends})"
    return f"{fault.name} holds {held}" if fault.is_interval else f"{held} lie at or below {fault.name}"


MOST_NAMED = 3
"""Rows that a sentence names."""

_OF_MASS = 24.0
"""What a share of the targets at a wrong value makes of the scores' variance: as much as it can, since it is the cause
of what shows there as bias, spread and skew: the squares of four scores at the end of their range."""

_OF_EXTREMES = 8.0
"""What a target far out makes of it. Where a place holds most of them its own fault, of up to 24, is the larger one."""

_LEAST = 1e-3
_GIVEN = {"square": "variance given as standard deviation", "root": "standard deviation given as variance"}


def mass_finding(mass: Mass) -> Finding:
    """ "50 % of the targets are exactly 0, and the predictions give that 0 %"."""
    both = mass.observed_share, mass.expected_share
    held, stated = percent(*both), percent(*reversed(both))
    apart = abs(mass.observed_share - mass.expected_share)
    clause = f"{held} of the targets are exactly {mass.value:g}, and the predictions give that {stated}"
    short = f"{held} are exactly {mass.value:g}, {stated} predicted"
    return Finding("", "", mass.observed, apart, clause, short, _OF_MASS, "mass", apart)


def extremes_finding(found: Extremes, count: TailCount, rows: Sequence[str] = ()) -> Finding:
    """ "20 of 2,000 targets lie where the predictions put less than 1e-6; 0.004 were to be expected", and rows."""
    expected = f"{count.expected:.2g}" if count.expected >= _LEAST else f"fewer than {_LEAST:g}"
    level = f"{count.level:.0e}".replace("e-0", "e-")
    lie = "lies" if count.observed == 1 else "lie"
    clause = (
        f"{count.observed:,} of {found.rows:,} targets {lie} where the predictions put less than {level}; "
        f"{expected} were to be expected"
    )
    named = list(rows[: min(MOST_NAMED, count.observed)])
    if named:
        which = "" if len(named) == count.observed else ", the farthest of them"
        clause += f" ({'row' if len(named) == 1 else 'rows'} {listed(named)}{which})"
    share = count.observed / found.rows
    short = f"{count.observed:,} targets where less than {level} was predicted"
    return Finding("", "", count.observed, share, clause, short, _OF_EXTREMES, "extremes", share)


def fraction_finding(rows: int, share: float, value: float, key: str) -> Finding:
    """Targets that are no whole numbers, where whole numbers alone are predicted; one of them, with its row."""
    clause = (
        f"{percent(share)} of the targets are no whole numbers, such as {value:.6g} (row {key}), and the "
        "predictions are of counts: is the target a rate?"
    )
    return Finding("", "", rows, share, clause, "targets are no whole numbers", _OF_MASS, "fraction", share)


def crossing_finding(rows: int, share: float) -> Finding:
    """Quantiles that fall as their level rises in most rows, after all that they do to the scores."""
    clause = (
        f"the predicted quantiles fell as the level rises in {percent(share)} of the rows, and were sorted: "
        "are level and 1 - level exchanged?"
    )
    return Finding("", "", rows, share, clause, "quantiles fall with the level", 0.0, "crossing", share)


def ordered_finding(rows: int, draws: int) -> Finding:
    """Draws that rise in every row: quantiles that are taken for draws reach less far, and their CRPS is too low."""
    clause = (
        f"the {draws:,} draws of each row stand in rising order: are they quantiles? Given with their levels they are "
        "judged as such; as draws their CRPS reads too low"
    )
    return Finding("", "", rows, 1.0, clause, "draws in rising order", 0.0, "ordered", 1.0)


def power_finding(rows: int, power: str, *, shows: bool) -> Finding:
    """A spread that is the "square" or the "root" of what is needed: all other faults follow where the rows show it."""
    clause = f"the predicted spread is the {power} of what is needed: was the {_GIVEN[power]}?"
    short = f"predicted spread is the {power} of what is needed"
    return Finding("", "", rows, 1.0, clause, short, _OF_MASS if shows else 0.0, "power", 1.0)


_REACH = 1.959963984540054


@dataclass(frozen=True)
class Share:
    """An observed share beside the predicted one, and where 95 of 100 splits have it if the version is true."""

    name: str
    observed: float
    predicted: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, found: Array, predicted: float, variance: float, most: float = 1.0) -> Share:
        """The mean of what was found in n rows, (n,); its predicted mean, and the predicted variance of its sum."""
        reach = _REACH * float(np.sqrt(variance)) / len(found)
        return cls(name, float(np.mean(found)), predicted, max(0.0, predicted - reach), min(most, predicted + reach))


@dataclass(frozen=True)
class CountFit(CountFrequencies):
    """Counts observed and predicted, of ``rows`` rows, and what sums them up.

    Attributes:
        shares: the mean, the shares of zeros, ones, two and more, and the coverage of central intervals by randomised
            PIT values, over all rows.
    """

    shares: tuple[Share, ...]

    @classmethod
    def of(cls, targets: Array, predictive: Distribution, pit: Array | None = None) -> CountFit:
        """Of counts (n,), n laws and PIT values (n,)."""
        zero, one = (np.exp(predictive.log_prob(count)) for count in (0.0, 1.0))
        shares = [
            Share.of("mean", targets, float(np.mean(predictive.mean())), float(np.sum(predictive.std() ** 2)), np.inf)
        ]
        for name, found, chance in (
            ("zeros", targets == 0.0, zero),
            ("ones", targets == 1.0, one),
            ("two and more", targets >= 2.0, np.clip(1.0 - zero - one, 0.0, 1.0)),
        ):
            shares.append(Share.of(name, found, float(np.mean(chance)), float(np.sum(chance * (1.0 - chance)))))
        if pit is not None:
            shares += randomised_coverage(pit)
        return cls(**vars(count_frequencies(targets, predictive)), shares=tuple(shares))


def randomised_coverage(pit: Array) -> list[Share]:
    """The share of randomised PIT values within level / 2 of 1/2: exactly ``level`` under the truth, counts or not.

    A central interval of counts ends on whole numbers and holds at least its level, often much more (50 % of a law
    with 95 % zeros is {0}); a point drawn uniformly from the jump at y does not (Czado, Gneiting and Held 2009).
    """
    found = []
    for level in COVERAGE_LEVELS:
        name = f"randomised coverage {level:.0%}".replace("%", " %")
        found.append(Share.of(name, np.abs(pit - 0.5) <= level / 2.0, level, len(pit) * level * (1.0 - level)))
    return found
