"""The papers' CCE experiments that need no private data: `python tests/benchmarks/papers_cce.py` > papers_cce.md.

Where the papers train a network of each family, the best member of the family is taken instead: the one with the mean
and variance of the truth, as far as the family allows. What is left is what the family cannot say.
"""

from __future__ import annotations

import os
import platform

import numpy as np
from scipy.special import gammaln
from sklearn.neural_network import MLPRegressor

from congruence.kernels import (
    RBF,
    DoublePoisson,
    Laplacian,
    NegativeBinomial,
    Normal,
    Poisson,
    Polynomial,
    conditional_congruence_error,
    maximum_conditional_mean_discrepancy,
    prepare,
)
from congruence.kernels.calibration import calibration_error_of_pit, pit_values
from congruence.kernels.congruence.test import congruence_test
from congruence.kernels.protocol.downsampling import downsampled_congruence
from congruence.kernels.rejection import rejection_curve
from congruence.kernels.scores import negative_log_likelihood


def gaussian_trap(n: int = 1000) -> None:
    """Young et al. 2025, figure 1: right in the marginal, wrong everywhere else."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    y = rng.normal(3.0 * x, 1.0)
    models = {
        "truth N(3x, 1)": Normal(3.0 * x, np.ones(n)),
        "marginal N(0, 10)": Normal(np.zeros(n), np.full(n, np.sqrt(10.0))),
    }
    print(f"\n## Figure 1, the Gaussian trap (n = {n})\n")
    print("| model | ECE | mean CCE | noise floor | p |\n|---|---:|---:|---:|---:|")
    for name, model in models.items():
        ece = calibration_error_of_pit(pit_values(y, model))
        result = conditional_congruence_error(x, y, model, input_kernel=RBF(0.5))
        p = congruence_test(x, y, model, input_kernel=RBF(0.5)).p_value
        print(f"| {name} | {ece:.4f} | {result.mean:.4f} | {result.noise_floor:.4f} | {p:.3f} |")


def general_behaviour(n: int = 1000, m: int = 500) -> None:
    """Young et al. 2024, figures 2 and 3: MCMD of 1000 true pairs against 500 pairs of a changed law."""
    rng = np.random.default_rng(0)
    settings = {
        "homoscedastic": ((0.0, 2.0 * np.pi), np.cos, lambda x: np.full(len(x), 0.5), 2.0, 0.2, 3.0),
        "heteroscedastic": ((-np.pi, np.pi), np.sin, lambda x: np.sqrt(np.maximum(x, 0.2)), 3.0, 0.25, 2.0),
    }
    print(f"\n## General behaviour: mean MCMD ({n} pairs of the truth, {m} of the comparison)\n")
    print("| comparison | homoscedastic | heteroscedastic |\n|---|---:|---:|")
    columns = []
    for (low, high), mean, spread, shift, narrow, wide in settings.values():
        x, x_prime = rng.uniform(low, high, n), rng.uniform(low, high, m)
        y = rng.normal(mean(x), spread(x))
        laws = {
            "the same law": (mean(x_prime), spread(x_prime)),
            "shifted mean": (mean(x_prime) - shift, spread(x_prime)),
            "smaller spread": (mean(x_prime), narrow * spread(x_prime)),
            "larger spread": (mean(x_prime), wide * spread(x_prime)),
            "shifted mean, smaller spread": (mean(x_prime) - shift, narrow * spread(x_prime)),
            "shifted mean, larger spread": (mean(x_prime) - shift, wide * spread(x_prime)),
            "another shape": (x_prime - 5.0, np.full(m, 0.5)),
        }
        grid = np.linspace(low, high, 200)
        columns.append(
            {
                name: maximum_conditional_mean_discrepancy(
                    x, y, x_prime, rng.normal(*law), grid, input_kernel=RBF(1.0), output_kernel=RBF(1.0)
                ).mean
                for name, law in laws.items()
            }
        )
    for name in columns[0]:
        print(f"| {name} | {columns[0][name]:.4f} | {columns[1][name]:.4f} |")


def discrete_wave(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, object]]:
    """y = 30 - c with c from the conflation of five Poisson(10 sin x + 10), and the best member of each family."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 2.0 * np.pi, n)
    rate = 10.0 * np.sin(x) + 10.0
    counts = np.arange(31)
    log_mass = 5.0 * (counts * np.log(rate)[:, None] - gammaln(counts + 1.0))
    mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    y = 30.0 - (rng.uniform(size=(n, 1)) > np.cumsum(mass, axis=1)).sum(axis=1)
    mean = 30.0 - mass @ counts
    variance = np.maximum(mass @ counts**2 - (mass @ counts) ** 2, 0.05)
    models = {
        "Gaussian": Normal(mean, np.sqrt(variance)),
        "Double Poisson": DoublePoisson(mean, mean / variance),
        "Poisson": Poisson(mean),
        "Negative binomial": NegativeBinomial(mean, np.full(n, 0.01)),
    }
    return x, y, models


def wave_by_region(n: int = 1000) -> None:
    """Young et al. 2024, figure 4: equidispersed families miss on [pi, 2 pi], where the truth is narrow."""
    x, y, models = discrete_wave(n)
    results = prepare(x, input_kernel=RBF(0.5)).evaluate(y, models)
    print(f"\n## Discrete wave (n = {n}): the best member of each family\n")
    print("| model | mean CCE | on [0, pi] | on [pi, 2 pi] | noise floor | p |\n|---|---:|---:|---:|---:|---:|")
    for name, result in results.items():
        p = congruence_test(x, y, models[name], input_kernel=RBF(0.5)).p_value
        low, high = result.values[x < np.pi].mean(), result.values[x >= np.pi].mean()
        print(f"| {name} | {result.mean:.4f} | {low:.4f} | {high:.4f} | {result.noise_floor:.4f} | {p:.3f} |")


def hyper_parameters(n: int = 500) -> None:
    """Young et al. 2025, appendix C.3: does the order of the models hang on the kernel's parameters?"""
    x, y, models = discrete_wave(n)
    print(f"\n## Hyper-parameters, discrete wave (n = {n}): mean CCE\n")
    print("| setting | " + " | ".join(models) + " |\n|---" + "|---:" * len(models) + "|")
    settings = {f"lambda {v:g}": (RBF(0.5), v, None) for v in (0.001, 0.01, 0.1, 1.0)}
    settings |= {f"gamma {v:g}": (RBF(v), 0.1, None) for v in (0.1, 0.5, 1.0, 5.0)}
    settings |= {"Laplacian": (Laplacian(0.5), 0.1, None), "polynomial": (Polynomial(3, 0.02, 1.0), 0.1, None)}
    settings |= {f"l = {v}": (RBF(0.5), 0.1, v) for v in (1, 2, 3, 4, 5)}
    for name, (kernel, regularization, samples) in settings.items():
        results = prepare(x, input_kernel=kernel, regularization=regularization).evaluate(y, models, samples=samples)
        print(f"| {name} | " + " | ".join(f"{result.mean:.4f}" for result in results.values()) + " |")


def downsampling() -> None:
    """Young et al. 2025, figure 6, and the better-than-uniform choices beside it."""
    x, y, models = discrete_wave(100)
    print("\n## Downsampling (figure 6): n = 100, mean and std of the mean CCE over 5 uniform samples\n")
    print("| k | " + " | ".join(models) + " |\n|---:" + "|---:" * len(models) + "|")
    for rows in (25, 50, 75, 100):
        found = downsampled_congruence(x, y, models, rows=rows, input_kernel=RBF(0.5))
        print(f"| {rows} | " + " | ".join(f"{result.mean:.4f} +- {result.std:.4f}" for result in found.values()) + " |")
    n = 4000
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 8)) * np.where(rng.uniform(size=(n, 1)) < 0.05, 3.0, 0.5)
    mean = 3.0 * np.tanh(x[:, 0]) + x[:, 1]
    y = rng.normal(mean, 0.5)
    models = {"true": Normal(mean, np.full(n, 0.5)), "wrong far out": Normal(3.0 * x[:, 0] + x[:, 1], np.full(n, 0.5))}
    whole = prepare(x, input_kernel=RBF(0.25)).evaluate(y, models)
    print(f"\n## Choice of the reference points: n = {n:,}, 5 % of the inputs far out, 10 repeats\n")
    means = ", ".join(f"{name} {result.mean:.4f}" for name, result in whole.items())
    print("Root mean square difference of the points' CCE, averaged over the repeats, from that of all points; and the")
    print(f"mean CCE (all points: {means}).\n")
    print("| k | choice | true: rms | mean +- std | wrong far out: rms | mean +- std |\n|---:|---|---:|---:|---:|---:|")
    for rows in (200, 800):
        for choice in ("uniform", "leverage", "rpcholesky"):
            found = downsampled_congruence(x, y, models, rows=rows, repeats=10, choice=choice, input_kernel=RBF(0.25))
            cells = [
                f"{np.sqrt(np.mean((found[name].values - whole[name].values) ** 2)):.4f} | "
                f"{found[name].mean:.4f} +- {found[name].std:.4f}"
                for name in models
            ]
            print(f"| {rows} | {choice} | " + " | ".join(cells) + " |")


def rejection(n: int = 2000) -> None:
    """Young et al. 2025, appendix C.1: withhold the test inputs of large CCE, estimated on the validation split."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 2.0 * np.pi, 3 * n)
    y = rng.normal(x * np.cos(x) ** 2 - np.sqrt(np.abs(x) + 3.0), (2.0 * np.abs(2.0 - x) + 1.0) / 8.0)
    train, validation, test = slice(0, n), slice(n, 2 * n), slice(2 * n, None)

    def network(inputs: np.ndarray, outputs: np.ndarray, seed: int) -> MLPRegressor:
        return MLPRegressor(hidden_layer_sizes=(32, 32), max_iter=200, random_state=seed).fit(inputs[:, None], outputs)

    center = network(x[train], y[train], 0)
    residual = y[train] - center.predict(x[train, None])
    spread = network(x[train], np.log(residual**2 + 1e-4), 1)

    def predict(rows: slice) -> Normal:
        # E log chi^2_1 = -1.27: the mean of log squared residuals is that much below the log variance.
        return Normal(center.predict(x[rows, None]), np.exp(0.5 * (spread.predict(x[rows, None]) + 1.27)))

    result = conditional_congruence_error(
        x[validation], y[validation], predict(validation), query=x[test], input_kernel=RBF(0.5), regularization=0.001
    )
    model = predict(test)
    print(f"\n## Rejection (appendix C.1): {n} rows each to train, as reference, and to test\n")
    print("| withheld | MAE kept | random | NLL kept | random |\n|---:|---:|---:|---:|---:|")
    mae = rejection_curve(result.values, np.abs(y[test] - model.mean()))
    nll = rejection_curve(result.values, negative_log_likelihood(y[test], model))
    for share in (0.0, 0.2, 0.4, 0.6, 0.8):
        at = int(np.argmin(np.abs(mae.withheld - share)))
        print(
            f"| {share:.0%} | {mae.kept_loss[at]:.3f} | {mae.random_loss:.3f} | "
            f"{nll.kept_loss[at]:.3f} | {nll.random_loss:.3f} |"
        )


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    for experiment in (gaussian_trap, general_behaviour, wave_by_region, hyper_parameters, downsampling, rejection):
        experiment()


if __name__ == "__main__":
    main()
