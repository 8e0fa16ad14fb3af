"""Level, power, intervals and cost of the test of conditional calibration.

    python tests/benchmarks/conditional_calibration.py PART [--rows N] [--splits S] [--cases NAME ...]

Parts: ``level`` (true models of seven families; ``--null gaussian`` forces the limit of many rows on few), ``vectors``
(true models of vector targets), ``power`` (faulty models, beside the tests of congruence, of the kernel calibration
error and of the marginal PIT, and MAPIE's measures of conditional coverage where MAPIE is installed), ``effects``
(coverage of the intervals), ``cost`` and ``million``. The kept record is conditional_calibration.md. Inputs and targets
are those of congruence_test.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.stats
from cce_engine import embeddings
from congruence_test import problem
from kept_p_values import KeptPValues, share, uniformity

from congruence.kernels import (
    EXACT,
    Distribution,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    ZeroInflatedPoisson,
    calibration_test,
    chi_square,
    cramer_von_mises,
    kolmogorov_smirnov,
    pit_values,
    prepare,
)
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.effects import LeaveOneOut
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.null import GaussianNull
from congruence.kernels.conditional_calibration.own_basis import own_quantiles
from congruence.kernels.conditional_calibration.prepared import (
    PreparedCalibration,
    prepare_calibration,
)
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.version_test import SharedNull
from congruence.kernels.congruence.outcome import benjamini_hochberg
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.congruence.test import congruence_tests
from congruence.tasks.scores.coverage_risk import CLASSIFIER

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
        "zero-inflated": ZeroInflatedPoisson(0.2 * mean, np.full(n, 0.4)),
        "mixture": Mixture(np.array([0.4, 0.6]), parts),
        "ensemble of 10": None,
        "quantiles": Quantiles(LEVELS, Normal(mean, spread).quantile(LEVELS[None, :])),
    }


def prepared_split(
    n: int, seed: int, draws: int | None, null: str = "exact"
) -> tuple[PreparedCalibration, PreparedCongruence, np.ndarray, np.ndarray]:
    """New inputs with their bases and null, conditional mean and spread."""
    x, mean, spread = problem(n, seed=seed)
    split = prepare(x, input_kernel=EXACT.input_kernel)
    settings = CalibrationSettings(draws=draws, null="exact")
    prepared = prepare_calibration(split, settings=settings, seed=seed)
    if null == "gaussian":  # at fewer rows than it is for, where it is worst
        moment = prepared.vectors.T.astype(np.float64) @ prepared.vectors
        limit = GaussianNull.of(moment, settings.draws_for(n), seed)
        vars(prepared)["null"] = SharedNull.of(prepared.bases, "gaussian", limit)  # before one is drawn
    return prepared, split, mean, spread


def level(n: int, splits: int, cases: list[str], draws: int, first: int, null: str, keep: Path | None) -> None:
    """True models: p-values of the whole test and by order, and false discoveries of the local reading.

    The splits from number ``first`` on.
    """
    kept, last, started = KeptPValues(keep), first + splits, time.process_time()
    for batch in range(first // SPLITS_PER_INPUTS, -(-last // SPLITS_PER_INPUTS)):
        prepared, inputs, mean, spread = prepared_split(n, batch, draws, null)
        for name, truth in true_models(mean, spread).items():
            if cases and name not in cases:
                continue
            for split in range(max(first, SPLITS_PER_INPUTS * batch), min(SPLITS_PER_INPUTS * (batch + 1), last)):
                model = truth
                if truth is None:
                    values = Normal(mean, spread).sample(11, seed=split)
                    y, model = values[:, 0], Samples(values[:, 1:])
                else:
                    y = truth.sample(1, seed=split)[:, 0]
                pit = pit_values(y, model, seed=split)
                test = prepared.test(pit, own_quantiles(y, model, prepared.settings.levels))
                read = local_reading(inputs.smoother, pit)
                found = [np.any(read.q_values <= 0.05), np.any(read.significant())]
                by_order = [np.any(benjamini_hochberg(column) <= 0.05) for column in read.p_values.T]
                kept.add(name, test.p_value, *test.by_order.values(), *found, *by_order)
        kept.save()
        print(f"batch {batch}, {time.process_time() - started:.0f} CPU s", flush=True)
    print(f"\n## Level: n = {n:,}, {draws} draws, {null} null, new inputs and draws every {SPLITS_PER_INPUTS}\n")
    print(
        f"| model | splits | rejected at 5 % | at 1 % | KS p | {' | '.join(ORDERS)} (at 5 %) | KS p of these "
        "| any q <= .05 | any point named | any q <= .05 by order |"
    )
    print("|---|" + "---:|" * 12)
    for name, rows in kept.columns():
        p, read = rows[:, :5], rows[:, 5:].mean(axis=0)
        ks = [uniformity(column, draws) for column in p.T]
        orders = " | ".join(f"{value:.3f}" for value in np.mean(p[:, 1:] <= 0.05, axis=0))
        print(
            f"| {name} | {len(p)} | {share(p[:, 0] <= 0.05)} | {share(p[:, 0] <= 0.01)} | {ks[0]:.3f} | {orders} | "
            f"{', '.join(f'{k:.2f}' for k in ks[1:])} | {read[0]:.3f} | {read[1]:.3f} | "
            f"{' '.join(f'{value:.3f}' for value in read[2:])} |",
            flush=True,
        )


def vectors(n: int, splits: int, draws: int, first: int, keep: Path | None) -> None:
    """p-values of true models of two targets: the whole test, and by output scale; new draws for every split."""
    kept, started, settings = KeptPValues(keep), time.process_time(), CalibrationSettings(draws=draws)
    for split in range(first, first + splits):
        if split == first or split % SPLITS_PER_INPUTS == 0:
            x, mean, spread = problem(n, seed=split)
            prepared = prepare_calibration(x, input_kernel=EXACT.input_kernel, settings=settings, seed=split)
            law = MultivariateNormal(np.column_stack([mean, 0.3 * mean**1.2]), np.column_stack([spread, 2.0 / spread]))
            kept.save()
            print(f"split {split}, {time.process_time() - started:.0f} CPU s", flush=True)
        values = law.sample(11, seed=split)
        for name, y, model in (
            ("normal", values[:, 0], law),
            ("ensemble of 10", values[:, 0], Samples(values[:, 1:])),
        ):
            test = prepared.test_version(y, model)
            kept.add(name, test.p_value, *test.by_order.values())
    kept.save()
    print(f"\n## Vector targets: n = {n:,}, q = 2, {draws} draws\n")
    print(f"| model | splits | rejected at 5 % | at 10 % | KS p | {' | '.join(test.by_order)} (at 5 %) |")
    print("|---|" + "---:|" * 7)
    for name, p in kept.columns():
        scales = " | ".join(f"{value:.3f}" for value in np.mean(p[:, 1:] <= 0.05, axis=0))
        print(
            f"| {name} | {len(p)} | {share(p[:, 0] <= 0.05)} | {share(p[:, 0] <= 0.1)} | "
            f"{uniformity(p[:, 0], draws):.3f} | {scales} |"
        )


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


Rival = Callable[[PreparedCongruence, np.ndarray, Distribution, np.ndarray, int], float]


def rivals() -> dict[str, Rival]:
    """p-values of other tests: (split, y, model, pit, seed)."""

    def skce(method: str) -> Rival:
        options = {"replicates": 199} if method == "asymptotic" else {}
        return lambda split, y, model, pit, seed: (
            calibration_test(y, model, method=method, seed=seed, **options).p_value
        )

    return {
        "CCE": lambda split, y, model, pit, seed: (
            congruence_tests(split, y, {"": model}, draws=199, seed=seed)[""].p_value
        ),
        "SKCE": skce("asymptotic"),
        "UCME": skce("cme"),
        "PIT: KS": lambda split, y, model, pit, seed: kolmogorov_smirnov(pit).p_value,
        "PIT: CvM": lambda split, y, model, pit, seed: cramer_von_mises(pit).p_value,
        "PIT: chi2": lambda split, y, model, pit, seed: chi_square(pit).p_value,
        **mapie_rivals(),
    }


MAPIE_DRAWS, ERT_DRAWS = 199, 39
ERT_COMPONENTS = 8
MAPIE_LEVEL = 0.9


def mapie_rivals() -> dict[str, Rival]:
    """MAPIE's measures of the coverage of central 90 % intervals as Monte-Carlo tests; none without MAPIE.

    HSIC of coverage and width (Feldman et al. 2021), the least coverage of three strata of width (SSC, Angelopoulos and
    Bates 2021), and the coverage-width criterion (CWC, Khosravi et al. 2010), which reads the coverage of all rows
    alone. MAPIE reports coefficients without a test: here their null is drawn from the model.
    """
    try:
        from mapie.metrics.regression import coverage_width_based, hsic, regression_ssc_score
    except ImportError:
        return {}

    def by_mapie(coefficient: Callable[..., np.ndarray], width: np.ndarray, covered: np.ndarray) -> np.ndarray:
        """For many sets of targets: all that the coefficient reads is widths, and which targets are covered."""
        low = np.where(covered, -0.5, 1.0) * width[:, None]
        return np.asarray(coefficient(np.zeros(len(width)), np.stack([low, low + width[:, None]], axis=1)))

    def dependence(width: np.ndarray, covered: np.ndarray) -> np.ndarray:
        """MAPIE's HSIC for many sets of targets: on indicators its second kernel is a + b (2 c - 1)(2 c' - 1)."""
        centred = covered - covered.mean(axis=0)
        kernel = np.exp(-((width[:, None] - width) ** 2))
        squares = 2.0 * (1.0 - np.exp(-1.0)) * np.einsum("nd,nd->d", kernel @ centred, centred) / (len(width) - 1) ** 2
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)))

    def intervals(model: Distribution, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ends and widths; equal widths have no strata, so all are moved by a thousandth."""
        margin = (1.0 - MAPIE_LEVEL) / 2.0
        low, high = model.quantile(np.array([[margin, 1.0 - margin]])).T
        return low, high, (high - low) * (1.0 + 1e-3 * np.random.default_rng([seed, 9]).standard_normal(len(low)))

    def rival(coefficient: Callable[..., np.ndarray]) -> Rival:
        def test(split: PreparedCongruence, y: np.ndarray, model: Distribution, pit: np.ndarray, seed: int) -> float:
            targets = np.column_stack([y, model.sample(MAPIE_DRAWS, seed=seed)])
            values = coefficient(targets, *intervals(model, seed))
            return float(np.mean(values >= values[0] - 1e-12))

        return test

    def inside(targets: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return (targets >= low[:, None]) & (targets <= high[:, None])

    def least_coverage(targets: np.ndarray, low: np.ndarray, high: np.ndarray, width: np.ndarray) -> np.ndarray:
        return -by_mapie(regression_ssc_score, width, inside(targets, low, high))

    def correlated(targets: np.ndarray, low: np.ndarray, high: np.ndarray, width: np.ndarray) -> np.ndarray:
        covered = inside(targets, low, high)
        values = dependence(width, covered)
        if len(targets) <= 1000:
            assert np.isclose(values[0], by_mapie(hsic, width, covered[:, :1])[0], rtol=1e-3, atol=1e-6)
        return values

    def criterion(targets: np.ndarray, low: np.ndarray, high: np.ndarray, width: np.ndarray) -> np.ndarray:
        return np.array([-coverage_width_based(column, low, high, 30.0, MAPIE_LEVEL) for column in targets.T])

    found = {"MAPIE: HSIC": rival(correlated), "MAPIE: SSC": rival(least_coverage), "MAPIE: CWC": rival(criterion)}
    return found | excess_risk_rival()


def excess_risk_rival() -> dict[str, Rival]:
    """MAPIE's excess risk of the target coverage (ERT, Braun et al. 2025), by 39 draws; none without covmetrics.

    A classifier on the leading components of the inputs, as in a report, fitted anew for each draw: the dearest of all,
    and the only one of MAPIE's that reads them.
    """
    try:
        from mapie.metrics.conditional import excess_risk_target_coverage
    except ImportError:
        return {}

    def test(split: PreparedCongruence, y: np.ndarray, model: Distribution, pit: np.ndarray, seed: int) -> float:
        margin = (1.0 - MAPIE_LEVEL) / 2.0
        ends = model.quantile(np.array([[margin, 1.0 - margin]]))
        targets = np.column_stack([y, model.sample(ERT_DRAWS, seed=seed)])
        x = np.asarray(split.operator.x, dtype=np.float64)
        _, _, axes = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
        inputs = x @ axes[:ERT_COMPONENTS].T
        values = np.array([
            excess_risk_target_coverage(
                inputs, column, MAPIE_LEVEL, y_intervals=ends, model_kwargs=CLASSIFIER
            )
            for column in targets.T
        ])  # fmt: skip
        return float(np.mean(values >= values[0] - 1e-12))

    return {"MAPIE: ERT": test}


def power(n: int, splits: int, cases: list[str], draws: int, without: list[str], first: int, keep: Path | None) -> None:
    """How often each fault is found at 5 %."""
    tests = {name: test for name, test in rivals().items() if name not in without}
    kept, made = KeptPValues(keep), 0
    seconds = np.zeros(1 + len(tests))
    for split in range(first, first + splits):
        x, mean, spread = problem(n, seed=split)
        inputs = prepare(x, input_kernel=EXACT.input_kernel)
        prepared = prepare_calibration(inputs, settings=CalibrationSettings(draws=draws), seed=split)
        for name, y, model in faults(x, mean, spread, np.random.default_rng([100, split])):
            if cases and name not in cases:
                continue
            started = time.process_time()
            test = prepared.test_version(y, model, seed=split)
            seconds[0] += time.process_time() - started
            row = [test.p_value, *test.by_order.values()]
            pit = pit_values(y, model, seed=split)
            for index, rival in enumerate(tests.values(), 1):
                started = time.process_time()
                row.append(rival(inputs, y, model, pit, split))
                seconds[index] += time.process_time() - started
            kept.add(name, *row)
            made += 1
        kept.save()
        each = ", ".join(f"{value:.3f}" for value in seconds / made)
        print(f"split {split}; CPU s per model: {each}", flush=True)
    print(f"\n## Power: n = {n:,}, {draws} draws, share rejected at 5 %\n")
    if not any(name.startswith("MAPIE") for name in tests):
        print("MAPIE is not installed, or left out.\n")
    print(f"| fault | splits | this test | {' | '.join(ORDERS)} | {' | '.join(tests)} |")
    print("|---|" + "---:|" * (6 + len(tests)))
    for name, rows in kept.columns():
        shares = " | ".join(f"{value:.2f}" for value in np.mean(rows <= 0.05, axis=0))
        print(f"| {name} | {len(rows)} | {shares} |", flush=True)


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


def effects(n: int, splits: int) -> None:
    """Bias, and coverage of the 95 % intervals on either side, for shares that are known."""
    found: dict[str, list[np.ndarray]] = {}
    for batch in range(-(-splits // SPLITS_PER_INPUTS)):
        prepared, _, mean, spread = prepared_split(n, batch, 1)
        regression = LeaveOneOut.of_bases(prepared.bases)
        directions, leverage = regression.at(prepared.vectors)
        x = problem(n, seed=batch)[0]
        for name, shift, scale in normal_faults(x, mean, spread):
            expected = expected_scores(shift, scale)
            fitted = directions @ (regression.weights[:, None] * (directions.T @ expected))
            smoothed = (fitted - leverage[:, None] * expected) / (1.0 - leverage)[:, None]
            shares = np.mean(expected * smoothed, axis=0)
            for split in range(SPLITS_PER_INPUTS * batch, min(SPLITS_PER_INPUTS * (batch + 1), splits)):
                noise = np.random.default_rng([200, split]).standard_normal(n)
                scores = pit_scores(scipy.stats.norm.cdf(shift + scale * noise))
                known, sums = BlockSums(), BlockSums()
                regression.add_scores(known, prepared.vectors, scores)
                regression.add_effects(sums, known, prepared.vectors, scores)
                results = regression.effects(sums)
                found.setdefault(name, []).append(
                    np.array(
                        [
                            (share, np.mean(m**2), e.estimate, share < e.low - 1e-9, share > e.high, e.high - e.low)
                            for share, m, e in zip(shares, expected.T, results.values(), strict=True)
                        ]
                    )
                )
    print(f"\n## Effects: {splits} splits of n = {n:,}, new inputs every {SPLITS_PER_INPUTS}\n")
    print("| model | order | mean square of m | theta | mean estimate | its std | covered | below | above |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, rows in found.items():
        for j, order in enumerate(ORDERS):
            share, whole, estimate, below, above, _ = np.mean(rows, axis=0)[j]
            deviation = np.std([row[j, 2] - row[j, 0] for row in rows])
            print(
                f"| {name} | {order} | {whole:.4f} | {share:.4f} | {estimate:.4f} | {deviation:.4f} | "
                f"{1 - below - above:.3f} | {below:.3f} | {above:.3f} |",
                flush=True,
            )


def cost(sizes: list[int]) -> None:
    """CPU seconds and peak memory by n, beside the congruence test of 999 draws."""
    print("\n## Cost: CPU s, one thread\n")
    print("| n | draws | spectrum | bases and null, once per split | a version | congruence test of a version | GiB |")
    print("|" + "---:|" * 7)
    for n in sizes:
        x, mean, spread = problem(n)
        y, model = np.random.default_rng(1).normal(mean, spread), Normal(mean, spread)
        marks = [time.process_time()]
        split = prepare(x, input_kernel=EXACT.input_kernel)
        _ = split.spectrum
        marks.append(time.process_time())
        prepared = prepare_calibration(split)
        marks.append(time.process_time())
        test = prepared.test_version(y, model)
        marks.append(time.process_time())
        congruence_tests(split, y, {"": model})
        marks.append(time.process_time())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        took = " | ".join(f"{seconds:.1f}" for seconds in np.diff(marks))
        print(f"| {n:,} | {test.draws:,} | {took} | {peak:.2f} |", flush=True)


def million(n: int, null: str) -> None:
    """Wall and CPU seconds and peak memory of a large split, without the protocol's kernel: x alone is there."""
    x = embeddings(n)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    pit = np.random.default_rng(0).uniform(size=n)
    centre = x[:, :1].astype(np.float64)
    quantiles = centre + np.array([-1.0, 0.0, 1.0]) * np.exp(x[:, 1:2])

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    print(f"\n## n = {n:,}, {null}: inputs take {x.nbytes / 2**30:.2f} GiB, peak {peak():.2f} GiB before\n")
    started, cpu = time.perf_counter(), time.process_time()
    settings = CalibrationSettings(null=null)
    prepared = prepare_calibration(x, input_kernel=EXACT.input_kernel, settings=settings)
    print(f"once: {time.perf_counter() - started:.0f} s, CPU {time.process_time() - cpu:.0f} s, peak {peak():.2f} GiB")
    started, cpu = time.perf_counter(), time.process_time()
    test = prepared.test(pit, quantiles)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(f"a version: {wall:.0f} s, CPU {cpu:.0f} s, peak {peak():.2f} GiB")
    print(f"p = {test.p_value:.3f}, draws {test.draws}, null {test.null}", flush=True)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["level", "vectors", "power", "effects", "cost", "million"])
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--draws", type=int, default=999)
    parser.add_argument("--null", choices=["exact", "gaussian"], default="exact", help="of ``level`` and ``million``")
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--without", nargs="*", default=[], help="tests to leave out of the comparison")
    parser.add_argument("--keep", type=Path, help="file of the p-values, which further splits are added to")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    started = time.process_time()
    if arguments.part == "level":
        level(
            arguments.rows,
            arguments.splits,
            arguments.cases,
            arguments.draws,
            arguments.first,
            arguments.null,
            arguments.keep,
        )
    if arguments.part == "vectors":
        vectors(arguments.rows, arguments.splits, arguments.draws, arguments.first, arguments.keep)
    if arguments.part == "power":
        power(
            arguments.rows,
            arguments.splits,
            arguments.cases,
            arguments.draws,
            arguments.without,
            arguments.first,
            arguments.keep,
        )
    if arguments.part == "effects":
        effects(arguments.rows, arguments.splits)
    if arguments.part == "cost":
        cost([4000, 20_000, 100_000])
    if arguments.part == "million":
        million(arguments.rows, arguments.null)
    print(f"\n{time.process_time() - started:.0f} CPU s")


if __name__ == "__main__":
    main()
