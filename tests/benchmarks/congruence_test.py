"""Level and power of the congruence test: `python tests/benchmarks/congruence_test.py level|blocks|code|power`.

``level``: true models over simulated splits in memory. ``blocks``: the same by the passes of the row blocks, on three
uneven blocks, 199 simulated splits. ``code``: the simulated splits alone, on pools that are exchangeable by their
making. ``power``: wrong models. The record is congruence_test.md.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from simulations import AT, Kept, asked, head, machine, problem, row, share, uniformity

from congruence.kernels import (
    EXACT,
    Distribution,
    Gamma,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    StudentT,
    ZeroInflated,
    prepare,
)
from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.congruence_test import TIE, SimulatedSplits
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.plan import Ask

SPLITS_PER_INPUTS = 50
BLOCK_DRAWS, LANDMARKS = 199, 200


def congruence_tests(split, y, versions, **asked):
    """The test of every version on a prepared split."""
    return {name: result.test for name, result in split.evaluate(y, versions, **asked).items()}


def true_models(mean: np.ndarray, spread: np.ndarray) -> dict[str, Distribution | None]:
    """Laws that targets are drawn from and that predict them; None for an ensemble of 10."""
    n = len(mean)
    return {
        "normal": Normal(mean, spread),
        "Poisson": Poisson(0.2 * mean),
        "negative binomial": NegativeBinomial(0.2 * mean, np.full(n, 0.3)),
        "gamma": Gamma(mean, np.ones(n)),
        "t, 3 degrees of freedom": StudentT(np.full(n, 3.0), mean, spread),
        "zero-inflated Poisson": ZeroInflated(Poisson(0.2 * mean), np.full(n, 0.4)),
        "mixture of two normals": Mixture(
            np.array([0.4, 0.6]), (Normal(mean - 3.0, spread), Normal(mean + 3.0, spread))
        ),
        "ensemble of 10": None,
    }


def drawn(mean: np.ndarray, spread: np.ndarray, split: int) -> Iterator[tuple[str, int, np.ndarray, Distribution]]:
    """Name, seed, targets and law of every true model."""
    for number, (name, truth) in enumerate(true_models(mean, spread).items()):
        seed = 10 * split + number
        if truth is None:
            values = Normal(mean, spread).sample(11, seed=seed)
            yield name, seed, values[:, 0], Samples(values[:, 1:])
        else:
            yield name, seed, truth.sample(1, seed=seed)[:, 0], truth


def level(splits: range, n: int, draws: int, kept: Kept) -> None:
    """p-values of true models, points and discoveries."""
    for split in splits:
        if split == splits.start or split % SPLITS_PER_INPUTS == 0:
            x, mean, spread = problem(n, seed=10_000 + split)
            prepared = prepare(x, input_kernel=EXACT.input_kernel)
            kept.save()
        for name, seed, y, model in drawn(mean, spread, split):
            test = prepared.evaluate(y, model, draws=draws, seed=seed).test
            kept.add(name, test.p_value, np.mean(test.point_p_values <= AT), np.any(test.significant_points()))


def blocks(splits: range, n: int, kept: Kept) -> None:
    """p-values of true models by all passes of the row blocks up to the scores."""
    for split in splits:
        if split == splits.start or split % SPLITS_PER_INPUTS == 0:
            x, mean, spread = problem(n, seed=20_000 + split)
            kept.save()
        for name, seed, y, law in drawn(mean, spread, split):
            rows = LocalPasses(HeldRows(x, y, {name: law}, block_rows=n // 3))
            asked = Ask([name], draws=BLOCK_DRAWS)
            totals = Driver(rows, EXACT, seed).solve(asked, LANDMARKS, lambda *_: None).scores[name].added["statistics"]
            reached = np.count_nonzero(totals[1:] >= TIE * totals[0])
            kept.add(name, (1 + reached) / (1 + BLOCK_DRAWS))


def code(splits: range, draws: int, kept: Kept) -> None:
    """p-values of pools of 40 rows that are exchangeable by their making: no law or kernel.

    Everything is new for every split: pools, directions, which rows share a matrix, which splits are drawn.
    """
    for split in splits:
        rng = np.random.default_rng([21, split, draws])
        directions = rng.standard_normal((40, 4)).astype(np.float32)
        for name, pool_bits, entry_bits in (("16 values, 32 matrices", 4, 5), ("32 values, 256 matrices", 5, 8)):
            size = (40, 2**pool_bits)
            for law, values in (("t, 3 degrees", rng.standard_t(3.0, size)), ("Poisson", rng.poisson(1.5, size) / 2.0)):
                pool = np.stack([np.tanh(values), np.cos(values)], axis=2).astype(np.float32)
                simulated = SimulatedSplits(draws, pool_bits, entry_bits, int(rng.integers(2**62)))
                sums = np.zeros((2**simulated.bits, 4, 2), dtype=np.float32)
                simulated.add(sums, directions, pool, np.arange(40))
                errors = directions @ simulated.coefficients(sums)
                statistics = np.sqrt(np.sum(errors**2, axis=2)).mean(axis=1)
                reached = np.count_nonzero(statistics[1:] >= TIE * statistics[0])
                kept.add(f"{law}, {name}", (1 + reached) / (1 + draws))


def wrong_models(mean: np.ndarray, spread: np.ndarray) -> dict[str, Distribution]:
    """The true law and seven ways to miss it."""
    rows = np.arange(len(mean))
    return {
        "true": Normal(mean, spread),
        "biased by .3 spreads": Normal(mean + 0.3, spread),
        "overconfident 1.5x": Normal(mean, spread / 1.5),
        "underconfident 1.5x": Normal(mean, 1.5 * spread),
        "homoscedastic": Normal(mean, np.full(len(mean), np.sqrt(np.mean(spread**2)))),
        "ignores the input": Normal(np.full(len(mean), mean.mean()), np.full(len(mean), mean.std())),
        "skewed": Gamma((mean / spread) ** 2 / 25.0, 25.0 * spread**2 / mean),
        "wrong on a tenth of the rows": Normal(np.where(rows % 10 == 0, mean + 2.0, mean), spread),
    }


def power(splits: range, n: int, draws: int) -> None:
    """How often each wrong model is rejected."""
    head("model", "rejected", "largest p-value", "points with q <= .05", "at the residual scale: rejected", "points")
    found: dict[str, list[float]] = {}
    for split in splits:
        x, mean, spread = problem(n, seed=split)
        y = np.random.default_rng(100 + split).normal(mean, spread)
        prepared, versions = prepare(x, input_kernel=EXACT.input_kernel), wrong_models(mean, spread)
        coarse = congruence_tests(prepared, y, versions, draws=draws, seed=split)
        fine = congruence_tests(prepared, y, versions, draws=draws, seed=split, output_scale="residual")
        for name in versions:
            pair = [(test[name].p_value, test[name].significant_points().sum()) for test in (coarse, fine)]
            found.setdefault(name, []).append([*pair[0], *pair[1]])
    for name, values in found.items():
        p, points, p_fine, points_fine = np.array(values).T
        row(name, np.mean(p <= AT), p.max(), f"{points.mean():.0f}", np.mean(p_fine <= AT), f"{points_fine.mean():.0f}")


def main() -> None:
    parts = ("level", "blocks", "code", "power")
    given = asked(__doc__, parts, splits=200, first=0, rows=300, draws=999, keep=Path)
    machine()
    splits, kept, started = range(given.first, given.first + given.splits), Kept(given.keep), time.process_time()
    if given.part == "power":
        return power(splits, given.rows, given.draws)
    draws = BLOCK_DRAWS if given.part == "blocks" else given.draws
    if given.part == "level":
        level(splits, given.rows, draws, kept)
    elif given.part == "blocks":
        blocks(splits, given.rows, kept)
    else:
        code(splits, draws, kept)
    kept.save()
    extra = ["points with p <= .05", "splits with any q <= .05"] if given.part == "level" else []
    head("model", "splits", "mean p", "KS p of uniformity", "rejected at 5 %", "at 10 %", *extra)
    for name, values in kept.columns():
        p = values[:, 0]
        row(name, len(p), p.mean(), uniformity(p, draws), share(p <= AT), share(p <= 0.1), *values[:, 1:].mean(axis=0))
    print(f"\n{given.rows} rows, {draws} draws, {time.process_time() - started:.0f} CPU s")
    return None


if __name__ == "__main__":
    main()
