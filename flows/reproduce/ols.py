"""Widmann et al. (2021), section 1: a least squares fit whose quantiles look calibrated, and a test that rejects it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression

from congruence.kernels import RBF, Normal, calibration_test, kolmogorov_smirnov, pit_values
from congruence.tasks.reproduction.laws import ols_rows
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import fit_and_quantiles

SOURCE = "Widmann et al. 2021, section 1, figures 1 and 2"


def ols(plan: Plan) -> Outcome:
    """100 training and 50 validation rows of y = sin(pi x) + |1 + x| eps, many times; the first is drawn."""
    rows = []
    figures = {}
    for repeat in range(plan.size(200, 15)):
        rng = np.random.default_rng([plan.seed, repeat])
        x, y = ols_rows(100, rng)
        fit = LinearRegression().fit(x[:, None], y)
        spread = float(np.std(y - fit.predict(x[:, None]), ddof=1))
        x_new, y_new = ols_rows(50, rng)
        predicted = Normal(fit.predict(x_new[:, None]), np.full(50, spread))
        pit = pit_values(y_new, predicted)
        test = calibration_test(
            y_new, predicted, output_kernel=RBF(0.5), replicates=plan.size(1000, 199), seed=plan.seed + repeat
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
        judged(
            "The quantiles of the fit look calibrated.",
            SOURCE,
            bool(looks > 0.5),
            f"a test of uniform PIT values passes {looks:.0%} of {n} data sets at 5 %; the drawn one has "
            f"p = {first['p of uniform PIT']:.2f}",
            share_passed=looks,
        ),
        judged(
            "The kernel test of calibration rejects the fit at 5 %.",
            SOURCE,
            bool(rejected > 0.5),
            f"rejected in {rejected:.0%} +- {error:.0%} of {n} data sets; the drawn one has p = "
            f"{first['p of SKCE']:.3f}",
            share_rejected=rejected,
        ),
    )
    notes = ("k_P = exp(-W_2), k_Y = exp(-d^2 / 2), the asymptotic test; the paper shows one data set.",)
    return Outcome("ols", "Least squares, calibrated by its quantiles", "SKCE", claims, table, figures, notes)
