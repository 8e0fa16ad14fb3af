"""Right versions called wrong where targets are rounded as coarsely as they vary, and wrong ones that are found.

    python tests/benchmarks/rounded_targets.py [--tests calibration] [--predictions normal] [--rows 100 500]
        [--steps 0.5 1 2] [--splits 200] [--wrong]

Targets are rounded to so many spreads; 0 leaves them. New targets in every split, new inputs in every tenth. Shares are
those of p at most .05; of the look for correlation, of rows in the order of a slow input, those where any is found.
``--wrong`` tests versions whose spread is too small by 1.3, and a bias of .3 spreads. ``--refitted`` prints
the mean spread that a recalibration gives to a right version and to one whose spread is too small by 1.5, where 1 is
right. The record is ``rounded_targets.md``.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.stats
from simulations import AT, asked, head, machine, row, share

from congruence.kernels import (
    RBF,
    Distribution,
    Gamma,
    MultivariateNormal,
    Normal,
    Quantiles,
    Samples,
    StudentT,
    calibration_test,
    prepare,
)
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import correlations, dependence_scores
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.recalibration.fit import fit_recalibration, input_features

PER_INPUTS = 10
GROUPED = "normal, groups of 5, correlation .5"
QUANTILES = [f"{count} {kind}" for kind in ("quantiles", "quantiles, one law", "rounded quantiles",
             "rounded quantiles, one law") for count in (3, 5, 9)]  # fmt: skip
PREDICTIONS = ("normal", "normal, mean by an input", GROUPED, "gamma(2)", "t3", "exponential", "two targets",
               "20 draws", "5 draws of two targets", *QUANTILES)  # fmt: skip
TESTS = ("calibration", "congruence", "SKCE", "correlation")
WRONG = {"right": (0.0, 1.0), "spread too small by 1.3": (0.0, 1.0 / 1.3), "bias of .3 spreads": (0.3, 1.0)}


def rounded(y: np.ndarray, step: float) -> np.ndarray:
    return step * np.round(y / step) if step else y


def drawn(
    name: str, x: np.ndarray, step: float, rng: np.random.Generator, bias: float, factor: float
) -> tuple[np.ndarray, Distribution]:
    """Rounded targets and a prediction that is right but for a bias in spreads and a factor of its spread."""
    n, mean = len(x), x[:, 0] if name not in ("normal", GROUPED) else np.zeros(len(x))
    if name == "two targets":
        spread = np.array([1.0, 3.0])
        middle, of_all = np.stack([mean, 0.0 * mean], axis=1), np.broadcast_to(spread, (n, 2))
        y = rng.normal(middle, of_all) / spread
        return rounded(y, step) * spread, MultivariateNormal(middle + bias * of_all, factor * of_all)
    if "draws" in name:
        shape = (n, 6, 2) if "two" in name else (n, 21)
        values = mean.reshape(n, *[1] * (len(shape) - 1)) + rng.standard_normal(shape)
        middle = values[:, 1:].mean(axis=1, keepdims=True)
        return rounded(values[:, 0], step), Samples(middle + bias + factor * (values[:, 1:] - middle))
    if name in QUANTILES:
        levels, is_one = np.linspace(0.05, 0.95, int(name[0])), name.endswith("one law")
        mean, spread = (rng.uniform(), 1.0) if is_one else (2.0 * mean, np.exp(0.4 * x[:, 1]))
        law = Normal(np.broadcast_to(mean, n), np.broadcast_to(spread, n))
        values = Normal(law.loc + bias * law.scale, factor * law.scale).quantile(levels[None, :])
        y = rounded(rng.normal(law.loc, law.scale), step)
        return y, Quantiles(levels, rounded(values, step) if "rounded" in name else values)
    if name in ("gamma(2)", "exponential"):
        shape = 2.0 if name == "gamma(2)" else 1.0
        law = Gamma(np.full(n, shape), np.full(n, 1.0 / np.sqrt(shape)))  # of spread 1
        return np.maximum(rounded(rng.gamma(shape, 1.0 / np.sqrt(shape), n), step), 0.0), law
    if name == "t3":
        return rounded(rng.standard_t(3.0, n), step), StudentT(np.full(n, 3.0), np.zeros(n), np.ones(n))
    z = rng.standard_normal(n)
    if name == GROUPED:
        z = np.sqrt(0.5) * (rng.standard_normal(n // 5)[np.arange(n) // 5] + z)
    return rounded(mean + z, step), Normal(mean + bias, np.full(n, factor))


def tester(test: str, name: str, x: np.ndarray) -> Callable[[np.ndarray, Distribution, int], bool]:
    """What says of targets, prediction and a seed whether the prediction is called wrong."""
    dependence = RowDependence.of(len(x), groups=np.arange(len(x)) // 5) if name == GROUPED else None
    if test == "calibration":
        found = prepare_calibration(x, input_kernel=RBF(0.5), settings=CalibrationSettings(draws=999))
        return lambda y, law, seed: found.test_version(y, law, seed=seed, dependence=dependence).p_value <= AT
    if test == "congruence":
        split = replace(prepare(x, input_kernel=RBF(0.5)), dependence=dependence)
        return lambda y, law, seed: split.congruence_test(y, law, draws=199, seed=seed).p_value <= AT
    if test == "SKCE":
        return lambda y, law, seed: calibration_test(y, law, seed=seed).p_value <= AT
    order = np.argsort(x[:, 0])
    return lambda y, law, seed: any(
        look.is_found for look in correlations(dependence_scores(y[order], law[order]), seed=seed)
    )


def rejected(test: str, name: str, n: int, steps: list[float], splits: int, wrong: str) -> None:
    """Print a row of the table."""
    found: list[Any] = []
    for step in steps:
        rng, hits = np.random.default_rng([n, int(100 * step), PREDICTIONS.index(name)]), []
        for split in range(splits):
            if split % PER_INPUTS == 0:
                x = rng.standard_normal((n, 2))
                is_wrong = tester(test, name, x)
            hits.append(is_wrong(*drawn(name, x, step, rng, *WRONG[wrong]), split))
        found.append(share(np.array(hits)))
    row(test, name, wrong, f"{n:,}", splits, *found)


def refitted(n: int, steps: list[float], splits: int) -> None:
    """Print the mean spread of a recalibrated version, where 1 is right."""
    for factor in (1.0, 1.5):
        found = []
        for step in steps:
            rng, spreads = np.random.default_rng([n, int(100 * step)]), []
            for split in range(splits):
                x = rng.standard_normal((n, 2))
                y, law = drawn("normal, mean by an input", x, step, rng, 0.0, 1.0 / factor)
                features = input_features(input_spectrum(x, RBF(0.5), 0.1), x)
                spreads.append(np.mean(fit_recalibration(features, y, law, seed=split)(x, law).std()))
            found.append(f"{np.mean(spreads):.3f} ({scipy.stats.sem(spreads):.3f})")
        row(f"{factor:g}", f"{n:,}", splits, *found)


if __name__ == "__main__":
    numbers = {"rows": [100, 500], "steps": [0.5, 1.0, 2.0], "splits": 200}
    given = asked(__doc__, tests=["calibration"], predictions=["normal"], **numbers, wrong=False, refitted=False)
    machine()
    steps = [f"{step:g}" for step in given.steps]
    if given.refitted:
        head("spread too small by", "n", "splits", *steps)
        for n in given.rows:
            refitted(n, given.steps, given.splits)
        raise SystemExit
    head("test", "predictions", "version", "n", "splits", *steps)
    versions = list(WRONG)[1:] if given.wrong else ["right"]
    for test, name, n, version in itertools.product(given.tests, given.predictions, given.rows, versions):
        rejected(test, name, n, given.steps, given.splits, version)
