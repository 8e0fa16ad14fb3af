"""Who won, and why: how often the intervals of honesty and knowledge hold the truth, and the set the best version.

python tests/benchmarks/score_parts.py --rows 1000 --splits 200
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from simulations import head, row, share

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution, NegativeBinomial, Normal, Poisson, Quantiles, Samples
from congruence.kernels.score_parts import may_be_best, recalibrated_crps, score_parts
from congruence.kernels.scores import crps

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
WHOLE = 60_000
"""Rows of which the truth is computed."""


@dataclass(frozen=True)
class Case:
    """Two versions on n rows: the targets, what both say, and which rows depend on each other."""

    y: Array
    first: Distribution
    second: Distribution
    dependence: RowDependence | None = None
    weights: Array | None = None


def cases() -> dict[str, Callable[[int, np.random.Generator], Case]]:
    def laws(n: int, rng: np.random.Generator, noise: Array | None = None) -> tuple[Array, Array, Array, Array, Array]:
        x = rng.standard_normal((n, 3))
        mean, spread = np.sin(x[:, 0]) + 0.5 * x[:, 1], np.exp(0.3 * x[:, 2])
        y = mean + spread * (rng.standard_normal(n) if noise is None else noise)
        return x, mean, spread, y, np.hypot(spread, 0.5)  # the last: of who does not know x1

    def knows_more(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, wider = laws(n, rng)
        return Case(y, Normal(np.sin(x[:, 0]), wider), Normal(mean, spread))

    def less_honest(n: int, rng: np.random.Generator) -> Case:
        _, mean, spread, y, _ = laws(n, rng)
        return Case(y, Normal(mean, 0.7 * spread), Normal(mean, spread))

    def shifted(n: int, rng: np.random.Generator) -> Case:
        _, mean, spread, y, _ = laws(n, rng)
        return Case(y, Normal(mean + 0.1, spread), Normal(mean, 1.1 * spread))

    def dishonest_somewhere(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, _ = laws(n, rng)
        return Case(y, Normal(mean, spread * np.where(x[:, 0] > 0.0, 0.6, 1.0)), Normal(mean, spread))

    def both(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, wider = laws(n, rng)
        return Case(y, Normal(np.sin(x[:, 0]), wider), Normal(mean, 0.7 * spread))

    def heavy_tails(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, _ = laws(n, rng, rng.standard_t(4, n))
        return Case(y, Normal(mean, spread), Normal(np.sin(x[:, 0]), spread))

    def counts(n: int, rng: np.random.Generator) -> Case:
        rate = np.exp(0.5 + 0.5 * rng.standard_normal(n))
        y = rng.negative_binomial(2, 2 / (2 + rate)).astype(float)
        return Case(y, Poisson(rate), NegativeBinomial(rate, np.full(n, 0.5)))

    def counts_know(n: int, rng: np.random.Generator) -> Case:
        rate = np.exp(0.5 + 0.5 * rng.standard_normal(n))
        return Case(rng.poisson(rate).astype(float), Poisson(np.full(n, np.exp(0.625))), Poisson(1.2 * rate))

    def quantiles(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, wider = laws(n, rng)
        narrow = mean[:, None] + 0.7 * np.outer(spread, ndtri(LEVELS))
        wide = np.sin(x[:, 0])[:, None] + np.outer(wider, ndtri(LEVELS))
        return Case(y, Quantiles(LEVELS, narrow), Quantiles(LEVELS, wide))

    def ensembles(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, wider = laws(n, rng)
        members = [
            at[:, None] + wide[:, None] * rng.standard_normal((n, 20))
            for at, wide in ((mean, 0.7 * spread), (np.sin(x[:, 0]), wider))
        ]
        return Case(y, Samples(members[0]), Samples(members[1]))

    def groups(n: int, rng: np.random.Generator) -> Case:
        group = np.arange(n) // 10
        shared = rng.standard_normal(n // 10 + 1)[group]
        x, mean, spread, y, wider = laws(n, rng, np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.standard_normal(n))
        return Case(y, Normal(np.sin(x[:, 0]), wider), Normal(mean, 0.7 * spread), RowDependence(groups=group))

    def time(n: int, rng: np.random.Generator) -> Case:
        noise = rng.standard_normal(n)
        for step in range(1, n):
            noise[step] = 0.5 * noise[step - 1] + np.sqrt(0.75) * noise[step]
        x, mean, spread, y, wider = laws(n, rng, noise)
        order = np.arange(n, dtype=np.float64)
        return Case(y, Normal(np.sin(x[:, 0]), wider), Normal(mean, 0.7 * spread), RowDependence(time=order))

    def weighted(n: int, rng: np.random.Generator) -> Case:
        x, mean, spread, y, wider = laws(n, rng)
        return Case(y, Normal(np.sin(x[:, 0]), wider), Normal(mean, 0.7 * spread), None, np.exp(0.5 * x[:, 0]))

    found = (knows_more, less_honest, shifted, dishonest_somewhere, both, heavy_tails, counts, counts_know, quantiles)
    return {each.__name__.replace("_", " "): each for each in (*found, ensembles, groups, time, weighted)}


def columns(case: Case, blocks: DependentBlocks | None, seed: int) -> tuple[Array, Array, Array, Array]:
    """CRPS of the first version, as it is and recalibrated, and those of the second."""
    first, second = (
        (crps(case.y, law), recalibrated_crps(case.y, law, seed=seed, blocks=blocks))
        for law in (case.first, case.second)
    )
    return (*first, *second)


def rows_of(name: str, n: int, splits: int) -> None:
    make = cases()[name]
    case = make(WHOLE, np.random.default_rng(99))
    weights = np.ones(WHOLE) if case.weights is None else case.weights
    a, a_after, b, b_after = columns(case, None, 0)
    honesty, knowledge = (
        np.average(part, weights=weights) for part in ((a - a_after) - (b - b_after), a_after - b_after)
    )
    held: list[tuple[bool, ...]] = []
    for split in range(splits):
        case = make(n, np.random.default_rng([split, 7]))
        blocks = version_blocks(case.dependence, case.y, case.first, case.second)
        parts = score_parts(*columns(case, blocks, split), weights=case.weights, blocks=blocks)
        pairs = ((parts.honesty, honesty), (parts.knowledge, knowledge))
        held.append(tuple(part.low - 1e-12 <= truth <= part.high + 1e-12 for part, truth in pairs))
    row(name, f"{n:,}", splits, f"{honesty:+.4f}", f"{knowledge:+.4f}", *(share(np.array(held)[:, k]) for k in (0, 1)))


def sets(n: int, splits: int) -> None:
    """How often the best of five versions is in the set, and how many are in it."""
    for name, factors in (
        ("equal", (1.0,) * 5),
        ("near", (1.0, 1.0, 1.15, 1.3, 1.5)),
        ("apart", (1.0, 1.5, 2.0, 2.5, 3.0)),
    ):
        inside, sizes = [], []
        for split in range(splits):
            rng = np.random.default_rng([split, 8])
            mean = rng.standard_normal(n)
            y = mean + rng.standard_normal(n)
            said = {str(k): crps(y, Normal(mean + 0.05 * (k % 2 * 2 - 1) * (name == "equal"), np.full(n, factor)))
                    for k, factor in enumerate(factors)}  # fmt: skip
            found = may_be_best(said, seed=split)
            inside.append(found["0"] > 0.05)
            sizes.append(sum(p_value > 0.05 for p_value in found.values()))
        row(name, f"{n:,}", splits, share(np.array(inside)), f"{np.mean(sizes):.2f}")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rows", type=int, default=1000)
    given.add_argument("--splits", type=int, default=200)
    given.add_argument("--case", nargs="*", default=list(cases()))
    asked = given.parse_args()
    head("case", "n", "splits", "honesty", "knowledge", "honesty covered", "knowledge covered")
    for name in asked.case:
        rows_of(name, asked.rows, asked.splits)
    head("versions", "n", "splits", "best is in the set", "size")
    sets(asked.rows, 2 * asked.splits)


if __name__ == "__main__":
    main()
