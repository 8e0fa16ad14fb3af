"""Does the first sentence name the largest fault, where it is, with its size? ``first_sentences.md`` is the record.

python tests/benchmarks/first_sentences.py [--first N] [--splits S] [--faults NAME ...] [--said]

``--said`` prints each first sentence that is wrong.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from simulations import asked, head, row

import congruence
from congruence.kernels import Normal, Poisson, Samples
from congruence.kernels.arrays import Array

ROWS = 800
WITHIN = 0.15
METRICS = ["cce", "congruence_test", "calibration", "pit", "actual_over_expected"]
"""What sentences are made of."""

THREE = np.array([0.1, 0.5, 0.9])


class Split:
    """Rows with a known truth: normal about 10 + 2 age with the spread exp(.3 wind); load and site say nothing."""

    def __init__(self, seed: int, rows: int = ROWS) -> None:
        self.rng = np.random.default_rng([seed, rows])
        self.x = self.rng.normal(size=(rows, 3))
        self.site = self.rng.choice(list("abcd"), rows, p=[0.3, 0.3, 0.25, 0.15])
        self.mean, self.spread = 10.0 + 2.0 * self.x[:, 0], np.exp(0.3 * self.x[:, 1])
        self.y = self.rng.normal(self.mean, self.spread)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def table(self) -> pd.DataFrame:
        """The inputs."""
        return pd.DataFrame(self.x, columns=["age", "wind", "load"]).assign(site=self.site)

    def inside(self, sentence: str) -> Array:
        """The rows of the place that a sentence names, (n,)."""
        chosen = np.ones(len(self), dtype=bool)
        place = re.match(r"Where (.*?) \([\d,]+ rows", sentence)
        for part in () if place is None else re.split(r" and (?=[a-z])", place[1]):
            words = part.split()
            if words[0] == "site":
                chosen &= (self.site == words[-1]) != ("not" in words)
                continue
            values = self.x[:, ["age", "wind", "load"].index(words[0])]
            if words[2] == "between":
                chosen &= values > float(words[3])
                chosen &= values <= float(words[5])
                continue
            chosen &= values > float(words[-1]) if words[2] in ("above", "from") else values <= float(words[-1])
        return chosen


Made = tuple[Array, Any]
"""Targets, and what is predicted."""


@dataclass(frozen=True)
class Fault:
    """A version with one fault.

    Attributes:
        make: targets and prediction of a split.
        says: what the first sentence holds; its first group is the size.
        size: the true one, or what gives it from the split, the targets, the prediction and the sentence; None where
            naming the fault says all.
    """

    make: Callable[[Split], Made]
    says: str
    size: float | Callable[[Split, Array, Any, str], float] | None = None


def _normal(said: Callable[[Split], tuple[Array, Array]], *says: Any) -> Fault:
    """Of a normal prediction with another mean and spread than the targets', which are as they are."""
    return Fault(lambda split: (split.y, Normal(*said(split))), *says)


def _levels(split: Split, levels: Array, factor: float = 1.0) -> Array:
    return np.asarray(split.mean[:, None] + split.spread[:, None] * factor * stats.norm.ppf(levels))


def _one_level(split: Split) -> Made:
    values = _levels(split, THREE)
    values[:, 2] = split.mean + split.spread * stats.norm.ppf(0.8)
    return split.y, (THREE, values)


def _exchanged(split: Split) -> Made:
    return split.y, (THREE, _levels(split, 1.0 - THREE))


def _members(split: Split, count: int, shift: float = 0.0, factor: float = 1.0) -> Samples:
    z = split.rng.normal(size=(len(split), count))
    return Samples(split.mean[:, None] + split.spread[:, None] * (shift + factor * z))


def _z(split: Split, z: Array) -> Array:
    return np.asarray(split.mean + split.spread * z)


def _last(split: Split, count: int, by: float) -> Array:
    y = split.y.copy()
    y[-count:] += by * split.spread[-count:]
    return y


def _rate(split: Split, scale: float = 1.0) -> Array:
    return np.asarray(scale * np.exp(0.5 * split.x[:, 0]))


def _zeros(split: Split, y: Array, share: float, value: float = 0.0) -> Array:
    return np.where(split.rng.random(len(split)) < share, value, y)


def _mean_of(law: Any) -> Array:
    return np.asarray(law.mean())


def _bias_there(split: Split, y: Array, law: Any, sentence: str) -> float:
    """Of the true means in the place that is named."""
    return abs(float(np.mean((_mean_of(law) - split.mean)[split.inside(sentence)])))


def _apart_there(split: Split, y: Array, law: Any, sentence: str) -> float:
    """The same, or how many times too high or low they are there."""
    if "times too" not in sentence:
        return _bias_there(split, y, law, sentence)
    inside = split.inside(sentence)
    ratio = float(np.sum(_mean_of(law)[inside]) / np.sum(split.mean[inside]))
    return max(ratio, 1.0 / ratio)


def _share_at(value: float) -> Callable[[Split, Array, Any, str], float]:
    return lambda split, y, law, sentence: 100.0 * float(np.mean(y == value))


def _counts(split: Split) -> Made:
    return split.rng.poisson(_rate(split)).astype(float), Poisson(2.0 * _rate(split))


def _overdispersed(split: Split) -> Made:
    mean = _rate(split, 8.0)
    return split.rng.poisson(mean * split.rng.gamma(4.0, 0.25, len(split))).astype(float), Poisson(mean)


def _overdispersion(split: Split, y: Array, law: Any, sentence: str) -> float:
    mean = _rate(split, 8.0)
    return float(np.sqrt(np.mean(1.0 + mean / 4.0)))


def _inflated(split: Split) -> Made:
    return _zeros(split, split.rng.poisson(_rate(split, 4.0)).astype(float), 0.3), Poisson(0.7 * _rate(split, 4.0))


def _log_left(split: Split) -> Made:
    location = 2.0 + 0.3 * split.x[:, 0]
    return np.exp(split.rng.normal(location, 0.2)), Normal(location, np.full(len(split), 0.2))


def _log_ratio(split: Split, y: Array, law: Any, sentence: str) -> float:
    return float(np.mean(y) / np.mean(_mean_of(law)))


TOO = r"predictions are ([\d.,]+) too (?:high|low) on average"
HIGH, LOW = (TOO.replace("(?:high|low)", side) for side in ("high", "low"))
FACTOR = r"^The predicted mean is ([\d.,]+) times too "
B = r"^Where site is b \(\d+ rows, \d+ %\) "
SPREAD = r"predicted spread is too {} by a factor of ([\d.]+)"
TOO_SMALL, TOO_LARGE = "^The " + SPREAD.format("small") + r" \(", "^The " + SPREAD.format("large")
FAULTS: dict[str, Fault] = {
    "bias of .8": _normal(lambda s: (s.mean - 0.8, s.spread), rf"^(?i:{LOW})", 0.8),
    "bias of 5 spreads": _normal(lambda s: (s.mean - 5.0 * s.spread, s.spread), rf"^(?i:{TOO})", 5.2),
    "bias of 50 (N8)": _normal(lambda s: (s.mean + 50.0, s.spread), r"mean is ([\d.,]+) times too high", 6.0),
    "bias of 1.2 in a slice": _normal(lambda s: (s.mean + 1.2 * (s.site == "b"), s.spread), B + HIGH, 1.2),
    "bias of .6 in a slice": _normal(lambda s: (s.mean + 0.6 * (s.site == "b"), s.spread), B + TOO, 0.6),
    "opposite biases in two slices (N10)": _normal(
        lambda s: (s.mean + 0.6 * (s.site == "a") - 0.6 * (s.site == "b"), s.spread),
        rf"^Where site is [ab] \(\d+ rows, \d+ %\) {TOO}",
        0.6,
    ),
    "bias of 4 in 2.5 % of the rows (N6)": _normal(
        lambda s: (s.mean + 4.0 * (s.x[:, 0] > 1.96), s.spread), rf"^Where age is (?:above|between) [\d.]+ .*{TOO}", 4.0
    ),
    "bias that grows with an input": _normal(
        lambda s: (s.mean + 1.2 * s.x[:, 2], s.spread), rf"^Where load is .*{TOO}", _bias_there
    ),
    "spread 1.5 times too small": _normal(lambda s: (s.mean, s.spread / 1.5), TOO_SMALL, 1.5),
    "spread 2 times too large": _normal(lambda s: (s.mean, 2.0 * s.spread), TOO_LARGE, 2.0),
    "spread 10 times too large (N9)": _normal(lambda s: (s.mean, 10.0 * s.spread), TOO_LARGE, 10.0),
    "spread 100 times too small (N8)": _normal(lambda s: (s.mean, s.spread / 100.0), TOO_SMALL, 100.0),
    "spread 2 times too small in a range": _normal(
        lambda s: (s.mean, s.spread / (1.0 + (s.x[:, 2] > 0.5))),
        r"^Where load is (?:above|between) [\d.]+ .*" + SPREAD.format("small"),
        2.0,
    ),
    "spread 3.3 times too large in a half, 1.5 too small in the other": Fault(
        lambda s: (s.mean + np.exp(0.8 * np.sign(s.x[:, 2])) * (s.y - s.mean), Normal(s.mean, 1.5 * s.spread)),
        r"^Where load is (?:up to|below|between) .*" + SPREAD.format("large"),
        3.3,
    ),
    "targets rounded to .5, spread 1.5 times too small": Fault(
        lambda s: (np.round(2.0 * s.y) / 2.0, Normal(s.mean, s.spread / 1.5)), TOO_SMALL, 1.5
    ),
    "variance given as standard deviation": Fault(
        lambda s: (_z(s, 3.0 * s.rng.normal(size=len(s))), Normal(s.mean, 9.0 * s.spread**2)),
        r"^The predicted spread is the square of what is needed: was the variance given",
    ),
    "standard deviation given as variance": Fault(
        lambda s: (s.mean + 3.0 * s.spread**2 * s.rng.normal(size=len(s)), Normal(s.mean, 3.0**0.5 * s.spread)),
        r"^The predicted spread is the root of what is needed: was the standard deviation given",
    ),
    "unit: 2.54": _normal(lambda s: (2.54 * s.mean, 2.54 * s.spread), FACTOR + r"high \(", 2.54),
    "unit: 1,000": _normal(
        lambda s: (1000.0 * s.mean, 1000.0 * s.spread), FACTOR + r"high .*is the unit right\?$", 1000.0
    ),
    "unit: .001": _normal(
        lambda s: (s.mean / 1000.0, s.spread / 1000.0), FACTOR + r"low .*is the unit right\?$", 1000.0
    ),
    "log scale left": Fault(_log_left, r"mean is ([\d.,]+) times too low", _log_ratio),
    "mean and spread exchanged": _normal(
        lambda s: (s.spread, np.abs(s.mean)), r"mean is ([\d.,]+) times too low", 10.0 / np.exp(0.045)
    ),
    "tails lighter (uniform)": Fault(
        lambda s: (_z(s, s.rng.uniform(-(3.0**0.5), 3.0**0.5, len(s))), Normal(s.mean, s.spread)),
        r"^The targets have lighter tails than predicted: the predicted 50 % interval holds ([\d.]+) %, and [\d.]+ % ",
        100.0 * stats.norm.ppf(0.75) / 3.0**0.5,
    ),
    "tails heavier (t3)": Fault(
        lambda s: (_z(s, s.rng.standard_t(3.0, len(s)) / 3.0**0.5), Normal(s.mean, s.spread)),
        r"^The targets have heavier tails than predicted: the predicted 50 % interval holds ([\d.]+) %",
        100.0 * (2.0 * stats.t(3.0).cdf(stats.norm.ppf(0.75) * 3.0**0.5) - 1.0),
    ),
    "skew (gamma 2)": Fault(
        lambda s: (_z(s, (s.rng.gamma(2.0, size=len(s)) - 2.0) / 2.0**0.5), Normal(s.mean, s.spread)),
        r"^The targets are skewed to the right of the predictions: ([\d.]+) % lie above the 95 % quantile",
        100.0 * stats.gamma(2.0).sf(2.0 + 2.0**0.5 * stats.norm.ppf(0.95)),
    ),
    "1 % of the rows 8 spreads off (N5)": Fault(
        lambda s: (np.where(np.arange(len(s)) % 100 == 7, s.y + 8.0 * s.spread, s.y), Normal(s.mean, s.spread)),
        r"^([\d.]+) of 800 targets lie where the predictions put less than ",
        8.0,
    ),
    "the last 6 rows 8 spreads off": Fault(
        lambda s: (_last(s, 6, 8.0), Normal(s.mean, s.spread)),
        r"^([\d.]+) of 800 targets lie where the predictions put less than ",
        6.0,
    ),
    "half of the targets are 0 (N7)": Fault(
        lambda s: (_zeros(s, s.y, 0.5), Normal(s.mean / 2.0, np.sqrt(s.spread**2 / 2.0 + s.mean**2 / 4.0))),
        r"^([\d.]+) % of the targets are exactly 0, and the predictions give that 0 %\.$",
        _share_at(0.0),
    ),
    "a quarter of the targets are 1": Fault(
        lambda s: (
            _zeros(s, s.rng.beta(4.0, 4.0, len(s)), 0.25, 1.0),
            Normal(np.full(len(s), 0.625), np.full(len(s), 0.26)),
        ),
        r"^([\d.]+) % of the targets are exactly 1, and the predictions give that 0 %",
        _share_at(1.0),
    ),
    "a cap at 100": Fault(
        lambda s: (np.minimum(100.0, 90.0 + 8.0 * s.y - 8.0 * s.mean), Normal(np.full(len(s), 90.0), 8.0 * s.spread)),
        r"^([\d.]+) % of the targets are exactly 100, and the predictions give that 0 %",
        _share_at(100.0),
    ),
    "sparse counts, mean 2 times too high": Fault(_counts, FACTOR + r"high \(", 2.0),
    "counts overdispersed": Fault(_overdispersed, TOO_SMALL, _overdispersion),
    "counts with more zeros": Fault(
        _inflated, r"([\d.]+) % of the targets are (?:exactly )?0(?:,| where)", _share_at(0.0)
    ),
    "3 levels 1.5 times too near": Fault(
        lambda s: (s.y, (THREE, _levels(s, THREE, 1.0 / 1.5))),
        r"^The 80 % interval holds ([\d.]+) % of the targets",
        100.0 * (1.0 - 2.0 * stats.norm.sf(stats.norm.ppf(0.9) / 1.5)),
    ),
    "3 levels 3 times too wide": Fault(
        lambda s: (s.y, (THREE, _levels(s, THREE, 3.0))), r"^The 80 % interval holds ([\d.]+) % of the targets", 100.0
    ),
    "3 levels too near in a slice": Fault(
        lambda s: (s.y, (THREE, np.where((s.site == "b")[:, None], _levels(s, THREE, 0.5), _levels(s, THREE)))),
        B + r"the 80 % interval holds ([\d.]+) % of the targets",
        100.0 * (1.0 - 2.0 * stats.norm.sf(stats.norm.ppf(0.9) / 2.0)),
    ),
    "one level of 3 wrong": Fault(_one_level, r"^([\d.]+) % of the targets .* lie at or below the 90 % quantile", 80.0),
    "level and 1 - level exchanged": Fault(
        _exchanged, r"^The predicted quantiles fell as the level rises in ([\d.]+) %", 100.0
    ),
    "5 members, spread 2 times too small (N2)": Fault(lambda s: (s.y, _members(s, 5, factor=0.5)), TOO_SMALL, 2.0),
    "20 members, shifted by .5 (N2)": Fault(lambda s: (s.y, _members(s, 20, shift=0.5)), rf"^(?i:{TOO})", 0.523),
    "the same distribution in every row": _normal(
        lambda s: (np.full(len(s), 10.0), np.full(len(s), 2.27)),
        r"^Where age is .*(?:are|mean is) ([\d.,]+) (?:times )?too (?:high|low)",
        _apart_there,
    ),
}


def sentences_of(fault: Fault, split: Split) -> tuple[Array, Any, tuple[str, ...]]:
    """Targets, what was predicted, and what is said of it."""
    y, given = fault.make(split)
    levels, predicted = given if isinstance(given, tuple) else (None, given)
    asked = {} if levels is None else {"levels": list(levels)}
    found = congruence.evaluate(split.table, y, predicted, slices=["site"], metrics=METRICS, progress=False, **asked)
    return y, predicted, found.sentences


def judged(fault: Fault, split: Split) -> tuple[bool, bool, str]:
    """Whether the first sentence of a split names the fault, whether with its size; and the sentence."""
    y, law, sentences = sentences_of(fault, split)
    first = sentences[0] if sentences else "nothing is said"
    return *named(fault, split, y, law, first), first


def named(fault: Fault, split: Split, y: Array, law: Any, first: str) -> tuple[bool, bool]:
    """Whether a first sentence names the fault, and whether with its size."""
    found = re.search(fault.says, first)
    if not found or fault.size is None:
        return bool(found), bool(found)
    size = fault.size if isinstance(fault.size, float) else fault.size(split, y, law, first)
    return True, abs(float(found[1].replace(",", "")) / size - 1.0) <= WITHIN


def main() -> None:
    """Print a row for each fault."""
    given = asked(__doc__, splits=10, first=0, faults=[str], said=False)
    warnings.simplefilter("ignore")
    chosen = [name for name in FAULTS if not given.faults or any(part in name for part in given.faults)]
    head("fault", "named", "with its size", "first sentence of the first split")
    held = 0
    for name in chosen:
        results = [judged(FAULTS[name], Split(given.first + seed)) for seed in range(given.splits)]
        named, sized = (float(np.mean([each[part] for each in results])) for part in (0, 1))
        held += sized >= 0.5
        row(name, named, sized, results[0][2])
        for _, right, first in results if given.said else ():
            if not right:
                print(f"    {first}", flush=True)
    print(f"\n{held} of {len(chosen)} faults are named with their size within 15 % in at least half of the splits.")


if __name__ == "__main__":
    main()
