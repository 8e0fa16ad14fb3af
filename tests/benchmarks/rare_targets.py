"""Level and power of the tests of extremes and masses: how often true predictions are called wrong, and wrong ones.

    python tests/benchmarks/rare_targets.py [--rows 500 2000] [--splits 200]

"Told" are splits in which a value is named at which too many or too few targets lie, "beyond" those in which targets
are called extreme beyond a right shift and spread. The record is in judged_as_stated.md.
"""

from collections.abc import Iterator

import numpy as np
import scipy.stats
from simulations import AT, asked, head, machine, row, share

from congruence.kernels import (
    Deterministic,
    Distribution,
    Gamma,
    Mixture,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
)
from congruence.kernels.conditional_calibration.rare import extremes, masses
from congruence.kernels.dependence.blocks import DependentBlocks, blocks_of_groups

Case = tuple[str, np.ndarray, Distribution, float | None, DependentBlocks | None]
GAMMA = scipy.stats.gamma(2.0)


def with_zeros(share: np.ndarray) -> Mixture:
    """A share (n,) of zeros, and a gamma law."""
    n = len(share)
    return Mixture(
        np.stack([share, 1.0 - share], axis=1), [Deterministic(np.zeros(n)), Gamma(np.full(n, 2.0), np.ones(n))]
    )


def at_levels(levels: np.ndarray, location: np.ndarray, spread: np.ndarray, moved: float = 0.0) -> Quantiles:
    """Normal quantiles, of which one is ``moved``."""
    stated = levels.copy()
    stated[np.argmin(np.abs(levels - 0.7))] -= moved
    return Quantiles(levels, location[:, None] + spread[:, None] * np.sort(scipy.stats.norm.ppf(stated)))


def true(n: int, rng: np.random.Generator) -> Iterator[Case]:
    """Targets of predictions that are true."""
    location, spread = rng.standard_normal(n), np.exp(0.4 * rng.standard_normal(n))
    normal, gamma = rng.standard_normal(n), rng.gamma(2.0, size=n)
    y, law, rate = location + spread * normal, Normal(location, spread), np.exp(0.5 * location)
    yield "normal", y, law, None, None
    for step in (0.01, 0.1, 1.0):
        yield f"normal, rounded to {step:g}", np.round(y / step) * step, law, step, None
    t3 = StudentT(np.full(n, 3.0), location, spread)
    yield "t3", location + spread * rng.standard_t(3.0, n), t3, None, None
    yield "gamma, rounded to .1", np.round(gamma, 1), Gamma(np.full(n, 2.0), np.ones(n)), 0.1, None
    half = np.where(rng.random(n) < 0.5, 0.0, gamma)
    yield "half of them zeros", half, with_zeros(np.full(n, 0.5)), None, None
    yield "half of them zeros, rounded to .1", np.round(half, 1), with_zeros(np.full(n, 0.5)), 0.1, None
    zeros = 0.5 + 0.2 * np.tanh(location)
    yield "zeros by input", np.where(rng.random(n) < zeros, 0.0, gamma), with_zeros(zeros), None, None
    for mean in (0.05, 1.0, 30.0):
        yield f"Poisson of mean {mean:g}", rng.poisson(mean * rate).astype(float), Poisson(mean * rate), 1.0, None
    members = location[:, None] + spread[:, None] * rng.standard_normal((n, 10))
    yield "10 members", y, Samples(members), None, None
    yield "10 members, rounded to .1", np.round(y, 1), Samples(members), 0.1, None
    of_zeros = np.where(rng.random((n, 10)) < 0.5, 0.0, rng.gamma(2.0, size=(n, 10)))
    yield "10 members, half of them zeros", half, Samples(of_zeros), None, None
    for count in (3, 19):
        yield f"{count} levels", y, at_levels(np.linspace(0.05, 0.95, count), location, spread), None, None
    levels = np.linspace(0.05, 0.95, 9)
    values = np.where(levels <= 0.5, 0.0, GAMMA.ppf(np.maximum(levels - 0.5, 0.0) / 0.5))
    yield "9 levels, half of them zeros", half, Quantiles(levels, np.tile(values, (n, 1))), None, None
    groups, mixed = _groups(n, rng)
    yield "groups of 5", location + spread * mixed, law, None, groups
    yield "groups of 5, rounded to .1", np.round(location + spread * mixed, 1), law, 0.1, groups
    uniform = scipy.stats.norm.cdf(mixed)
    grouped = np.where(uniform < 0.5, 0.0, GAMMA.ppf(np.maximum(2.0 * uniform - 1.0, 0.0)))
    yield "groups of 5, half of them zeros", grouped, with_zeros(np.full(n, 0.5)), None, groups


def wrong(n: int, rng: np.random.Generator) -> Iterator[Case]:
    """Targets of predictions that are wrong."""
    location, spread = rng.standard_normal(n), np.exp(0.4 * rng.standard_normal(n))
    normal, gamma, law = rng.standard_normal(n), rng.gamma(2.0, size=n), Normal(location, spread)
    y, off = location + spread * normal, 8.0 * spread * (rng.random(n) < 0.01)
    groups, mixed = _groups(n, rng)
    yield "1 % are 8 spreads off", y + off, law, None, None
    yield "1 % are 8 spreads off, groups of 5", location + spread * mixed + off, law, None, groups
    half = np.where(rng.random(n) < 0.5, 0.0, gamma)
    yield "half are 0 where a gamma is predicted", half, Gamma(np.full(n, 2.0), np.ones(n)), None, None
    yield "half are 0 where a normal is predicted", half, Normal(np.ones(n), np.full(n, 1.3)), None, None
    yield "half are 0 where no member is", half, Samples(rng.gamma(2.0, size=(n, 10))), None, None
    stated = with_zeros(np.full(n, 0.4))
    yield ".6 are 0, .4 predicted", np.where(rng.random(n) < 0.6, 0.0, gamma), stated, None, None
    many = np.where(scipy.stats.norm.cdf(mixed) < 0.6, 0.0, gamma)
    yield ".6 are 0, .4 predicted, groups of 5", many, stated, None, groups
    yield "a cap holds 5 %", np.minimum(y, np.quantile(y, 0.95)), law, None, None
    levels = np.linspace(0.05, 0.95, 19)
    yield "1 of 19 levels wrong by .06", y, at_levels(levels, location, spread, 0.06), None, None
    yield "spread too small by 1.5", location + 1.5 * spread * normal, law, None, None


def _groups(n: int, rng: np.random.Generator) -> tuple[DependentBlocks, np.ndarray]:
    """Groups of five rows, and normal numbers that correlate by .5 within them."""
    groups = np.arange(n) // 5
    mixed = np.sqrt(0.5) * (rng.standard_normal(groups.max() + 1)[groups] + rng.standard_normal(n))
    return blocks_of_groups(groups, n), mixed


def found(case: Case) -> tuple[bool, ...]:
    """Whether each test and both together reject, a value is told, and targets lie beyond shift and spread."""
    _, y, law, step, blocks = case
    at_values = masses(y, law, step, blocks)
    told = () if at_values is None else at_values.faults()
    far = extremes(y, law, step, blocks, told)
    p_far = 1.0 if far.p_value is None else far.p_value
    p_values = 1.0 if at_values is None or at_values.p_value is None else at_values.p_value
    both = 2.0 * min(p_far, p_values)
    return p_far < AT, p_values < AT, both < AT, both < AT / 5.0, bool(told), far.beyond(0.0, 1.0) is not None


if __name__ == "__main__":
    given = asked(__doc__, rows=[500, 2000], splits=200)
    machine()
    head("predictions", "rows", "extremes", "masses", "both", "both at 1 %", "told", "beyond")
    for rows in given.rows:
        hits: dict[str, list[tuple[bool, ...]]] = {}
        for split in range(given.splits):
            for make in (true, wrong):
                for case in make(rows, np.random.default_rng([rows, split])):
                    hits.setdefault(case[0], []).append(found(case))
        for name, each in hits.items():
            row(name, f"{rows:,}", *(share(column) for column in np.array(each).T))
