"""Young et al. (2025), figure 14: NLL and CCE point by point on a map of the inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from prefect import flow
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from congruence.kernels import (
    RBF,
    Binomial,
    Distribution,
    DoublePoisson,
    conditional_congruence_error,
    negative_log_likelihood,
)
from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import maps

SOURCE = "Young et al. 2025, appendix D.2, figure 14"
TRIALS = 60
RADIUS = 0.6


@flow(name="reproduce nll-map", validate_parameters=False)
def nll_map(plan: Plan) -> Outcome:
    """Counts on a square; a Double Poisson that is right but in one corner, where its mean is too low."""
    n = plan.size(1500, 300)
    rng = np.random.default_rng(plan.seed)
    (x, y), (x_test, y_test) = _rows(n, rng), _rows(n, rng)
    model, wrong = _model(x_test), _in_corner(x_test)
    error = conditional_congruence_error(
        x, y, _model(x), query=x_test, input_kernel=RBF(5.0), regularization=0.001
    ).values
    nll = negative_log_likelihood(model, y_test, infinite="keep")
    finite = np.isfinite(nll)
    shown = np.where(finite, nll, nll[finite].max())
    found = {"NLL": shown, "CCE": error}
    neighbour = NearestNeighbors(n_neighbors=2).fit(x_test).kneighbors(x_test, return_distance=False)[:, 1]
    table = pd.DataFrame(
        [
            {
                "measure": name,
                "AUC of the wrong region": roc_auc_score(wrong, values),
                "rank correlation with the nearest point": float(
                    pd.Series(values).corr(pd.Series(values[neighbour]), method="spearman")
                ),
                "largest over median": float(values.max() / np.median(values)),
                "undefined": int((~finite).sum()) if name == "NLL" else 0,
            }
            for name, values in found.items()
        ]
    ).set_index("measure")
    auc, smooth = table["AUC of the wrong region"], table["rank correlation with the nearest point"]
    largest = table["largest over median"]
    claims = (
        judged(
            "CCE illuminates the region in which the model is least congruent, better than NLL.",
            SOURCE,
            bool(auc["CCE"] > auc["NLL"] and auc["CCE"] > 0.9),
            f"area under the ROC curve for the wrong region: CCE {auc['CCE']:.3f}, NLL {auc['NLL']:.3f} "
            f"({wrong.mean():.0%} of {n:,} points; standard error about {0.5 / np.sqrt(wrong.sum()):.3f} at .5)",
            auc_cce=auc["CCE"],
            auc_nll=auc["NLL"],
        ),
        judged(
            "NLL is sensitive to outliers and discontinuous over the inputs; CCE is neither.",
            SOURCE,
            bool(smooth["CCE"] > 0.9 > smooth["NLL"] and largest["NLL"] > largest["CCE"]),
            f"rank correlation of a point's value with its nearest neighbour's: CCE {smooth['CCE']:.2f}, NLL "
            f"{smooth['NLL']:.2f}; largest value over the median: CCE {largest['CCE']:.1f}, NLL {largest['NLL']:.1f}; "
            f"NLL undefined at {int(table.loc['NLL', 'undefined'])} points",
            neighbour_cce=smooth["CCE"],
            neighbour_nll=smooth["NLL"],
        ),
    )
    figures = {"figure-14": maps(x_test, {"target": y_test, "NLL": shown, "CCE": error})}
    notes = (
        "A square with a known law stands for the paper's t-SNE map of faces, so that the wrong region is known; "
        "`image-regression` draws the map of embedded images.",
        "CCE at unlabelled test points, from the validation rows, lambda 0.001.",
    )
    return Outcome("nll-map", "NLL and CCE on a map", "CCE", claims, table.reset_index(), figures, notes)


def _share(x: Array) -> Array:
    return np.asarray(0.15 + 0.35 * (x[:, 0] + 1.0) * (1.2 + x[:, 1]) / 2.2)


def _rows(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-1.0, 1.0, (n, 2))
    y = Binomial(np.full(n, TRIALS), _share(x)).sample(1, seed=rng)[:, 0]
    return x, y


def _in_corner(x: Array) -> Array:
    return np.asarray(np.hypot(*(x - 1.0).T) < RADIUS)


def _model(x: Array) -> Distribution:
    share = _share(x)
    mean = TRIALS * share
    return DoublePoisson(mean * np.where(_in_corner(x), 0.85, 1.0), 1.0 / (1.0 - share))
