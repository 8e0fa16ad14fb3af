"""Are segments found where a version is wrong, and seldom where it is right? ``segments.md`` is the record.

python tests/benchmarks/segments.py [level | power] [--splits S] [--rows N] [--cases NAME ...]
"""

from collections.abc import Callable

import numpy as np
from scipy import stats
from simulations import asked

from congruence.kernels import Poisson, Quantiles, Samples
from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.searched_ranges import Feature, SearchedRows
from congruence.kernels.conditional_calibration.segments import faulty_segments
from congruence.kernels.dependence.blocks import blocks_of_groups, blocks_of_time
from congruence.kernels.pit import pit_scores, pit_values

LEVELS = np.array([0.1, 0.5, 0.9])


def features_of(x: Array, rng: np.random.Generator) -> list[Feature]:
    """The columns of x, and one of four words."""
    words = rng.choice(list("abcd"), len(x), p=[0.5, 0.3, 0.18, 0.02])
    return [*(Feature(f"x{k}", column) for k, column in enumerate(x.T)), Feature("word", words)]


def right(kind: str, x: Array, rng: np.random.Generator, seed: int) -> SearchedRows:
    """A version that is right."""
    n, mean = len(x), x[:, 0]
    y = mean + rng.normal(size=n)
    if kind == "normal":
        return SearchedRows.of(stats.norm.cdf(y - mean), seed=seed)
    if kind in ("3 levels", "10 draws", "counts"):
        if kind == "3 levels":
            law = Quantiles(LEVELS, mean[:, None] + stats.norm.ppf(LEVELS))
        elif kind == "10 draws":
            law = Samples(mean[:, None] + rng.normal(size=(n, 10)))
        else:
            rate = 0.1 * np.exp(0.5 * mean)
            law, y = Poisson(rate), rng.poisson(rate).astype(float)
        return SearchedRows.of(pit_values(y, law), JumpScores.of(y, law), seed=seed)
    if kind == "groups":
        groups = np.repeat(np.arange(n // 5), 5)
        z = np.sqrt(0.5) * rng.normal(size=n // 5)[groups] + np.sqrt(0.5) * rng.normal(size=n)
        return SearchedRows.of(stats.norm.cdf(z), blocks=blocks_of_groups(groups, n), seed=seed)
    z = np.empty(n)
    z[0] = rng.normal()
    for i in range(1, n):
        z[i] = 0.5 * z[i - 1] + np.sqrt(0.75) * rng.normal()
    pit = stats.norm.cdf(z)
    return SearchedRows.of(pit, blocks=blocks_of_time(np.arange(n), pit_scores(pit)), seed=seed)


WRONG: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "bias 4 in x0 > 2.33 (1 %)": (lambda x: x[:, 0] > 2.33, 4.0, 1.0),
    "bias 2 in x0 > 2.33 (1 %)": (lambda x: x[:, 0] > 2.33, 2.0, 1.0),
    "bias 1 in .5 < x1 < .8 (10 %)": (lambda x: (x[:, 1] > 0.5) & (x[:, 1] < 0.8), 1.0, 1.0),
    "spread x 2 in x0 > 0, x1 > 0 (25 %)": (lambda x: (x[:, 0] > 0) & (x[:, 1] > 0), 0.0, 2.0),
    "everywhere bias .5": (lambda x: np.ones(len(x), bool), 0.5, 1.0),
    "everywhere spread x 1.5": (lambda x: np.ones(len(x), bool), 0.0, 1.5),
    "slope of 4 standard errors in x1": (lambda x: x[:, 1] / np.sqrt(len(x)), 4.0, 1.0),
    "slope of 5 standard errors in x1": (lambda x: x[:, 1] / np.sqrt(len(x)), 5.0, 1.0),
    "slope of 6 standard errors in x1": (lambda x: x[:, 1] / np.sqrt(len(x)), 6.0, 1.0),
}


def main() -> None:
    """Print a row for each case."""
    given = asked(__doc__, ("level", "power"), splits=200, rows=[500, 2000], cases=[str])
    kinds = ("normal", "3 levels", "10 draws", "counts", "groups", "time") if given.part == "level" else tuple(WRONG)
    for kind in given.cases or kinds:
        for n in given.rows:
            found, named, overlap, sizes = 0, 0, [], []
            for seed in range(given.splits):
                rng = np.random.default_rng(seed)
                x = rng.normal(size=(n, 5))
                if given.part == "level":
                    if kind in ("groups",):  # inputs that a group shares
                        x[:, :3] = np.repeat(x[::5, :3], 5, axis=0)
                    if kind == "time":
                        x[:, 0] = np.sin(np.arange(n) * 6.3 / n)
                    rows, truth = right(kind, x, rng, seed), np.zeros(n, bool)
                else:
                    where, shift, factor = WRONG[kind]
                    truth = where(x)
                    z = rng.normal(size=n) * np.where(truth, factor, 1.0) + shift * truth
                    rows = SearchedRows.of(stats.norm.cdf(z), seed=seed)
                segments = faulty_segments(features_of(x, rng), rows, most=1)
                found += bool(segments)
                if truth.dtype != bool:
                    named += bool(segments) and segments[0].ranges[0].feature == "x1"
                elif segments and truth.any():
                    inside = np.isin(np.arange(n), segments[0].rows)
                    overlap.append(float(np.mean(truth[inside])))
                    sizes.append(int(inside.sum()))
            said = f"| {kind} | {n:,} | {given.splits} | {found / given.splits:.3f} |"
            if overlap:
                said += f" {np.mean(overlap):.2f} | {np.median(sizes):.0f} of {int(truth.sum())} |"
            print(said + (f" x1 in {named} |" if named else ""), flush=True)


if __name__ == "__main__":
    main()
