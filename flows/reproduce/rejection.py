"""Young et al. (2025), figure 7: withhold the predictions at inputs of large CCE."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels import RBF, absolute_error, conditional_congruence_error, negative_log_likelihood
from congruence.kernels.rejection import rejection_curve
from congruence.tasks.reproduction.laws import rejected_rows
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import rejection_pictures
from congruence.tasks.reproduction.training import train

SOURCE = "Young et al. 2025, appendix C.1, figure 7"
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)


def rejection(plan: Plan) -> Outcome:
    """A Gaussian network; CCE at the test inputs from the validation split, without the test targets."""
    n = plan.size(2000, 300)
    rng = np.random.default_rng(plan.seed)
    rows, validation, (x, y) = (rejected_rows(n, rng) for _ in range(3))
    epochs, hidden = plan.size(40, 10), (64, 64)
    network = train("gaussian", rows, validation, hidden=hidden, epochs=epochs, standardise=True, seed=plan.seed)
    model = network.predict(x)
    result = conditional_congruence_error(
        *validation, network.predict(validation[0]), query=x, input_kernel=RBF(0.5), regularization=0.001
    )
    losses = {"MAE": absolute_error(y, model), "NLL": negative_log_likelihood(y, model)}
    found = {name: rejection_curve(result.values, loss) for name, loss in losses.items()}
    table = pd.DataFrame({"withheld": SHARES})
    claims = []
    for name, curve in found.items():
        at = [int(np.argmin(np.abs(curve.withheld - share))) for share in SHARES]
        table[f"{name} kept"], table[f"{name} at random"] = curve.kept_loss[at], curve.random_loss
        best = int(np.argmin(curve.kept_loss[: at[-1] + 1]))
        claims.append(
            judged(
                f"The {name} of the kept part falls as the CCE threshold falls, below random rejection.",
                SOURCE,
                bool(curve.kept_loss[at[2]] < curve.random_low[at[2]] and curve.gain > 0),
                f"{name} "
                + ", ".join(f"{value:.3f}" for value in curve.kept_loss[at])
                + " with 0, 20, 40, 60, 80 % withheld; at random "
                + f"{curve.random_loss:.3f} [{curve.random_low[at[2]]:.3f}, {curve.random_high[at[2]]:.3f}] at 40 %; "
                + f"lowest {curve.kept_loss[best]:.3f} at {curve.withheld[best]:.0%} (CCE ranks the misfit of the "
                + "law, not the size of the noise, so nothing makes it fall all the way)",
                gain=curve.gain,
            )
        )
    notes = ("lambda 0.001: at 0.1 the smoothing over x hides where a well trained network errs.",)
    figures = {"figure-7": rejection_pictures(found)}
    return Outcome("rejection", "Rejection by CCE", "CCE", tuple(claims), table, figures, notes)
