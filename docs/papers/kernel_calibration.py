"""Widmann et al. (2021), sections 1 and 4.2: a least squares fit, and the estimators and tests of SKCE."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from experiment import Array, Claim, Options, Outcome, main
from pictures import curves, fit_and_quantiles
from scipy.special import fdtrc
from sklearn.linear_model import LinearRegression

from congruence.kernels import (
    RBF,
    Distribution,
    MultivariateNormal,
    Normal,
    calibration_test,
    kolmogorov_smirnov,
    pit_values,
    squared_kernel_calibration_error,
)
from congruence.kernels.kernel_calibration.estimators import witness_values
from congruence.kernels.rng import stream

SECTION_1 = "Widmann et al. 2021, section 1, figures 1 and 2"


def ols(options: Options) -> Outcome:
    """100 training and 50 validation rows of y = sin(pi x) + |1 + x| eps, many times; the first is drawn."""
    rows = []
    figures = {}
    for repeat in range(options.size(200, 15)):
        rng = np.random.default_rng([options.seed, repeat])
        x, y = ols_rows(100, rng)
        fit = LinearRegression().fit(x[:, None], y)
        spread = float(np.std(y - fit.predict(x[:, None]), ddof=1))
        x_new, y_new = ols_rows(50, rng)
        predicted = Normal(fit.predict(x_new[:, None]), np.full(50, spread))
        pit = pit_values(y_new, predicted)
        test = calibration_test(
            y_new, predicted, output_kernel=RBF(0.5), replicates=options.size(1000, 199), seed=options.seed + repeat
        )
        rows.append(
            {"data set": repeat, "p of uniform PIT": kolmogorov_smirnov(pit).p_value, "p of SKCE": test.p_value}
        )
        if repeat == 0:
            figures["figure-1-2"] = fit_and_quantiles(x, y, fit.predict(x[:, None]), spread, pit)
    table = pd.DataFrame(rows)
    n = len(table)
    looks, rejected = (table["p of uniform PIT"] > 0.05).mean(), (table["p of SKCE"] < 0.05).mean()
    first = table.iloc[0]
    error = 1.96 * float(np.sqrt(rejected * (1.0 - rejected) / n))
    claims = (
        Claim(
            "The quantiles of the fit look calibrated.",
            SECTION_1,
            bool(looks > 0.5),
            f"a test of uniform PIT values passes {looks:.0%} of {n} data sets at 5 %; the drawn one has "
            f"p = {first['p of uniform PIT']:.2f}",
        ),
        Claim(
            "The kernel test of calibration rejects the fit at 5 %.",
            SECTION_1,
            bool(rejected > 0.5),
            f"rejected in {rejected:.0%} +- {error:.0%} of {n} data sets; the drawn one has p = "
            f"{first['p of SKCE']:.3f}",
        ),
    )
    notes = ("k_P = exp(-W_2), k_Y = exp(-d^2 / 2), the asymptotic test; the paper shows one data set.",)
    return Outcome("ols", "Least squares, calibrated by its quantiles", "SKCE", claims, table, figures, notes)


def ols_rows(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """y = sin(pi x) + |1 + x| eps, x ~ U(-1, 1), eps ~ N(0, 0.15^2) (Widmann et al. 2021, section 1)."""
    x = rng.uniform(-1.0, 1.0, rows)
    return x, np.sin(np.pi * x) + np.abs(1.0 + x) * 0.15 * rng.standard_normal(rows)


def calibrated_predictions(rows: int, dimension: int, seed: int) -> tuple[Distribution, Array]:
    """N(c 1, 0.1^2 I) with c ~ U(0, 1), and targets drawn from them (Widmann et al. 2021, section 4.2)."""
    rng = np.random.default_rng(seed)
    center = np.broadcast_to(rng.uniform(size=(rows, 1)), (rows, dimension)).copy()
    y = center + 0.1 * rng.standard_normal((rows, dimension))
    if dimension == 1:
        return Normal(center[:, 0], np.full(rows, 0.1)), y[:, 0]
    return MultivariateNormal(center, np.full((rows, dimension), 0.1)), y


def uncalibrated_predictions(rows: int, dimension: int, seed: int) -> tuple[Distribution, Array]:
    """The same with the first target from N(0.1, 0.1^2), whatever is predicted."""
    predicted, y = calibrated_predictions(rows, dimension, seed)
    other = 0.1 + 0.1 * np.random.default_rng([seed, 1]).standard_normal(rows)
    if y.ndim == 1:
        return predicted, other
    y[:, 0] = other
    return predicted, y


def uncalibrated_skce(dimension: int, gamma: float) -> float:
    """SKCE of ``uncalibrated_predictions`` by quadrature over the two predictions, k_P = exp(-W_2), k_Y = RBF(gamma).

    The kernel mean of a normal distribution in that of another with the same variance s^2 in each of d coordinates is
    (1 + 4 gamma s^2)^(-d/2) exp(-gamma |m - m'|^2 / (1 + 4 gamma s^2)); distributions here differ in their means alone.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    center, weight = (nodes + 1.0) / 2.0, weights / 2.0
    stated = np.repeat(center[:, None], dimension, axis=1)
    true = stated.copy()
    true[:, 0] = 0.1
    widened = 1.0 + 4.0 * gamma * 0.1**2

    def means(first: Array, second: Array) -> Array:
        squared = ((first[:, None] - second[None]) ** 2).sum(axis=2)
        return np.asarray(widened ** (-dimension / 2.0) * np.exp(-gamma * squared / widened))

    products = means(true, true) - means(stated, true) - means(true, stated) + means(stated, stated)
    similar = np.exp(-np.sqrt(dimension) * np.abs(center[:, None] - center[None]))
    return float(weight @ (similar * products) @ weight)


SECTION_4_2 = "Widmann et al. 2021, section 4.2 and its figures"
Drawn = Callable[[int, int, int], tuple[Distribution, Array]]
MODELS: dict[str, Drawn] = {"calibrated": calibrated_predictions, "uncalibrated": uncalibrated_predictions}
ESTIMATORS = ("biased", "B = 2", "B = root n", "unbiased")
KERNEL = RBF(0.5)
TESTS = ("B = 2", "B = root n", "asymptotic", "CME")
LEVEL = 0.05
FAR = 3.0  # standard errors


def skce_estimators(options: Options) -> Outcome:
    """The four estimators on new data of 4 to 1,024 rows, beside the truth."""
    sizes = options.size(5, 3)
    rows = []
    for dimension in (1, 10):
        for model, distribution in MODELS.items():
            truth = 0.0 if model == "calibrated" else uncalibrated_skce(dimension, KERNEL.gamma)
            for n in (4**k for k in range(1, sizes + 1)):
                rows += _measured(distribution, model, dimension, n, truth, options)
    table = pd.DataFrame(rows)
    panels = [
        (f"{model}, d = {dimension}", "rows", measure, _lines(table, str(model), int(dimension), measure))
        for dimension in table["dimension"].unique()
        for model in MODELS
        for measure in ("mean error", "variance", "seconds")
    ]
    largest = table[table["n"] == table["n"].max()]
    by_model = largest.pivot_table(index=["dimension", "model"], columns="estimator", values=["bias", "error of bias"])
    unbiased = [name for name in ESTIMATORS if name != "biased"]
    z = float((by_model["bias"][unbiased].abs() / by_model["error of bias"][unbiased]).max().max())
    excess = by_model["bias"]["biased"]
    variance = largest.pivot_table(index=["dimension", "model"], columns="estimator", values="variance")
    ratio = (variance["B = 2"] / variance["unbiased"]).min()
    slow = largest.groupby("estimator")["seconds"].mean()
    claims = (
        Claim(
            "The biased estimator is never negative and errs upwards; the block estimators are unbiased.",
            f"{SECTION_4_2}; lemmas 1 and 2",
            bool((excess > 0).all() and z < 4.0 and (largest.query("estimator == 'biased'")["least"] >= 0).all()),
            f"at n = {int(table['n'].max()):,} the biased one lies {excess.min():.2g} to {excess.max():.2g} above the "
            f"truth; the largest deviation of the three others is {z:.1f} of its standard errors",
        ),
        Claim(
            "Larger blocks have a smaller variance.",
            SECTION_4_2,
            bool(ratio > 1.0 and (variance["B = root n"] < variance["B = 2"]).all()),
            f"the variance with blocks of 2 is at least {ratio:.1f} times that of one block of all rows",
        ),
        Claim(
            "Small blocks take less time than all pairs.",
            SECTION_4_2,
            bool(slow["B = 2"] < slow["unbiased"]),
            f"at n = {int(table['n'].max()):,}: "
            + ", ".join(f"{name} {slow[name] * 1e3:.2f} ms" for name in ESTIMATORS),
        ),
    )
    figures = {"estimators": curves(panels, columns=3, log="xy")}
    notes = ("Variances in k_P k_Y with k_P = exp(-W_2), k_Y = exp(-d^2 / 2).",)
    return Outcome("skce-estimators", "Estimators of SKCE", "SKCE", claims, table, figures, notes)


def _lines(table: pd.DataFrame, model: str, dimension: int, measure: str) -> dict[str, tuple[Array, Array]]:
    part = table[(table["dimension"] == dimension) & (table["model"] == model)].groupby("estimator", sort=False)
    return {str(name): (group["n"].to_numpy(float), group[measure].to_numpy()) for name, group in part}


def _estimate(name: str, predicted: Distribution, y: Array, seed: int) -> float:
    n = len(predicted)
    if name in ("biased", "unbiased"):
        return squared_kernel_calibration_error(y, predicted, estimator=name, output_kernel=KERNEL)  # type: ignore[arg-type]
    size = 2 if name == "B = 2" else max(2, int(np.sqrt(n)))
    return squared_kernel_calibration_error(
        y, predicted, estimator="block", block_size=size, output_kernel=KERNEL, seed=seed
    )


def _measured(
    distribution: Drawn, model: str, dimension: int, n: int, truth: float, options: Options
) -> list[dict[str, object]]:
    repeats = options.size(200 if n <= 256 else 30, 12)
    found: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    seconds = dict.fromkeys(ESTIMATORS, np.inf)
    for repeat in range(repeats):
        data = distribution(n, dimension, options.seed * 100_000 + repeat)
        for name in ESTIMATORS:
            started = time.perf_counter()
            found[name].append(_estimate(name, *data, seed=repeat))
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return [
        {
            "estimator": name,
            "dimension": dimension,
            "model": model,
            "n": n,
            "mean error": float(np.mean(np.abs(np.array(values) - truth))),
            "bias": float(np.mean(values)) - truth,
            "error of bias": float(np.std(values, ddof=1) / np.sqrt(repeats)),
            "variance": float(np.var(values, ddof=1)),
            "least": float(np.min(values)),
            "seconds": seconds[name],
        }
        for name, values in found.items()
    ]


def skce_tests(options: Options) -> Outcome:
    """How often each test at 5 % errs, on new data of 16 to 1,024 rows."""
    rows = []
    for dimension in (1, 10):
        for model in MODELS:
            for n in plan_sizes(options):
                rows += _rejections(model, dimension, n, options)
    return outcome_of(pd.DataFrame(rows), quick=options.quick)


def outcome_of(table: pd.DataFrame, *, quick: bool) -> Outcome:
    """What the frequencies of rejection say."""
    table["z"] = (table["error"] - LEVEL) / np.sqrt(LEVEL * (1.0 - LEVEL) / table["repeats"])
    calibrated, wrong = (table[table["model"] == model] for model in MODELS)
    large = calibrated[(calibrated["n"] >= 64) & (calibrated["test"] != "CME")]
    worst = large.sort_values("z").iloc[-1]
    found = wrong[(wrong["n"] >= 256) & (wrong["test"] == "asymptotic")]["error"]
    blocks, pairs = _of(wrong, "B = 2").iloc[0], _of(wrong, "asymptotic").loc[_of(wrong, "B = 2").index[0]]
    cme_rows = calibrated[(calibrated["test"] == "CME") & (calibrated["n"] == calibrated["n"].min())]
    smallest = int(table["n"].min())
    claims = [
        Claim(
            "Type-I errors of the tests of SKCE are near the level from 64 rows on.",
            SECTION_4_2,
            bool(worst["z"] < FAR),
            f"the largest excess over the level is {worst['error']:.3f} ({worst['test']}, d = {worst['dimension']}, n "
            f"= {worst['n']}, {worst['repeats']} data sets), {worst['z']:.1f} standard errors; of {len(large)} such "
            f"frequencies chance keeps all below {FAR}",
        ),
        Claim(
            "The uncalibrated model is found by the asymptotic test: its type-II error goes to zero.",
            SECTION_4_2,
            bool(len(found) > 0 and found.max() < 0.05) if not quick else bool(wrong["error"].min() < 0.05),
            "type-II errors of the asymptotic test at the largest n: "
            + ", ".join(
                f"d = {row['dimension']}: {row['error']:.3f} of {row['repeats']} data sets"
                for row in wrong[(wrong["test"] == "asymptotic") & (wrong["n"] == wrong["n"].max())].to_dict("records")
            ),
        ),
        Claim(
            "Tests by small blocks have less power at the same n.",
            SECTION_4_2,
            bool((blocks >= pairs).all() and blocks.max() > pairs.max()),
            f"at n = {blocks.name}: blocks of two miss "
            + ", ".join(f"{v:.3f}" for v in blocks)
            + ", the asymptotic test "
            + ", ".join(f"{v:.3f}" for v in pairs)
            + " (d = 1, 10)",
        ),
        Claim(
            "The test of the calibration mean embedding rejects calibrated models too often at small n.",
            SECTION_4_2,
            bool(cme_rows["z"].max() > FAR),
            "; ".join(
                f"d = {dimension}: " + ", ".join(f"{value:.3f}" for value in part["error"])
                for dimension, part in calibrated[calibrated["test"] == "CME"].groupby("dimension")
            )
            + f" at n = {', '.join(map(str, sorted(table['n'].unique())))} (standard error "
            f"{np.sqrt(LEVEL * (1.0 - LEVEL) / cme_rows['repeats'].min()):.3f} at n = {smallest}). Ours takes "
            "Hotelling's distribution in place of the paper's chi-square, which lessens the excess; its result says "
            "that it is to be trusted from some 200 rows per location on",
        ),
    ]
    panels = [
        (
            f"{kind}, d = {dimension}",
            "rows",
            "share of data sets",
            {test: _line(table, model, dimension, test) for test in TESTS},
        )
        for model, kind in (("calibrated", "type-I error"), ("uncalibrated", "type-II error"))
        for dimension in (1, 10)
    ]
    figures = {"tests": curves(panels, columns=2, level=LEVEL, log="x")}
    notes = (
        "Blocks are tested by Student's distribution and only where there are ten of them, so B = root n begins at 100 "
        "rows.",
    )
    return Outcome("skce-tests", "Errors of the calibration tests", "SKCE", tuple(claims), table, figures, notes)


def plan_sizes(options: Options) -> tuple[int, ...]:
    """The numbers of rows."""
    return (24, 64) if options.quick else (16, 24, 64, 256, 1024)


def _of(rows: pd.DataFrame, test: str) -> pd.DataFrame:
    return rows[rows["test"] == test].pivot_table(index="n", columns="dimension", values="error")


def _line(table: pd.DataFrame, model: str, dimension: int, test: str) -> tuple[Array, Array]:
    part = table[(table["model"] == model) & (table["dimension"] == dimension) & (table["test"] == test)]
    return part["n"].to_numpy(float), part["error"].to_numpy()


def _rejections(model: str, dimension: int, n: int, options: Options) -> list[dict[str, object]]:
    repeats = options.size(200 if n < 1024 else 1000 // (10 + dimension), 12)
    rejected = dict.fromkeys(_applicable(n), 0)
    for repeat in range(repeats):
        predicted, y = MODELS[model](n, dimension, options.seed * 100_000 + 7 * n + repeat)
        for test in rejected:
            rejected[test] += _p_value(test, predicted, y, repeat, options.size(400, 99)) < LEVEL
    return [
        {
            "test": test,
            "dimension": dimension,
            "model": model,
            "n": n,
            "repeats": repeats,
            "error": count / repeats if model == "calibrated" else 1.0 - count / repeats,
        }
        for test, count in rejected.items()
    ]


def _applicable(n: int) -> tuple[str, ...]:
    return tuple(test for test in TESTS if (test != "B = root n" or n >= 100) and (test != "B = 2" or n >= 20))


def _p_value(test: str, predicted: Distribution, y: Array, seed: int, replicates: int) -> float:
    if test == "asymptotic":
        return calibration_test(y, predicted, output_kernel=KERNEL, replicates=replicates, seed=seed).p_value
    if test == "CME":
        return mean_embedding_p_value(y, predicted, seed)
    size = 2 if test == "B = 2" else max(2, int(np.sqrt(len(y))))
    return calibration_test(y, predicted, method="block", block_size=size, output_kernel=KERNEL, seed=seed).p_value


def mean_embedding_p_value(y: Array, predicted: Distribution, seed: int, locations: int = 5) -> float:
    """Return the p-value of Hotelling's T^2 of the witness values at held-out rows, n m' C^-1 m (appendix C.3).

    Hotelling's distribution is that of T^2 at finite n; the chi-square of the paper is its limit and rejects too often
    before.
    """
    order = stream(seed, "test locations").permutation(len(y))
    rest, out = np.sort(order[locations:]), np.sort(order[:locations])
    values = witness_values(predicted[rest], y[rest], predicted[out], y[out], output_kernel=KERNEL)
    n, mean = len(values), values.mean(axis=0)
    spectrum, directions = np.linalg.eigh(np.cov(values, rowvar=False))
    kept = spectrum > 1e-10 * spectrum[-1]
    rank = int(kept.sum())
    statistic = float(n * np.sum((mean @ directions[:, kept]) ** 2 / spectrum[kept]))
    return float(fdtrc(rank, n - rank, statistic * (n - rank) / (rank * (n - 1))))


if __name__ == "__main__":
    main(ols, skce_estimators, skce_tests)
