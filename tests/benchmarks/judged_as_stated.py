"""Level and power of the tests of predictions that state a few quantiles; shift and factor of few members.

    python tests/benchmarks/judged_as_stated.py [--levels 2 3 5 9 19] [--rows 200 500 2000] [--splits 200]
        [--power 40] [--congruence 0] [--truths normal] [--scored | --compared]
    python tests/benchmarks/judged_as_stated.py --members 3 5 10 20 50 100 --rows 500 --splits 1000

Targets follow known laws whose location and spread depend on the inputs. Three predictions: their own quantiles
("right"), the same with one of them moved until its level is wrong by a fifth of the distance to the nearer end ("one
level"), and the same around the median with 1.25 times the spread ("spread"). ``--power`` are the splits in which the
wrong ones are tested, too, ``--congruence`` those in which the test of congruence is run, too. ``--scored`` prints
CRPS, CCE and SKCE in place of the tests, ``--compared`` differences of CCE. With ``--members`` targets are normal and
members of another normal law: how often the 95 % intervals of shift and factor hold, and what is told first. The record
is judged_as_stated.md.
"""

import itertools

import numpy as np
import scipy.stats
from scipy.special import ndtr
from simulations import AT, asked, head, machine, row, share

from congruence.kernels import RBF, Quantiles, calibration_test, crps, prepare
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.engine.results import difference_of_influences

SETTINGS = CalibrationSettings(draws=999)
ZEROS = "zero-inflated"
LAWS = {
    "normal": scipy.stats.norm(),
    "gamma(2)": scipy.stats.gamma(2.0),
    "t3": scipy.stats.t(3.0),
    "lognormal": scipy.stats.lognorm(0.8),
}
COUNTS = {"Poisson, mean .5": 0.5, "Poisson, mean 1.5": 1.5, "Poisson, mean 5": 5.0}
TRUTHS = (*LAWS, ZEROS, *COUNTS)


def levels_of(count: int) -> np.ndarray:
    """Levels as models are asked for them: those of one interval of 90 %, and some between."""
    return np.linspace(0.05, 0.95, count) if count < 99 else np.arange(1, 100) / 100.0


class Truth:
    """A law at every row of inputs x (n, 2): its quantiles, and draws."""

    def __init__(self, name: str, x: np.ndarray) -> None:
        self.name = name
        self.location, self.spread = 2.0 * x[:, :1], np.exp(0.4 * x[:, 1:])
        # The share of zeros depends on the input, from .3 to .7.
        self.zeros = 0.5 + 0.2 * np.tanh(x[:, :1])

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """At levels (K,) or (n, K)."""
        if self.name in COUNTS:
            return scipy.stats.poisson.ppf(levels, COUNTS[self.name] * np.exp(0.25 * self.location))
        if self.name != ZEROS:
            return self.location + self.spread * LAWS[self.name].ppf(levels)
        above = np.maximum(levels - self.zeros, 0.0) / (1.0 - self.zeros)
        return self.spread * LAWS["gamma(2)"].ppf(above)

    def draws(self, rng: np.random.Generator) -> np.ndarray:
        """One a row, (n,)."""
        return self.quantiles(rng.random(self.spread.shape))[:, 0]


def predictions(truth: Truth, levels: np.ndarray) -> dict[str, np.ndarray]:
    """Quantiles (n, K): right ones, and wrong ones."""
    right = truth.quantiles(levels)
    moved = levels.copy()
    place = np.argmin(np.abs(levels - 0.7))
    moved[place] -= 0.2 * min(levels[place], 1.0 - levels[place])
    middle = truth.quantiles(np.array([0.5]))
    return {
        "right": right,
        "one level": np.sort(truth.quantiles(moved), axis=1),
        "spread": middle + 1.25 * (right - middle),
    }


def rejected(name: str, count: int, n: int, splits: int, of_power: int, of_congruence: int) -> None:
    """Print a row of the table."""
    levels, found = levels_of(count), {}
    rng = np.random.default_rng([n, count, TRUTHS.index(name)])
    x = rng.standard_normal((n, 2))
    prepared = prepare_calibration(x, input_kernel=RBF(0.5), settings=SETTINGS)
    system = prepare(x, input_kernel=RBF(0.5), regularization=0.01)
    truth = Truth(name, x)
    stated = predictions(truth, levels)
    for split in range(splits):
        y = truth.draws(rng)
        for kind, values in stated.items():
            if split >= of_power and kind != "right":
                continue
            law = Quantiles(levels, values)
            found.setdefault(kind, []).append(prepared.version(y, law, read=False).test.p_value <= AT)
            if kind == "right" and split < of_congruence:
                p = system.congruence_test(y, law, draws=199, seed=split).p_value
                found.setdefault("congruence", []).append(p <= AT)
    shares = {kind: share(np.array(hits)) for kind, hits in found.items()}
    row(name, count, f"{n:,}", *(shares.get(kind, "") for kind in ("right", "congruence", "one level", "spread")))


def scored(name: str, count: int, n: int, splits: int) -> None:
    """Print how right quantiles score, and how often those that are too close or too wide score lower."""
    levels, rng = levels_of(count), np.random.default_rng([n, count, TRUTHS.index(name)])
    x = rng.standard_normal((n, 2))
    system, truth = prepare(x, input_kernel=RBF(0.5), regularization=0.01), Truth(name, x)
    right, middle = truth.quantiles(levels), truth.quantiles(np.array([0.5]))
    laws = [Quantiles(levels, middle + factor * (right - middle)) for factor in (1.0, 0.8, 1.25)]
    found = []
    for split in range(splits):
        y = truth.draws(rng)
        congruence = [system.evaluate(y, law, draws=0, seed=split) for law in laws]
        of_pairs = calibration_test(y, laws[0], seed=split).p_value
        scores = [float(np.mean(crps(y, law))) for law in laws]
        found.append([*(each.mean for each in congruence), congruence[0].band.mean, of_pairs, *scores])
    cce, expected, of_pairs, scores = np.split(np.array(found).T, [3, 4, 5])
    lower = [f"{np.mean(values[wrong] < values[0]):.2f}" for values in (cce, scores) for wrong in (1, 2)]
    ratio = f"{cce[0].mean() / expected[0].mean():.2f}"
    row(name, count, f"{n:,}", ratio, share(of_pairs[0] <= AT), *lower)


def compared(name: str, n: int, splits: int) -> None:
    """Print the difference of the mean CCE^2 of pairs, with and without the noise of each one's own targets."""
    rng = np.random.default_rng([n, TRUTHS.index(name)])
    x = rng.standard_normal((n, 2))
    system, truth = prepare(x, input_kernel=RBF(0.5), regularization=0.01), Truth(name, x)
    few, more, middle = levels_of(3), levels_of(9), truth.quantiles(np.array([0.5]))
    right, finer = (Quantiles(levels, truth.quantiles(levels)) for levels in (few, more))
    close = Quantiles(few, middle + 0.8 * (right.values - middle))
    pairs = {"3 and 9 levels, right": (right, finer), "3 levels, at .8 and right": (close, right)}
    found = {(pair, shares): [] for pair in pairs for shares in (True, False)}
    for split in range(splits):
        y = truth.draws(rng)
        for pair, laws in pairs.items():
            known = [system.evaluate(y, law, draws=0, seed=split).uncertainty.influence for law in laws]
            for shares in (True, False):
                each = difference_of_influences(*known, shares_targets=shares)
                found[pair, shares].append([each.difference / each.standard_error, each.p_value])
    for (pair, shares), values in found.items():
        z, p = np.array(values).T
        worse, better = share((p <= AT) & (z > 0.0)), share((p <= AT) & (z < 0.0))
        row(name, pair, "with it" if shares else "without", f"{z.mean():+.2f}", worse, better)


def few_members(members: int, factor: float, shift: float, n: int, splits: int) -> None:
    """Print how an ensemble's shift and factor are read."""
    rng, found = np.random.default_rng([members, int(100 * factor), int(10 * shift)]), []
    for _ in range(splits):
        below = rng.binomial(members, ndtr(shift + factor * rng.standard_normal(n)))
        read = group_reading((below + rng.random(n)) / (members + 1.0), members=members)
        pairs = ((read.factor_interval, factor), (read.shift_interval, shift))
        held = [low <= true <= high for (low, high), true in pairs]
        found.append([read.factor, read.shift, *held, read.dominant in ("skew", "tails")])
    columns = np.array(found).T
    medians, shares = (f"{np.median(column):.2f}" for column in columns[:2]), (share(column) for column in columns[2:])
    row(members, f"{factor:g}", f"{shift:g}", *medians, *shares)


if __name__ == "__main__":
    splits = {"splits": 200, "power": 40, "congruence": 0}
    cases = {"levels": [2, 3, 5, 9, 19], "rows": [200, 500, 2000], "truths": list(TRUTHS)}
    given = asked(__doc__, **splits, **cases, scored=False, compared=False, members=[int])
    machine()
    if given.members:
        head(
            "members",
            "factor",
            "shift",
            "median factor",
            "median shift",
            "factor held",
            "shift held",
            "shape told first",
        )
        for case in itertools.product(given.members, (0.67, 1.0, 1.5, 2.0), (0.0, 0.5), given.rows):
            few_members(*case, given.splits)
        raise SystemExit
    if given.scored:
        too = [f"{score} lower {which}" for score in ("CCE", "CRPS") for which in ("at .8", "at 1.25")]
        head("truth", "levels", "rows", "CCE of right / expected", "SKCE rejects right", *too)
        for case in itertools.product(given.truths, given.levels, given.rows):
            scored(*case, given.splits)
        raise SystemExit
    if given.compared:
        head("truth", "first and second", "the noise of own targets", "mean z", "first is worse", "first is better")
        for case in itertools.product(given.truths, given.rows):
            compared(*case, given.splits)
        raise SystemExit
    head("truth", "levels", "rows", "right", "right, congruence", "one level wrong by a fifth", "spread wrong by 1.25")
    for case in itertools.product(given.truths, given.levels, given.rows):
        rejected(*case, given.splits, given.power, given.congruence)
