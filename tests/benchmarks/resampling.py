"""Do intervals and p-values from resampled points keep what they state? Simulations with a known answer.

    python tests/benchmarks/resampling.py [--repetitions 1000]

Prints the tables of resampling.md: coverage of 95 % intervals of the expected calibration error and of mean scores, and
the level of the paired comparison where two models have the same score; all, or some ``--parts``: calibration error,
mean scores, weights, groups, replicates, pairs.
"""

import itertools
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from simulations import AT, asked, head, machine, row

from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Normal, Poisson
from congruence.kernels.pit import pit_values
from congruence.kernels.resampling import PairedResampling, ScoreStatistics, mean_of, root_of

LEVELS = np.linspace(1e-5, 1.0 - 1e-5, 50)
CENTERS = {f"pit_{j}": float(level) for j, level in enumerate(LEVELS)}


def below(pit: np.ndarray) -> np.ndarray:
    """Which PIT values are at or below each level, (n, 50)."""
    return (pit[:, None] <= LEVELS).astype(float)


def calibration_error(observed: np.ndarray) -> np.ndarray:
    """ECE from the observed shares (..., 50)."""
    return np.abs(observed - LEVELS).mean(axis=-1)


def population_error(location: float, spread: float) -> float:
    """ECE of N(0, 1) for targets of N(location, spread^2)."""
    return float(calibration_error(ndtr((ndtri(LEVELS) - location) / spread)))


def calibration_intervals(repetitions: int) -> None:
    """Coverage of the population's ECE by its interval."""
    head("model of N(0, 1)", "n", "ECE", "mean estimate", "mean interval", "coverage")
    targets = {"calibrated": (0.0, 1.0), "overconfident: sd 1.5": (0.0, 1.5), "sd 1.05": (0.0, 1.05)}
    for name, law in (*targets.items(), ("Poisson(.5), randomised PIT", None)):
        truth = 0.0 if law is None else population_error(*law)
        for n in (500, 5_000, 50_000):
            count = repetitions if n < 50_000 else repetitions // 2
            found = np.empty((count, 3))
            for i in range(count):
                rng = np.random.default_rng([n, i])
                if law is None:
                    pit = pit_values(rng.poisson(0.5, n), Poisson(np.full(n, 0.5)), seed=i)
                else:
                    pit = ndtr(rng.normal(*law, n))
                statistics = ScoreStatistics.of({key: pit <= level for key, level in CENTERS.items()})
                estimate = statistics.mean_absolute_deviation(CENTERS, resamples=500)
                found[i] = estimate.value, estimate.low, estimate.high
            covered = np.mean((found[:, 1] <= truth) & (truth <= found[:, 2]))
            value, low, high = found.mean(axis=0)
            row(name, n, f"{truth:.4f}", f"{value:.4f}", f"{low:.4f} to {high:.4f}", covered)


def mean_score_intervals(repetitions: int) -> None:
    """Coverage of expected NLL and CRPS of N(0, 1) at 500 rows."""
    head("targets", "score", "coverage at n = 500")
    n, model = 500, Normal(np.zeros(500), 1.0)
    rng = np.random.default_rng(0)
    for name, draw in (("N(0, 1)", rng.standard_normal), ("Student t, 5 degrees", lambda k: rng.standard_t(5, k))):
        y = draw(4_000_000)
        law = Normal(np.zeros(len(y)), 1.0)
        truth = {"nll": -law.log_prob(y).mean(), "crps": law.crps(y).mean()}
        covered = dict.fromkeys(truth, 0)
        for _ in range(repetitions):
            y = draw(n)
            estimates = ScoreStatistics.of({"nll": -model.log_prob(y), "crps": model.crps(y)}).estimates()
            for score, value in truth.items():
                covered[score] += estimates[score].low <= value <= estimates[score].high
        for score, hits in covered.items():
            row(name, score, hits / repetitions)


def weighted_intervals(repetitions: int) -> None:
    """Coverage of weighted means, where an interval is given, and how often it is; skewed scores of 60 rows."""
    head(
        "weights", "score", "n", "median of effective rows", "intervals given", "coverage of these", "of all, if given"
    )
    draws = {
        "Pareto 1.1": lambda x, rng: rng.pareto(1.1, len(x)) + 1.0,
        "Pareto 2": lambda x, rng: rng.pareto(2.0, len(x)) + 1.0,
        "exp(1.5 x)": lambda x, rng: np.exp(1.5 * x),
        "exp(.7 x)": lambda x, rng: np.exp(0.7 * x),
        "equal": lambda x, rng: np.ones(len(x)),
    }
    scores = {
        "z^2 / 2": lambda x, z: 0.5 * z**2,
        "|z| <= 1.645": lambda x, z: (np.abs(z) <= 1.6448536).astype(float),
        "|z| exp(x / 2)": lambda x, z: np.abs(z) * np.exp(0.5 * x),
        "exp(z)": lambda x, z: np.exp(z),
    }
    for name, draw in draws.items():
        tilt = {"exp(1.5 x)": 1.5, "exp(.7 x)": 0.7}.get(name, 0.0)
        truths = (0.5, 0.9, np.sqrt(2.0 / np.pi) * np.exp(0.125 + 0.5 * tilt), np.exp(0.5))
        for n in (60,) if name == "equal" else (100, 500, 2000):
            for (score, of), truth in zip(scores.items(), truths, strict=True):
                rng, found = np.random.default_rng([n, 5]), np.empty((repetitions, 3))
                for i in range(repetitions):
                    x, z = rng.standard_normal((2, n))
                    weights = None if name == "equal" else draw(x, rng)
                    statistics = ScoreStatistics.of({"score": of(x, z)}, weights=weights)
                    estimate = statistics.estimates()["score"]
                    covers = estimate.low <= truth <= estimate.high
                    found[i] = statistics.effective_rows, statistics.too_few() == "", covers
                given = found[:, 1] > 0.0
                kept = f"{found[given, 2].mean():.3f}" if given.sum() >= 30 else "-"
                row(name, score, n, f"{np.median(found[:, 0]):.0f}", found[:, 1].mean(), kept, found[:, 2].mean())


def grouped_intervals(repetitions: int) -> None:
    """The same of means over groups of unequal sizes whose rows share an effect."""
    head("groups", "sizes", "effect", "intervals given", "coverage of these", "of all")
    sizes = {
        "equal": lambda count, rng: np.full(count, 10),
        "lognormal": lambda count, rng: np.ceil(5.0 * np.exp(rng.normal(size=count))).astype(int),
        "one holds half": lambda count, rng: np.r_[np.full(count - 1, 10), 10 * (count - 1)],
    }
    for count in (10, 30, 100):
        for name, draw in sizes.items():
            for effect in ("normal", "chi-squared"):
                rng, found = np.random.default_rng([count, 6]), np.empty((repetitions, 2))
                for i in range(repetitions):
                    shared = rng.standard_normal(count)
                    shared = shared if effect == "normal" else shared**2 - 1.0
                    labels = np.repeat(np.arange(count), draw(count, rng))
                    blocks = DependentBlocks(labels, count, "groups")
                    values = shared[labels] + rng.standard_normal(len(labels))
                    statistics = ScoreStatistics.of({"score": values}, keys=labels)
                    estimate = statistics.estimates()["score"]
                    found[i] = statistics.too_few(blocks) == "", estimate.low <= 0.0 <= estimate.high
                given = found[:, 0] > 0.0
                kept = f"{found[given, 1].mean():.3f}" if given.sum() >= 30 else "-"
                row(count, name, effect, found[:, 0].mean(), kept, found[:, 1].mean())


def replicated_intervals(repetitions: int) -> None:
    """Coverage of expected scores over all inputs, where each input that was drawn has several rows."""
    head("inputs", "rows of each", "spread", "score", "covered as rows", "with each input a group")
    for (inputs, copies), slope in itertools.product(((150, 2), (60, 5), (20, 15)), (0.0, 0.5)):
        truth = {"nll": 0.5 * np.log(2.0 * np.pi) + 0.5, "crps": np.exp(slope**2 / 2.0) / np.sqrt(np.pi)}
        held = {(name, grouped): 0 for name in truth for grouped in (False, True)}
        labels, zeros = np.repeat(np.arange(inputs), copies), np.zeros(inputs * copies)
        for i in range(repetitions):
            rng = np.random.default_rng([7, i])
            law = Normal(zeros, np.exp(slope * rng.standard_normal(inputs))[labels])
            y = law.scale * rng.standard_normal(len(labels))
            scores = {"nll": -law.log_prob(y), "crps": law.crps(y)}
            for grouped in (False, True):
                estimates = ScoreStatistics.of(scores, keys=labels if grouped else None).estimates()
                for name, value in truth.items():
                    held[name, grouped] += estimates[name].low <= value <= estimates[name].high
        for name in truth:
            spread = "exp(x / 2)" if slope else "1"
            row(inputs, copies, spread, name, *(held[name, grouped] / repetitions for grouped in (False, True)))


def equal_spread(error: object, spread: float) -> float:
    """The spread above 1 at which ``error`` is what it is at ``spread``."""
    return float(brentq(lambda other: error(other) - error(spread), 1.0, 10.0))


def nll(spread: float) -> float:
    """Expected NLL of N(0, spread^2) for N(0, 1), less a constant."""
    return float(np.log(spread) + 0.5 / spread**2)


def crps(spread: float) -> float:
    """Expected CRPS of N(0, spread^2) for N(0, 1)."""
    return float(np.sqrt(2.0 * (1.0 + spread**2) / np.pi) - spread / np.sqrt(np.pi))


def paired_metric(case: str, n: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """One sample of two models that have the same expected metric."""
    y = rng.normal(size=n)
    if case.startswith("NLL"):
        spreads = (0.8, equal_spread(nll, 0.8))
        return (*(-Normal(np.zeros(n), np.full(n, s)).log_prob(y) for s in spreads), mean_of)
    if case.startswith("CRPS"):
        spreads = (0.7, equal_spread(crps, 0.7))
        return (*(Normal(np.zeros(n), np.full(n, s)).crps(y) for s in spreads), mean_of)
    if case.startswith("RMSE"):
        return ((y - 0.3) ** 2, (y + 0.3) ** 2, root_of)
    if case == "ECE, both calibrated":
        known = rng.normal(size=(2, n))
        y = known.sum(axis=0) + rng.normal(size=n)
        return (*(below(ndtr((y - part) / np.sqrt(2.0))) for part in known), calibration_error)
    if case == "ECE, too narrow and too wide":
        error = lambda spread: population_error(0.0, 1.0 / spread)  # noqa: E731
        return (*(below(ndtr(y / s)) for s in (0.7, equal_spread(error, 0.7))), calibration_error)
    bias = float(case.rsplit(" ", 1)[1])
    return (below(ndtr(y - bias)), below(ndtr(y + bias)), calibration_error)


def paired_levels(repetitions: int) -> None:
    """Share of p-values at most .05, and of intervals that hold 0."""
    head("two models with the same", "n", "p <= .05", "intervals with 0")
    cases = ("NLL, too narrow and too wide", "CRPS, too narrow and too wide", "RMSE, biased up and down")
    cases += ("ECE, both calibrated", "ECE, too narrow and too wide")
    cases += tuple(f"ECE, biased up and down by {bias}" for bias in (0.02, 0.05, 0.1, 0.3))
    for n in (150, 2000):
        resampling = PairedResampling(n, resamples=499)
        for case in cases:
            rejected = covered = 0
            for i in range(repetitions):
                metric = paired_metric(case, n, np.random.default_rng([n, i]))
                result = resampling.compare(*metric)
                rejected += result.p_value <= AT
                covered += result.low <= 0.0 <= result.high
            row(case, n, rejected / repetitions, covered / repetitions)


if __name__ == "__main__":
    parts = {
        "calibration error": calibration_intervals,
        "mean scores": mean_score_intervals,
        "weights": weighted_intervals,
        "groups": grouped_intervals,
        "replicates": replicated_intervals,
        "pairs": paired_levels,
    }
    given = asked(__doc__, repetitions=1000, parts=list(parts))
    machine()
    for name in given.parts:
        parts[name](given.repetitions)
