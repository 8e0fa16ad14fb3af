"""Level, power and coverage of what is stated beside a CCE: `python tests/benchmarks/sampling_errors.py SUITE`.

Suites are paired, intervals and kernels; the kept record is sampling_errors.md. Inputs lie on the unit sphere in five
dimensions; the truth is known, so the level of a paired difference, the coverage of an interval and the band of a true
version are counted over simulated splits. New targets at the same inputs are what is random.
"""

from collections.abc import Callable

import numpy as np
from simulations import asked, head, machine, row

from congruence.kernels import (
    EXACT,
    RBF,
    Distribution,
    Kernel,
    Matern,
    NegativeBinomial,
    Normal,
    Poisson,
    Polynomial,
    Samples,
    Split,
    prepare,
)
from congruence.kernels.engine.results import excess_interval, excess_over
from congruence.kernels.engine.targets import output_features

Draw = Callable[[], np.ndarray]
Pair = Callable[[], tuple[Distribution, Distribution]]


def sphere(n: int, seed: int) -> np.ndarray:
    """Points on the unit sphere, (n, 5)."""
    x = np.random.default_rng(seed).standard_normal((n, 5))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def pairs(x: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[Draw, Pair, RBF | None]]:
    """Pairs of models that are equally far from the truth (or, where named so, not), with the truth's draws."""
    n = len(x)
    zero, one, rate = np.zeros(n), np.ones(n), 4.0 + 2.0 * x[:, 0]

    def ensemble(loc: np.ndarray, members: int) -> Samples:
        return Samples(loc[:, None] + rng.standard_normal((n, members)))

    def normal() -> np.ndarray:
        return rng.standard_normal(n)

    def counts() -> np.ndarray:
        return rng.poisson(rate).astype(np.float64)

    fixed = RBF(0.5)
    shifted = Normal(zero + 0.2, one), Normal(zero - 0.2, one)
    near = Normal(zero + 0.02, one), Normal(zero - 0.02, one)
    sloped = Normal(0.3 * x[:, 1], one), Normal(-0.3 * x[:, 1], one)
    poisson = Poisson(rate * np.exp(0.1 * x[:, 1])), Poisson(rate * np.exp(-0.1 * x[:, 1]))
    binomial = tuple(NegativeBinomial(rate * np.exp(sign * 0.1 * x[:, 1]), 0.2 * one) for sign in (1.0, -1.0))
    return {
        "normal, constant shifts": (normal, lambda: shifted, fixed),
        "normal, small shifts": (normal, lambda: near, fixed),
        "normal, sloped, gamma of y": (normal, lambda: sloped, None),
        "Poisson counts, gamma of y": (counts, lambda: poisson, None),
        "negative binomial on Poisson counts": (counts, lambda: (binomial[0], binomial[1]), None),
        "ensembles of 10, shifted": (normal, lambda: (ensemble(zero + 0.2, 10), ensemble(zero - 0.2, 10)), fixed),
        "true ensembles of 10 and of 5": (normal, lambda: (ensemble(zero, 10), ensemble(zero, 5)), fixed),
        "NOT equal: shifted by .3 and true": (normal, lambda: (Normal(zero + 0.3, one), Normal(zero, one)), fixed),
    }


def paired(splits: int, sizes: list[int]) -> None:
    """Level, power and standard errors of the paired difference."""
    head("models", "n", "points", "rejected at 5 %", "standard error / spread")
    for n in sizes:
        for query in (None, sphere(300, 2)) if n <= 400 else (None,):
            x, rng = sphere(n, 0), np.random.default_rng([n, 3])
            prepared = prepare(x, query=query, input_kernel=EXACT.input_kernel)
            for name, (draw, models, kernel) in pairs(x, rng).items():
                found = [difference(prepared, draw(), models(), kernel) for _ in range(splits)]
                differences, errors, p_values = np.transpose(found)
                ratio = np.sqrt(np.mean(errors**2)) / np.std(differences)
                points = "reference" if query is None else "300 others"
                row(name, n, points, np.mean(p_values < 0.05), ratio)


def difference(
    prepared: Split, y: np.ndarray, models: tuple[Distribution, Distribution], kernel: RBF | None
) -> tuple[float, float, float]:
    """The paired difference on one split, its standard error and p-value."""
    item = prepared.compare(y, *models, output_kernel=kernel)
    return item.difference, item.standard_error, item.p_value


def intervals(splits: int, sizes: list[int]) -> None:
    """Coverage of the intervals of the mean CCE and the excess, and of the band of a true version."""
    head("model", "n", "mean CCE", "covered by its 95 % interval", "excess", "covered by its 95 % interval",
         "inside the band of a true version")  # fmt: skip
    for n in sizes:
        x, rng = sphere(n, 0), np.random.default_rng([n, 4])
        mean, spread = np.sin(2.0 * x[:, 0]) + x[:, 1], 0.5 + 0.3 * np.abs(x[:, 0])
        rate = 3.0 + 2.0 * x[:, 0]
        prepared = prepare(x, input_kernel=EXACT.input_kernel)
        truths: dict[str, tuple[Distribution, Distribution, RBF]] = {
            "normal, true": (Normal(mean, spread), Normal(mean, spread), RBF(0.4)),
            "normal, slightly wrong": (Normal(mean, spread), Normal(mean + 0.08 * x[:, 1], 1.1 * spread), RBF(0.4)),
            "normal, plainly wrong": (Normal(mean, spread), Normal(0.3 * mean, 0.6 * spread), RBF(0.4)),
            "counts, true": (Poisson(rate), Poisson(rate), RBF(0.1)),
            "counts, slightly wrong": (Poisson(rate), Poisson(rate * np.exp(0.04 * x[:, 2])), RBF(0.1)),
            "counts, plainly wrong": (Poisson(rate), Poisson(np.full(n, 3.0)), RBF(0.1)),
        }
        for name, (truth, model, kernel) in truths.items():
            rows, band = [], None
            for _ in range(splits):
                y = truth.sample(1, seed=rng)[:, 0]
                result = prepared.conditional_congruence_error(y, model, output_kernel=kernel)
                if band is None:
                    band = result.band
                reach = excess_interval(result.interval(), band.mean)
                rows.append((result.mean, *result.interval(), *reach))
            means, low, high, excess_low, excess_high = np.transpose(rows)
            expected = float(np.mean(means))
            excess = 0.0 if name.endswith("true") else excess_over(expected, band.mean)
            covered = ((low <= expected) & (expected <= high), (excess_low <= excess) & (excess <= excess_high),
                       (band.low <= means) & (means <= band.high))  # fmt: skip
            mean_covered, excess_covered, inside = np.mean(covered, axis=1)
            row(name, n, f"{expected:.4f}", mean_covered, f"{excess:.4f}", excess_covered, inside)


def kernels(splits: int, sizes: list[int]) -> None:
    """Standard errors of the mean CCE over its spread, for input kernels from smooth to narrow."""
    head("input kernel", "lambda", "n", "model", "freedom", "mean CCE", "spread", "standard error / spread")
    settings: list[tuple[str, Kernel, float]] = [
        *(
            (f"RBF({gamma:g})", RBF(gamma), shrinkage)
            for gamma in (0.1, 1.0, 5.0, 20.0)
            for shrinkage in (0.1, 0.01, 0.001)
        ),
        ("Matern(3/2)", Matern(1.5, 1.0), 0.01),
        ("Matern(1/2)", Matern(0.5, 0.5), 0.001),
        ("(x.x' + 1)^3", Polynomial(3, 1.0, 1.0), 0.01),
    ]
    output = RBF(0.4)
    for n in sizes:
        x = np.random.default_rng(0).standard_normal((n, 2))
        mean, scale = np.sin(2.0 * x[:, 0]), 0.5 + 0.3 * np.abs(x[:, 0])
        truth = Normal(mean, scale)
        for title, kernel, shrinkage in settings:
            gram, rng = kernel(x), np.random.default_rng([n, 5])
            smoother = np.linalg.solve(gram + n * shrinkage * np.eye(n), gram).astype(np.float32)
            prepared = prepare(x, input_kernel=kernel, regularization=shrinkage)
            for name, model in {"true": truth, "wrong": Normal(mean + 0.3 * x[:, 1], 1.3 * scale)}.items():
                psi = output_features(output, truth.sample(1, seed=1)[:, 0], model)
                expected = psi.expectation(model)
                means, stated = [], []
                for split in range(splits):
                    y = truth.sample(1, seed=rng)[:, 0]
                    error = smoother @ (psi(y) - expected).astype(np.float32)
                    means.append(np.mean(np.linalg.norm(error, axis=1)))
                    if split % 25 == 0:
                        found = prepared.conditional_congruence_error(y, model, output_kernel=output)
                        stated.append(found.standard_error)
                spread = np.std(means)
                row(title, shrinkage, n, name, f"{np.trace(smoother):.0f}", f"{np.mean(means):.4f}", f"{spread:.5f}",
                    np.sqrt(np.mean(np.square(stated))) / spread)  # fmt: skip


if __name__ == "__main__":
    suites = {"paired": (paired, [150, 400, 2000]), "intervals": (intervals, [500, 4000]), "kernels": (kernels, [1500])}
    given = asked(__doc__, suites, splits=400, sizes=[int])
    machine()
    run, sizes = suites[given.part]
    run(given.splits, given.sizes or sizes)
