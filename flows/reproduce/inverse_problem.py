"""Podsztavek et al. (2024), section 4.1: what a PIT histogram says of a normal network on a problem of two branches."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels import crps, interpret_pit, negative_log_likelihood, pit_values
from congruence.kernels.plots.interpreted import pit_interpretation
from congruence.tasks.reproduction.laws import inverse_problem as draw
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.training import train

SOURCE = "Podsztavek et al. 2024, section 4.1, figure 1"


def inverse_problem(plan: Plan) -> Outcome:
    """x = u^2, y = u + eps / 4: a normal per input has one mode where the outcomes have two."""
    n = plan.size(10_000, 2000)
    rows, validation, (x, y) = (draw(size, plan.seed + k) for k, size in enumerate((n, n // 5, n)))
    settings = {"hidden": (16,), "batch": 256, "learning_rate": 1e-2, "standardise": True, "seed": plan.seed}
    measured, figures, interpretations = [], {}, {}
    for name, head in (("DN", "gaussian"), ("MDN", "mixture")):
        law = train(head, rows, validation, epochs=plan.size(30, 8), **settings).predict(x)  # type: ignore[arg-type]
        nll, score = negative_log_likelihood(y, law), crps(y, law)
        interpretations[name] = interpret_pit(pit_values(y, law), seed=plan.seed)
        figures[f"figure-1-{name}"] = pit_interpretation(interpretations[name])
        measured.append(
            {
                "model": name,
                "mean NLL": float(nll.mean()),
                "error of NLL": float(nll.std(ddof=1) / np.sqrt(n)),
                "mean CRPS": float(score.mean()),
                "error of CRPS": float(score.std(ddof=1) / np.sqrt(n)),
                "verdict": interpretations[name].verdict.label,
            }
        )
    table = pd.DataFrame(measured).set_index("model")
    normal = interpretations["DN"]
    kinds = {finding.kind: finding.probability for finding in normal.verdict.findings}
    better = table["mean NLL"]["DN"] - table["mean NLL"]["MDN"]
    claims = (
        judged(
            "The interpretation shows the cause: one mode is predicted where the outcomes have two.",
            SOURCE,
            "more modes" in kinds,
            f"'{normal.verdict.text}'; uniformity p {'<' if normal.uniformity.p_value < 1e-300 else '='} "
            f"{max(normal.uniformity.p_value, 1e-300):.2g}; distance of the "
            f"reconstructed histogram {normal.reconstruction_distance:.3f}, of sampling alone "
            f"{normal.sampling_distance:.3f}",
            probability_of_more_modes=kinds.get("more modes", 0.0),
        ),
        judged(
            "Dealing with the cause, by a mixture, improves the mean NLL and CRPS.",
            SOURCE,
            bool(better > 0 and table["mean CRPS"]["MDN"] < table["mean CRPS"]["DN"]),
            "; ".join(
                f"{name}: NLL {row['mean NLL']:.3f} +- {1.96 * row['error of NLL']:.3f}, CRPS {row['mean CRPS']:.4f} "
                f"+- {1.96 * row['error of CRPS']:.4f}, '{row['verdict']}'"
                for name, row in table.iterrows()
            ),
            nll_gain=better,
        ),
    )
    return Outcome("inverse-problem", "The inverse problem", "PIT", claims, table.reset_index(), figures)
