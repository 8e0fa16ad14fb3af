"""Young et al. (2025), figure 6: CCE on part of the reference split."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels import RBF, downsampled_congruence
from congruence.tasks.reproduction.laws import discrete_wave
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import curves

SOURCE = "Young et al. 2025, appendix B.3, figure 6"
ROWS = (25, 50, 75, 100)


def downsampling(plan: Plan) -> Outcome:
    """25 to 100 of 100 rows of the discrete wave, five uniform choices of each number."""
    wave = discrete_wave(100, plan.seed)
    models = wave.best_members()
    found = {
        rows: downsampled_congruence(
            wave.x, wave.y, models, rows=rows, repeats=5, seed=plan.seed, input_kernel=RBF(0.5)
        )
        for rows in ROWS
    }
    table = pd.DataFrame(
        [
            {"rows": rows, "model": name, "mean CCE": result.mean, "std": result.std}
            for rows, results in found.items()
            for name, result in results.items()
        ]
    )
    means = {name: np.array([found[rows][name].mean for rows in ROWS]) for name in models}
    spreads = {name: np.array([found[rows][name].std for rows in ROWS]) for name in models}
    fit, unfit = [means[name] for name in list(models)[:2]], [means[name] for name in list(models)[2:]]
    factors = np.min(unfit, axis=0) / np.max(fit, axis=0)
    relative = np.mean([spreads[name] / means[name] for name in models], axis=0)
    claims = (
        judged(
            "The ranking of the models stays, even with 25 % of the data.",
            SOURCE,
            bool(np.all(factors > 1.0)),
            "Poisson and negative binomial lie above Gaussian and Double Poisson by factors of "
            + ", ".join(f"{factor:.1f}" for factor in factors)
            + " at 25, 50, 75 and 100 rows; the means of the fitting pair fall with rows, as their noise floor does",
            factor_at_25=float(factors[0]),
        ),
        judged(
            "The relative spread of the mean CCE generally falls with the sample size.",
            SOURCE,
            bool(relative[2] < relative[0]),
            "standard deviation over the mean, averaged over models: "
            + ", ".join(f"{share:.2f}" for share in relative)
            + " (at 100 of 100 rows there is nothing to choose)",
            relative_at_25=float(relative[0]),
            relative_at_75=float(relative[2]),
        ),
    )
    lines = {name: (np.array(ROWS, float), means[name]) for name in models}
    figure = curves([("Uniform downsampling, n = 100", "rows kept", "mean CCE", lines)], errors=spreads)
    return Outcome("downsampling", "Downsampling", "CCE", claims, table, {"figure-6": figure})
