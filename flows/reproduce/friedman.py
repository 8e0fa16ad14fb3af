"""Widmann et al. (2021), section 4.3: networks on Friedman 1 lose their calibration, their ensemble later."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels import (
    RBF,
    Distribution,
    Mixture,
    MixtureWasserstein,
    Normal,
    calibration_test,
    negative_log_likelihood,
    squared_error,
    squared_kernel_calibration_error,
)
from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.homoscedastic import homoscedastic_history
from congruence.tasks.reproduction.laws import friedman as draw
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import curves

SOURCE = "Widmann et al. 2021, section 4.3 and the authors' script"
MEMBERS = 10
MEASURES = ("NLL", "MSE", "SKCE")


def friedman(plan: Plan) -> Outcome:
    """Ten networks 10-200-50-1 on 100 rows by least squares, variance of the residuals; measured on 50 test rows."""
    rng = np.random.default_rng(plan.seed + 100)
    (x, y), (x_test, y_test) = draw(100, rng), draw(50, rng)
    steps = (0, 10, 100) if plan.quick else (0, 10, 30, 100, 200, 300, 500, 750, 1000, 1500)
    members = plan.size(MEMBERS, 2)
    histories = [
        homoscedastic_history(x, y, x_test, hidden=(200, 50), steps=steps, seed=plan.seed + member)
        for member in range(members)
    ]
    rows = []
    for place, step in enumerate(steps):
        laws = [history[place] for history in histories]
        measured = [_measures(law, y_test, plan) for law in laws]
        ensemble = _measures(Mixture(np.full(members, 1.0 / members), laws), y_test, plan)
        means = {name: float(np.mean([one[name] for one in measured])) for name in ensemble}
        rejected = float(np.mean([one["p"] < 0.05 for one in measured]))
        rows.append(
            {"step": step, **{f"members {k}": v for k, v in means.items()}, "members rejected": rejected}
            | {f"ensemble {k}": v for k, v in ensemble.items()}
        )
    table = pd.DataFrame(rows)
    last, best = table.iloc[-1], table.iloc[int(table["members NLL"].argmin())]
    least = table.iloc[int(table["members MSE"].argmin())]
    overfitted = table[table["step"] > best["step"]]
    claims = (
        judged(
            "The networks lose likelihood and calibration while the squared error of the test rows still falls.",
            SOURCE,
            bool(best["step"] < least["step"] and best["members SKCE"] < least["members SKCE"]),
            f"the NLL is least after {best['step']:.0f} steps ({best['members NLL']:.2f}, biased SKCE "
            f"{best['members SKCE']:.4f}, MSE {best['members MSE']:.2f}), the MSE after {least['step']:.0f} "
            f"({least['members NLL']:.2f}, {least['members SKCE']:.4f}, {least['members MSE']:.2f}); after "
            f"{last['step']:.0f}: {last['members NLL']:.2f}, {last['members SKCE']:.4f}, {last['members MSE']:.2f}, "
            f"and {last['members rejected']:.0%} of the networks are rejected at 5 %",
            nll_last=last["members NLL"],
            skce_last=last["members SKCE"],
        ),
        judged(
            "Where the networks overfit, their ensemble has a lower NLL, MSE and SKCE than they have on average.",
            SOURCE,
            len(overfitted) > 0
            and all(
                bool((overfitted[f"ensemble {k}"] < overfitted[f"members {k}"]).all()) for k in ("NLL", "MSE", "SKCE")
            ),
            f"step {last['step']:.0f}, ensemble against members: NLL {last['ensemble NLL']:.2f} / "
            f"{last['members NLL']:.2f}, MSE {last['ensemble MSE']:.2f} / {last['members MSE']:.2f}, biased SKCE "
            f"{last['ensemble SKCE']:.4f} / {last['members SKCE']:.4f}; p of the ensemble {last['ensemble p']:.3f}",
            ensemble_skce=last["ensemble SKCE"],
        ),
    )
    at = np.maximum(table["step"].to_numpy(float), 1.0)
    panels = [
        (name, "training step", name, {who: (at, table[f"{who} {name}"].to_numpy()) for who in ("members", "ensemble")})
        for name in ("MSE", "NLL", "SKCE", "p")
    ]
    figures = {"friedman": curves(panels, columns=2, log="xy")}
    notes = (
        "Full-batch Adam, learning rate 1e-3, Glorot weights; the first variance is that of the untrained residuals.",
        "Section 4 of the paper is not in the text at hand: the setting is that of the authors' published script.",
    )
    return Outcome("friedman", "Friedman 1 and an ensemble", "SKCE", claims, table, figures, notes)


def _measures(law: Distribution, y: Array, plan: Plan) -> dict[str, float]:
    kernel = MixtureWasserstein() if isinstance(law, Mixture) and not isinstance(law, Normal) else None
    chosen = {"prediction_kernel": kernel, "output_kernel": RBF(0.5)}
    test = calibration_test(y, law, replicates=plan.size(500, 99), seed=plan.seed, **chosen)  # type: ignore[arg-type]
    return {
        "MSE": float(np.mean(squared_error(y, law))),
        "NLL": float(np.mean(negative_log_likelihood(y, law, infinite="keep"))),
        "SKCE": squared_kernel_calibration_error(y, law, estimator="biased", **chosen),  # type: ignore[arg-type]
        "p": test.p_value,
    }
