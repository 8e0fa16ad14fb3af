"""Young et al. (2025), figure 14: NLL and CCE point by point on a map of the inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
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


def nll_map(plan: Plan) -> Outcome:
    """Counts on a square; a Double Poisson that is right but in one corner, where its mean is too low."""
    n = plan.size(1500, 300)
    rng = np.random.default_rng(plan.seed)
    (x, y), (x_test, y_test) = _rows(n, rng), _rows(n, rng)
    wrong = _in_corner(x_test)
    error, nll = _errors(x, y, x_test), _nll(x_test, y_test)
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
                "undefined": int((~finite).sum()) if name == "NLL" else 0,
            }
            for name, values in found.items()
        ]
    ).set_index("measure")
    auc, smooth = table["AUC of the wrong region"], table["rank correlation with the nearest point"]
    moved = _moved_by_an_outlier((x, y), (x_test, y_test))
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
            bool(smooth["CCE"] > 0.8 > smooth["NLL"] + 0.3 and moved["NLL"] > 3.0 > moved["CCE"]),
            f"rank correlation of a point's value with its nearest neighbour's: CCE {smooth['CCE']:.2f}, NLL "
            f"{smooth['NLL']:.2f}; one target at the origin set to {TRIALS} moves the NLL there by {moved['NLL']:.1f} "
            f"standard deviations of NLL over the map, and the CCE there (one of the reference targets) by "
            f"{moved['CCE']:.2f} of CCE's; NLL undefined at {int((~finite).sum())} points",
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


def _errors(x: Array, y: Array, at: Array) -> Array:
    return conditional_congruence_error(x, y, _model(x), query=at, input_kernel=RBF(5.0), regularization=0.001).values


def _nll(x: Array, y: Array) -> Array:
    return negative_log_likelihood(y, _model(x), infinite="keep")


def _moved_by_an_outlier(reference: tuple[Array, Array], test: tuple[Array, Array]) -> dict[str, float]:
    """How far one wild target moves NLL and CCE where it lies, in standard deviations of each over the test points."""
    found = {}
    measures: dict[str, tuple[tuple[Array, Array], Callable[[Array], Array]]] = {
        "NLL": (test, lambda y: _nll(test[0], y)),
        "CCE": (reference, lambda y: _errors(reference[0], y, test[0])),
    }
    for name, ((x, y), measure) in measures.items():
        wild, at = y.copy(), int(np.argmin(np.hypot(test[0][:, 0], test[0][:, 1])))
        wild[int(np.argmin(np.hypot(x[:, 0], x[:, 1])))] = TRIALS
        before, after = measure(y), measure(wild)
        found[name] = float(abs(after[at] - before[at]) / before[np.isfinite(before)].std())
    return found


def _share(x: Array) -> Array:
    return np.asarray(0.15 + 0.35 * (x[:, 0] + 1.0) * (1.2 + x[:, 1]) / 2.2)


def _rows(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-1.0, 1.0, (n, 2))
    y = Binomial(np.full(n, TRIALS), _share(x)).sample(1, seed=rng)[:, 0]
    return x, y


def _in_corner(x: Array) -> Array:
    return np.asarray(np.hypot(x[:, 0] - 1.0, x[:, 1] - 1.0) < RADIUS)


def _model(x: Array) -> Distribution:
    share = _share(x)
    mean = TRIALS * share
    return DoublePoisson(mean * np.where(_in_corner(x), 0.85, 1.0), 1.0 / (1.0 - share))
