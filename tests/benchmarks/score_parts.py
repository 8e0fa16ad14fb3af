"""Who won, and why: how often the intervals of honesty and knowledge hold the truth, and the sets the best version.

python tests/benchmarks/score_parts.py --rows 1000 --splits 200
python tests/benchmarks/score_parts.py --looks 20 --splits 400 --rows 200

The second prints series of so many looks in place of single splits; ``--log`` the parts of the log score in place of
those of the CRPS.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtri
from simulations import asked, head, row, share

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution, NegativeBinomial, Normal, Poisson, Quantiles, Samples
from congruence.kernels.monitoring.best import LookDifference, Looked, best_over_looks
from congruence.kernels.score_parts import may_be_best, recalibration_gains, score_parts
from congruence.kernels.scores import crps, negative_log_likelihood

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


CASES = ("knows more", "less honest", "shifted", "dishonest somewhere", "both", "heavy tails", "counts", "counts know",
         "quantiles", "ensembles", "groups", "time", "weighted")  # fmt: skip


def noise_of(name: str, n: int, rng: np.random.Generator) -> Array | None:
    """What is drawn before the inputs: None where it is as the truth says, and independent."""
    if name == "heavy tails":
        return rng.standard_t(4, n)
    if name == "groups":
        shared = rng.standard_normal(n // 10 + 1)[np.arange(n) // 10]
        return np.asarray(np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.standard_normal(n))
    return correlated(n, name, rng) if name == "time" else None


def case_of(name: str, n: int, rng: np.random.Generator) -> Case:
    """Two versions on n new rows: where ``name`` says nothing else, one that knows less and one that is too narrow."""
    if name.startswith("counts"):
        rate = np.exp(0.5 + 0.5 * rng.standard_normal(n))
        if name == "counts know":
            return Case(rng.poisson(rate).astype(float), Poisson(np.full(n, np.exp(0.625))), Poisson(1.2 * rate))
        y = rng.negative_binomial(2, 2 / (2 + rate)).astype(float)
        return Case(y, Poisson(rate), NegativeBinomial(rate, np.full(n, 0.5)))
    noise, x = noise_of(name, n, rng), rng.standard_normal((n, 3))
    known, spread = np.sin(x[:, 0]), np.exp(0.3 * x[:, 2])
    mean, wider = known + 0.5 * x[:, 1], np.hypot(spread, 0.5)  # the wider spread is that of who does not know x1
    y = mean + spread * (rng.standard_normal(n) if noise is None else noise)
    at = ((mean, 0.7 * spread), (known, wider))
    if name == "quantiles":
        return Case(y, *(Quantiles(LEVELS, one[:, None] + np.outer(by, ndtri(LEVELS))) for one, by in at))
    if name == "ensembles":
        return Case(y, *(Samples(one[:, None] + by[:, None] * rng.standard_normal((n, 20))) for one, by in at))
    true, narrow, ignorant = Normal(mean, spread), Normal(mean, 0.7 * spread), Normal(known, wider)
    pairs = {
        "knows more": (ignorant, true),
        "less honest": (narrow, true),
        "shifted": (Normal(mean + 0.1, spread), Normal(mean, 1.1 * spread)),
        "dishonest somewhere": (Normal(mean, spread * np.where(x[:, 0] > 0.0, 0.6, 1.0)), true),
        "heavy tails": (true, Normal(known, spread)),
    }
    named = {"groups": {"groups": np.arange(n) // 10}, "time": {"time": np.arange(n, dtype=np.float64)}}
    dependence = RowDependence(**named[name]) if name in named else None
    return Case(
        y, *pairs.get(name, (ignorant, narrow)), dependence, np.exp(0.5 * x[:, 0]) if name == "weighted" else None
    )


def columns(case: Case, blocks: DependentBlocks | None, seed: int, of_log: bool) -> list[Array]:
    """CRPS or NLL of the first version, as it is and recalibrated, and those of the second."""
    found = []
    for law in (case.first, case.second):
        gains = recalibration_gains(case.y, law, seed=seed, blocks=blocks)
        before = crps(case.y, law) if not of_log else negative_log_likelihood(case.y, law)
        found += [before, before - gains[of_log]]
    return found


def rows_of(name: str, n: int, splits: int, of_log: bool) -> None:
    case = case_of(name, WHOLE, np.random.default_rng(99))
    weights = np.ones(WHOLE) if case.weights is None else case.weights
    a, a_after, b, b_after = columns(case, None, 0, of_log)
    honesty, knowledge = (
        np.average(part, weights=weights) for part in ((a - a_after) - (b - b_after), a_after - b_after)
    )
    held: list[tuple[bool, ...]] = []
    for split in range(splits):
        case = case_of(name, n, np.random.default_rng([split, 7]))
        blocks = version_blocks(case.dependence, case.y, case.first, case.second)
        parts = score_parts(*columns(case, blocks, split, of_log), weights=case.weights, blocks=blocks)
        pairs = ((parts.honesty, honesty), (parts.knowledge, knowledge))
        held.append(tuple(part.low - 1e-8 <= truth <= part.high + 1e-8 for part, truth in pairs))
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


LABELS = tuple("01234")
PAIRS = list(combinations(LABELS, 2))
NEAR, BIASES = (1.0, 1.05, 1.15, 1.3, 1.5), (0.05, -0.05, 0.05, -0.05, 0.05)
SERIES = {
    "equal": ((1.0,) * 5, BIASES, ""),
    "near": (NEAR, (0.0,) * 5, ""),
    "apart": ((1.0, 1.5, 2.0, 2.5, 3.0), (0.0,) * 5, ""),
    "groups, equal": ((1.0,) * 5, BIASES, "groups"),
    "groups, near": (NEAR, (0.0,) * 5, "groups"),
    "time, equal": ((1.0,) * 5, BIASES, "time"),
    "time, near": (NEAR, (0.0,) * 5, "time"),
    "by turns": ((1.0,) * 5, (0.0, 0.0, 0.4, 0.4, 0.4), ""),
    "two come late": (NEAR, (0.0,) * 5, ""),
}
"""Spreads and biases of five versions, of which the first is the best, and what of its rows depend on each other."""


def correlated(n: int, kind: str, rng: np.random.Generator) -> Array:
    """n standard normal numbers, those of a group or of neighbours in time with a correlation of .5."""
    noise = rng.standard_normal(n)
    if kind == "groups":
        return np.asarray(np.sqrt(0.5) * rng.standard_normal(n // 10)[np.arange(n) // 10] + np.sqrt(0.5) * noise)
    for number in range(1, n if kind == "time" else 0):
        noise[number] = 0.5 * noise[number - 1] + np.sqrt(0.75) * noise[number]
    return noise


def look(name: str, n: int, number: int, rng: np.random.Generator) -> Looked:
    """What one look says of five versions; "by turns" the second one is biased where the first one is not."""
    factors, biases, kind = SERIES[name]
    mean = correlated(n, kind, rng)
    y = mean + correlated(n, kind, rng)
    moved = np.array(biases)
    if name == "by turns":
        moved[1 - number % 2] += 0.4
    laws = zip(LABELS, moved, factors, strict=True)
    scores = {label: crps(y, Normal(mean + bias, np.full(n, factor))) for label, bias, factor in laws}
    blocks = DependentBlocks(np.arange(n) // 10, n // 10, "groups") if kind == "groups" else None
    if kind == "time":
        apart = np.column_stack([scores[a] - scores[b] for a, b in PAIRS])
        try:
            blocks = RowDependence(time=np.arange(n, dtype=np.float64)).blocks(lambda: apart)
        except TooFewBlocksError:  # such a look says nothing
            return {}
    there = LABELS[:3] if name == "two come late" and number < 5 else LABELS
    return {
        (a, b): LookDifference.of(scores[a], scores[b], blocks=blocks) for a, b in PAIRS if a in there and b in there
    }


def series(name: str, n: int, looks: int, count: int) -> None:
    """How often the best version is in the set after all looks, and its size, beside those of pairwise tests."""
    held, sizes = [], []
    for number in range(count):
        rng = np.random.default_rng([number, 9])
        told = [look(name, n, at, rng) for at in range(looks)]
        found = [set(best_over_looks(told).may_be_best)]
        found += [set(LABELS) - losers(told, level) for level in (0.05 / (len(PAIRS) * looks), 0.05)]
        held.append([LABELS[0] in each for each in found])
        sizes.append([len(each) for each in found])
    shares, means = np.array(held), np.mean(sizes, axis=0)
    row(name, f"{n:,}", count, *(item for k in range(3) for item in (share(shares[:, k]), f"{means[k]:.2f}")))


def losers(told: list[Looked], level: float) -> set[str]:
    """Who is worse than another one by the paired test of all rows so far, after any look."""
    found: set[str] = set()
    for a, b in PAIRS:
        looked = [each[a, b] for each in told if (a, b) in each]
        variances = np.array([each.variance for each in looked])
        sums = np.cumsum([each.score for each in looked] * np.sqrt(variances))
        z = sums / np.sqrt(np.maximum(np.cumsum(variances), 1e-300))  # of versions that are one, 0
        found |= {label for label, way in ((a, 1.0), (b, -1.0)) if np.any(way * z > -ndtri(level / 2.0))}
    return found


def main() -> None:
    given = asked(__doc__, rows=1000, splits=200, case=list(CASES), looks=0, log=False)
    if given.looks:
        over = [
            f"{what} {of}"
            for of in ("over looks", "of corrected tests", "of pairwise tests")
            for what in ("held", "size")
        ]
        head("versions", "rows a look", "series", *over)
        for name in SERIES:
            series(name, given.rows, given.looks, given.splits)
        return
    head("case", "n", "splits", "honesty", "knowledge", "honesty covered", "knowledge covered")
    for name in given.case:
        rows_of(name, given.rows, given.splits, given.log)
    if not given.log:
        head("versions", "n", "splits", "best is in the set", "size")
        sets(given.rows, 2 * given.splits)


if __name__ == "__main__":
    main()
