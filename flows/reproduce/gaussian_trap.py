"""Young et al. (2025), figure 1: right in the marginal, wrong at every input."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels import (
    RBF,
    Normal,
    conditional_congruence_error,
    congruence_test,
    expected_calibration_error,
    pit_values,
)
from congruence.tasks.reproduction.laws import largest_chance_ece
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import trap

FIGURE_1 = "Young et al. 2025, figure 1"


def gaussian_trap(plan: Plan) -> Outcome:
    """X ~ N(0, 1), Y ~ N(3X, 1); the model says N(0, 10) whatever x is."""
    n = plan.size(1000, 200)
    rng = np.random.default_rng(plan.seed)
    x = rng.standard_normal(n)
    y = rng.normal(3.0 * x, 1.0)
    models = {
        "truth N(3x, 1)": Normal(3.0 * x, np.ones(n)),
        "marginal N(0, 10)": Normal(np.zeros(n), np.full(n, np.sqrt(10.0))),
    }
    rows, results = [], {}
    for name, model in models.items():
        result = conditional_congruence_error(x, y, model, input_kernel=RBF(0.5), uncertainty=True)
        test = congruence_test(x, y, model, input_kernel=RBF(0.5), draws=plan.size(999, 199))
        results[name] = result
        low, high = result.interval()
        rows.append(
            {
                "model": name,
                "ECE": expected_calibration_error(y, model),
                "mean CCE": result.mean,
                "low": low,
                "high": high,
                "expected if true": test.expected,
                "p": test.p_value,
            }
        )
    table = pd.DataFrame(rows)
    true, wrong = table.to_dict("records")
    chance = largest_chance_ece(n, plan.seed)
    claims = (
        judged(
            "A model that ignores its input and has the right marginal achieves a near-perfect ECE.",
            FIGURE_1,
            wrong["ECE"] < chance,
            f"ECE {wrong['ECE']:.4f}, of the truth {true['ECE']:.4f}; a calibrated model of {n:,} rows stays below "
            f"{chance:.3f} in 99 of 100 samples",
            ece_marginal=wrong["ECE"],
            ece_truth=true["ECE"],
        ),
        judged(
            "Only a measure that sees the input, as CCE, recognises the discrepancy, at each x.",
            FIGURE_1,
            wrong["low"] > 3.0 * wrong["expected if true"] and wrong["p"] < 0.05 < true["p"],
            f"mean CCE {wrong['mean CCE']:.3f} [{wrong['low']:.3f}, {wrong['high']:.3f}], expected if true "
            f"{wrong['expected if true']:.3f}, p = {wrong['p']:.3f}; the truth has {true['mean CCE']:.4f}, expected "
            f"{true['expected if true']:.4f}, p = {true['p']:.2f}",
            cce_marginal=wrong["mean CCE"],
            cce_truth=true["mean CCE"],
        ),
    )
    marginal = models["marginal N(0, 10)"]
    picture = trap(
        x,
        y,
        marginal.sample(1, seed=plan.seed)[:, 0],
        marginal,
        pit_values(y, marginal),
        results["marginal N(0, 10)"].values,
        float(wrong["ECE"]),
    )
    notes = ("Exact kernel means instead of one draw per input.",)
    return Outcome("gaussian-trap", "The Gaussian trap", "CCE", claims, table, {"figure-1": picture}, notes)
