"""Local readings of known faults: how often the fault is named right, how large it is read, and the false discoveries.

python tests/benchmarks/local_reading.py --repetitions 4

``--rows`` are those of the false discoveries.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri
from simulations import asked, head, machine, row

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.reading import group_readings
from congruence.kernels.conditional_calibration.regions import regions
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import RBF, Kernel, Polynomial
from congruence.kernels.pit import ORDERS
from congruence.kernels.split import prepare

Draw = Callable[[Array, np.random.Generator], tuple[Array, Array, Array, Array]]
"""(x, rng) -> (normal scores z, sign of the fault at each row, true shift, true factor)."""


def embedded(x: Array) -> Array:
    """Inputs as unit-norm features of a fixed random network, (n, 64)."""
    rng = np.random.default_rng(1)
    features = np.tanh(x @ rng.normal(size=(x.shape[1], 64)) * 0.6 + rng.normal(size=64))
    return np.asarray((features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32))


def step(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-3.0 * x[:, 0])))


def skewed(n: int, rng: np.random.Generator) -> Array:
    return np.asarray((rng.gamma(2.0, size=n) - 2.0) / np.sqrt(2.0))


def heavy(n: int, rng: np.random.Generator) -> Array:
    return np.asarray(rng.standard_t(3, size=n) / np.sqrt(3.0))


def moved(shift: Callable[[Array], Array]) -> Draw:
    return lambda x, rng: (rng.normal(size=len(x)) + shift(x), np.sign(shift(x)), shift(x), np.ones(len(x)))


def stretched(factor: Callable[[Array], Array]) -> Draw:
    return lambda x, rng: (rng.normal(size=len(x)) * factor(x), np.sign(np.log(factor(x))), np.zeros(len(x)), factor(x))


def shaped(law: Callable[[int, np.random.Generator], Array], sign: Callable[[Array], Array]) -> Draw:
    def draw(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
        n, by = len(x), sign(x)
        return np.where(by == 0.0, rng.normal(size=n), by * law(n, rng)), by, np.zeros(n), np.ones(n)

    return draw


def half(x: Array) -> Array:
    return np.asarray((x[:, 0] > 0).astype(float))


def uniform(n: int, rng: np.random.Generator) -> Array:
    return np.asarray((rng.random(n) - 0.5) * np.sqrt(12.0))


FAULTS: list[tuple[str, str, Draw]] = [
    ("targets .4 spreads above", "bias", moved(lambda x: np.full(len(x), 0.4))),
    ("rising to .5 above across x", "bias", moved(lambda x: 0.5 * step(x))),
    ("wave of +-.5, either sign", "bias", moved(lambda x: 0.5 * np.sin(1.5 * x[:, 0]))),
    ("too narrow by 1.6", "spread", stretched(lambda x: np.full(len(x), 1.6))),
    ("too narrow by 3", "spread", stretched(lambda x: np.full(len(x), 3.0))),
    ("rising to 1.8 across x", "spread", stretched(lambda x: 1.8 ** step(x))),
    ("falling to 1/1.8 across x", "spread", stretched(lambda x: 1.8 ** -step(x))),
    ("1.6 on half, by a step", "spread", stretched(lambda x: 1.6 ** half(x))),
    ("wave of 1.65 to 1/1.65", "spread", stretched(lambda x: np.exp(0.5 * np.sin(1.5 * x[:, 0])))),
    ("skewed to the right (Gamma 2)", "skew", shaped(skewed, lambda x: np.ones(len(x)))),
    ("skewed on half", "skew", shaped(skewed, half)),
    ("heavy tails (t3, variance 1)", "tails", shaped(heavy, lambda x: np.ones(len(x)))),
    ("heavy tails on half", "tails", shaped(heavy, half)),
    ("light tails (uniform)", "tails", shaped(uniform, lambda x: np.ones(len(x)))),
]


def known_faults(kernel: Kernel, regularization: float, n: int, repetitions: int) -> None:
    head("fault", "points significant", "named right", "beside it", "shift: error", "factor: error", "within 15 %")
    for name, kind, draw in FAULTS:
        rows = []
        for repetition in range(repetitions):
            rng = np.random.default_rng([repetition, 7])
            x = rng.normal(size=(n, 4))
            smoother = prepare(embedded(x), input_kernel=kernel, regularization=regularization).smoother
            z, sign, shift, factor = draw(x, rng)
            reading = local_reading(smoother, ndtr(z))
            found = reading.significant()
            own = sign == 0.0
            wanted = np.where(own, 1.0, sign) * (-1.0 if "light" in name else 1.0)
            right = (reading.dominant == ORDERS.index(kind)) & (np.sign(reading.strength) == wanted)
            off = np.abs(reading.factor / factor - 1.0)[found]
            error = np.abs(reading.shift - shift)[found]
            sizes = [np.median(error), np.median(off), np.mean(off < 0.15)]
            rows.append([found.mean(), right[found].mean(), own[found].mean(), *sizes])
        found_share, right_share, beside, error, off, within = np.mean(rows, axis=0)
        told = (error, "", "") if kind == "bias" else ("", off, within) if kind == "spread" else ("", "", "")
        row(name, found_share, right_share, beside, *told)


def factors_of_regions(n: int, repetitions: int) -> None:
    """Spread factors of regions against the rows' own: the group's true factor is the root mean square."""
    head("fault", "regions", "median error of the factor", "within 15 %", "95 % intervals that cover")
    for name, kind, draw in FAULTS:
        if kind != "spread":
            continue
        errors, covered = [], []
        for repetition in range(repetitions):
            rng = np.random.default_rng([repetition, 8])
            x = rng.normal(size=(n, 4))
            z, _, _, factor = draw(x, rng)
            groups = regions(embedded(x)).rows()
            readings, _ = group_readings(ndtr(z), groups)
            for region, reading in readings.items():
                truth = float(np.sqrt(np.mean(factor[groups[region]] ** 2)))
                errors.append(abs(reading.factor / truth - 1.0))
                covered.append(reading.factor_interval[0] <= truth <= reading.factor_interval[1])
        within = np.mean(np.array(errors) < 0.15)
        row(name, len(errors), np.median(errors), within, np.mean(covered))


def false_discoveries(repetitions: int, sizes: list[int]) -> None:
    head("n", "kernel", "freedom", "any q <= .05", "any point named", "any q <= .05 by order", "far from a fault")
    for n in sizes:
        runs = repetitions if n < 1000 else repetitions // 2
        for label, kernel, ridge in KERNELS:
            print(f"| {n} | {label} | {_false_discoveries(n, kernel, ridge, runs)} |")


def _false_discoveries(n: int, kernel: Kernel, ridge: float, runs: int) -> str:
    null, named, orders, far = [], [], [], []
    smoother: SpectralSmoother | None = None
    for run in range(runs):
        rng = np.random.default_rng([n, run])
        if smoother is None or run % 20 == 0:
            x = rng.normal(size=(n, 4))
            smoother = prepare(embedded(x), input_kernel=kernel, regularization=ridge).smoother
        pit = rng.random(n)
        reading = local_reading(smoother, pit)
        null.append(np.any(reading.q_values <= 0.05))
        named.append(np.any(reading.significant()))
        orders.append([np.any(benjamini_hochberg(column) <= 0.05) for column in reading.p_values.T])
        wrong = x[:, 0] > 1.0
        pit[wrong] = ndtr(3.0 * ndtri(np.clip(pit[wrong], 1e-9, 1.0 - 1e-9)))
        found = local_reading(smoother, pit).significant()
        far.append(np.sum(found & (x[:, 0] < 0.0)) / max(1, np.sum(found)))
    by_order = " ".join(f"{share:.3f}" for share in np.mean(orders, axis=0))
    freedom = float(smoother.filters.sum())
    return f"{freedom:.0f} | {np.mean(null):.3f} | {np.mean(named):.3f} | {by_order} | {np.mean(far):.3f}"


KERNELS: list[tuple[str, Kernel, float]] = [
    ("(x.z + 1)^3, lambda .1", Polynomial(3, 1.0, 1.0), 0.1),
    ("(x.z + 1)^3, lambda .001", Polynomial(3, 1.0, 1.0), 0.001),
    ("RBF, gamma 8, lambda .001", RBF(8.0), 0.001),
]


def main() -> None:
    given = asked(__doc__, repetitions=4, rows=[120, 300, 2000], only_false_discoveries=False)
    repetitions = given.repetitions
    machine()
    if not given.only_false_discoveries:
        readings(repetitions)
    print(f"\n## False discoveries, {100 * repetitions} splits each (half as many at n = 2,000)\n")
    false_discoveries(repetitions * 100, given.rows)


def readings(repetitions: int) -> None:
    for label, kernel, ridge in (KERNELS[0], ("(x.z + 1)^3, lambda .01", Polynomial(3, 1.0, 1.0), 0.01)):
        print(f"\n## Known faults at n = 4,000: {label}, {repetitions} splits each\n")
        known_faults(kernel, ridge, 4000, repetitions)
    print(f"\n## Spread factors of regions at n = 4,000, {repetitions} splits each\n")
    factors_of_regions(4000, repetitions)


if __name__ == "__main__":
    main()
