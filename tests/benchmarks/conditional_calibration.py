"""Level, power and intervals of the test of calibration given the input.

    python tests/benchmarks/conditional_calibration.py PART [--rows N] [--splits S] [--cases NAME ...]

Parts: ``level`` (true models of nine families), ``vectors`` (true models of two targets), ``power`` (faulty models,
beside the tests of congruence, of the kernel calibration error and of the marginal PIT; some of them ``--without``) and
``effects`` (coverage of the intervals). The record is conditional_calibration.md.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import scipy.stats
from simulations import AT, Kept, asked, head, machine, problem, row, share, uniformity

from congruence.kernels import (
    EXACT,
    Distribution,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    ZeroInflated,
    calibration_test,
    chi_square,
    cramer_von_mises,
    kolmogorov_smirnov,
    pit_values,
    prepare,
)
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.pit import ORDERS, pit_scores
from congruence.kernels.split import Split

SPLITS_PER_INPUTS = 20
LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])


def true_models(mean: np.ndarray, spread: np.ndarray) -> dict[str, Distribution | None]:
    """Laws that targets are drawn from and that predict them; None for an ensemble of 10."""
    n = len(mean)
    parts = (Normal(mean - spread, 0.5 * spread), Normal(mean + spread, spread))
    return {
        "normal": Normal(mean, spread),
        "t": StudentT(np.full(n, 4.0), mean, spread),
        "Poisson": Poisson(0.1 * mean),
        "Poisson, mean .05": Poisson(0.0025 * mean),
        "negative binomial, mean .5": NegativeBinomial(0.025 * mean, np.full(n, 0.5)),
        "zero-inflated": ZeroInflated(Poisson(0.2 * mean), np.full(n, 0.4)),
        "mixture": Mixture(np.array([0.4, 0.6]), parts),
        "ensemble of 10": None,
        "quantiles": Quantiles(LEVELS, Normal(mean, spread).quantile(LEVELS[None, :])),
    }


def prepared_split(n: int, seed: int, draws: int) -> tuple[PreparedCalibration, np.ndarray, np.ndarray, np.ndarray]:
    """New inputs with their bases and null; the inputs, conditional mean and spread."""
    x, mean, spread = problem(n, seed=seed)
    settings = CalibrationSettings(draws=draws)
    prepared = prepare_calibration(x, input_kernel=EXACT.input_kernel, settings=settings, seed=seed)
    return prepared, x, mean, spread


def level(splits: range, n: int, cases: list[str], draws: int, keep: Path | None) -> None:
    """True models: p-values of the whole test and by order, and false discoveries of the local reading."""
    kept = Kept(keep)
    for split in splits:
        if split == splits.start or split % SPLITS_PER_INPUTS == 0:
            prepared, x, mean, spread = prepared_split(n, split // SPLITS_PER_INPUTS, draws)
            inputs = prepare(x, input_kernel=EXACT.input_kernel)
            kept.save()
        for name, truth in true_models(mean, spread).items():
            if cases and name not in cases:
                continue
            model = truth
            if truth is None:
                values = Normal(mean, spread).sample(11, seed=split)
                y, model = values[:, 0], Samples(values[:, 1:])
            else:
                y = truth.sample(1, seed=split)[:, 0]
            pit = pit_values(y, model, seed=split)
            test = prepared.test_version(y, model, seed=split)
            read = local_reading(inputs.smoother, pit)
            kept.add(
                name, test.p_value, *test.by_order.values(), np.any(read.q_values <= AT), np.any(read.significant())
            )
    kept.save()
    head("model", "splits", "rejected at 5 %", "at 1 %", "KS p", *(f"{order}: at 5 %" for order in ORDERS),
         "any q <= .05", "any point named")  # fmt: skip
    for name, rows in kept.columns():
        p, by_order, read = rows[:, 0], rows[:, 1:5], rows[:, 5:]
        row(name, len(p), share(p <= AT), share(p <= 0.01), uniformity(p, draws), *np.mean(by_order <= AT, axis=0),
            *read.mean(axis=0))  # fmt: skip


def vectors(splits: range, n: int, draws: int, keep: Path | None) -> None:
    """p-values of true models of two targets: the whole test, and by output scale; new draws for every split."""
    kept = Kept(keep)
    for split in splits:
        if split == splits.start or split % SPLITS_PER_INPUTS == 0:
            prepared, _, mean, spread = prepared_split(n, split, draws)
            law = MultivariateNormal(np.column_stack([mean, 0.3 * mean**1.2]), np.column_stack([spread, 2.0 / spread]))
            kept.save()
        values = law.sample(11, seed=split)
        for name, model in (("normal", law), ("ensemble of 10", Samples(values[:, 1:]))):
            test = prepared.test_version(values[:, 0], model)
            kept.add(name, test.p_value, *test.by_order.values())
    kept.save()
    head("model", "splits", "rejected at 5 %", "at 10 %", "KS p", *(f"{scale}: at 5 %" for scale in test.by_order))
    for name, rows in kept.columns():
        p = rows[:, 0]
        row(name, len(p), share(p <= AT), share(p <= 0.1), uniformity(p, draws), *np.mean(rows[:, 1:] <= AT, axis=0))


def third_signal(x: np.ndarray) -> np.ndarray:
    """A direction of the inputs that neither mean nor spread follow, at unit variance."""
    signal = (x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)) @ np.random.default_rng(12).standard_normal(
        x.shape[1]
    )
    return signal / signal.std()


def faults(
    x: np.ndarray, mean: np.ndarray, spread: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray, Distribution]]:
    """Targets and models that miss their law, each in one way."""
    n, third = len(mean), third_signal(x)
    noise = rng.standard_normal(n)
    y = mean + spread * noise
    levels = 1.0 + 0.5 * np.tanh(scipy.stats.norm.ppf((np.arange(40) + 0.5) / 40))
    yield "homoscedastic", y, Normal(mean, np.full(n, np.sqrt(np.mean(spread**2))))
    pooled = tuple(Normal(mean, np.full(n, value)) for value in levels)
    yield "the same, marginal PIT uniform", y, Mixture(np.full(40, 1 / 40), pooled)
    yield "local bias of either sign", y, Normal(mean + 0.4 * np.tanh(3.0 * third) * spread, spread)
    skewed = np.sign(third) * (rng.gamma(4.0, size=n) - 4.0) / 2.0
    yield "skew that changes sign", mean + spread * skewed, Normal(mean, spread)
    modes = 0.85 * rng.choice((-1.0, 1.0), size=n) + np.sqrt(1.0 - 0.85**2) * noise
    yield "missing mode", mean + spread * modes, Normal(mean, spread)
    yield "wrong tail", mean + spread * rng.standard_t(3.0, size=n) / np.sqrt(3.0), Normal(mean, spread)
    yield "wrong on a tenth of the rows", y, Normal(np.where(np.arange(n) % 10 == 0, mean + 1.5, mean), spread)
    fine = np.exp(0.6 * np.sin(6.0 * third))
    yield "high-frequency spread", mean + spread * fine * noise, Normal(mean, spread * np.sqrt(np.mean(fine**2)))
    yield "ignores the input", y, Normal(np.full(n, np.mean(y)), np.full(n, np.std(y)))
    yield "none (true)", y, Normal(mean, spread)


Rival = Callable[[Split, np.ndarray, Distribution, np.ndarray, int], float]


def rivals() -> dict[str, Rival]:
    """p-values of other tests: (split, y, model, pit, seed)."""

    return {
        "CCE": lambda split, y, model, pit, seed: split.evaluate(y, model, draws=199, seed=seed).test.p_value,
        "SKCE": lambda split, y, model, pit, seed: calibration_test(y, model, replicates=199, seed=seed).p_value,
        "PIT: KS": lambda split, y, model, pit, seed: kolmogorov_smirnov(pit).p_value,
        "PIT: CvM": lambda split, y, model, pit, seed: cramer_von_mises(pit).p_value,
        "PIT: chi2": lambda split, y, model, pit, seed: chi_square(pit).p_value,
    }


def power(splits: range, n: int, cases: list[str], draws: int, without: list[str], keep: Path | None) -> None:
    """How often each fault is found at 5 %."""
    tests = {name: test for name, test in rivals().items() if name not in without}
    kept = Kept(keep)
    for split in splits:
        prepared, x, mean, spread = prepared_split(n, split, draws)
        inputs = prepare(x, input_kernel=EXACT.input_kernel)
        for name, y, model in faults(x, mean, spread, np.random.default_rng([100, split])):
            if cases and name not in cases:
                continue
            test, pit = prepared.test_version(y, model, seed=split), pit_values(y, model, seed=split)
            others = (rival(inputs, y, model, pit, split) for rival in tests.values())
            kept.add(name, test.p_value, *test.by_order.values(), *others)
        kept.save()
    head("fault", "splits", "this test", *ORDERS, *tests)
    for name, rows in kept.columns():
        row(name, len(rows), *np.mean(rows <= AT, axis=0))


def normal_faults(x: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Normal models of normal targets: the mean and standard deviation of the targets, in predicted spreads."""
    one, third = np.ones(len(mean)), third_signal(x)
    yield "true", 0.0 * one, one
    yield "biased by .3", 0.3 * one, one
    yield "local bias", 0.4 * np.tanh(3.0 * third), one
    yield "overconfident 1.5x", 0.0 * one, 1.5 * one
    yield "underconfident 1.5x", 0.0 * one, one / 1.5
    yield "homoscedastic", 0.0 * one, spread / np.sqrt(np.mean(spread**2))
    yield "ignores the input", (mean - mean.mean()) / 5.0, spread / 5.0


def expected_scores(shift: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """E phi_j(Phi(shift + scale Z)), (n, 4), by 80 Gauss-Hermite nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    pit = scipy.stats.norm.cdf(shift[:, None] + scale[:, None] * nodes)
    values = pit_scores(pit.ravel()).reshape(*pit.shape, 4)
    return np.einsum("nkj,k->nj", values, weights / weights.sum())


def effects(splits: range, n: int) -> None:
    """Bias, and coverage of the 95 % intervals on either side, for shares that are known."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in range(-(-len(splits) // SPLITS_PER_INPUTS)):
        prepared, x, mean, spread = prepared_split(n, batch, 1)
        vectors = prepared.bases.vectors(prepared.x)
        regression = LeaveOneOut.of_bases(prepared.bases)
        directions, leverage = regression.at(vectors)
        for name, shift, scale in normal_faults(x, mean, spread):
            expected = expected_scores(shift, scale)
            fitted = directions @ (regression.weights[:, None] * (directions.T @ expected))
            smoothed = (fitted - leverage[:, None] * expected) / (1.0 - leverage)[:, None]
            shares = np.mean(expected * smoothed, axis=0)
            for split in range(SPLITS_PER_INPUTS * batch, min(SPLITS_PER_INPUTS * (batch + 1), len(splits))):
                noise = np.random.default_rng([200, split]).standard_normal(n)
                scores = pit_scores(scipy.stats.norm.cdf(shift + scale * noise))
                known, sums = BlockSums(), BlockSums()
                regression.add_scores(known, vectors, scores)
                regression.add_effects(sums, known, vectors, scores)
                results = regression.effects(sums)
                found.setdefault(name, []).append(
                    np.array(
                        [
                            (share, np.mean(m**2), e.estimate, share < e.low - 1e-9, share > e.high, e.high - e.low)
                            for share, m, e in zip(shares, expected.T, results.values(), strict=True)
                        ]
                    )
                )
    head("model", "order", "mean square of m", "theta", "mean estimate", "its std", "covered", "below", "above")
    for name, rows in found.items():
        for j, order in enumerate(ORDERS):
            known, whole, estimate, below, above, _ = np.mean(rows, axis=0)[j]
            deviation = np.std([each[j, 2] - each[j, 0] for each in rows])
            row(name, order, whole, known, estimate, deviation, 1 - below - above, below, above)


def main() -> None:
    """Run one part."""
    parts = ("level", "vectors", "power", "effects")
    options = {"rows": 300, "splits": 40, "first": 0, "draws": 999, "cases": [str], "without": [str], "keep": Path}
    given = asked(__doc__, parts, **options)
    machine()
    started, splits = time.process_time(), range(given.first, given.first + given.splits)
    if given.part == "level":
        level(splits, given.rows, given.cases, given.draws, given.keep)
    elif given.part == "vectors":
        vectors(splits, given.rows, given.draws, given.keep)
    elif given.part == "power":
        power(splits, given.rows, given.cases, given.draws, given.without, given.keep)
    else:
        effects(splits, given.rows)
    print(f"\n{given.part}: n = {given.rows:,}, {given.draws} draws, {time.process_time() - started:.0f} CPU s")


if __name__ == "__main__":
    main()
