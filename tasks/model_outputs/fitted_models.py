"""Objects of NGBoost, statsmodels, TabPFN, distributional forests and Mondrian predictive systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.tasks.model_outputs.law import Law, UnreadableOutputError, as_array, is_of, kinds, law
from congruence.tasks.model_outputs.scipy_stats import broadcast, read_scipy


def read_ngboost(found: Any, rows: int) -> Law | None:
    """``pred_dist``: its ``dist`` is scipy's frozen one, complete where its ``params`` leave out the t's df."""
    if not is_of(found, "ngboost") or not hasattr(found, "dist"):
        return None
    return read_scipy(found.dist, rows)


def read_statsmodels(found: Any, rows: int) -> Law | None:
    """``get_prediction`` of a linear model: Student's t (or the normal law) of a new observation.

    Raises:
        UnreadableOutputError: predictions of the mean alone.
    """
    if not is_of(found, "statsmodels") or "predicted_mean" not in dir(found):
        return None
    if not hasattr(found, "se_obs") or not hasattr(found, "dist_args"):
        raise UnreadableOutputError(
            f"statsmodels' {type(found).__name__} is the law of the estimated mean, not of a target; "
            "give predictions: {method: get_distribution}, which a generalised linear or a discrete model has"
        )
    loc, scale = broadcast(found.predicted_mean, rows), broadcast(found.se_obs, rows)
    if getattr(found.dist, "name", "") == "norm":
        return law("normal", loc=loc, scale=scale)
    return law("student_t", df=np.full(rows, float(found.df)), loc=loc, scale=scale)


def read_bar_distribution(found: Any, rows: int) -> Law | None:
    """TabPFN's full output: a mapping with ``logits`` (rows, B) and the ``criterion`` that holds the borders.

    A "full support" criterion has half-normal tails with half their mass within the outermost bins.
    """
    if not (isinstance(found, Mapping) and "logits" in found and hasattr(found.get("criterion"), "borders")):
        return None
    criterion = found["criterion"]
    logits = as_array(found["logits"]).reshape(rows, -1)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    tails = 0.5 if "FullSupportBarDistribution" in kinds(criterion) else 0.0
    return law(
        "histogram",
        borders=as_array(criterion.borders),
        probabilities=shares / shares.sum(axis=1, keepdims=True),
        tail_share=tails,
    )


def read_weights(found: Any, rows: int) -> Law | None:
    """Weights of each row on the training targets: attributes, or keys, ``weights`` (rows, m) and ``y`` (m,)."""
    both = found if isinstance(found, Mapping) else getattr(found, "__dict__", {})
    if "weights" not in both or "y" not in both:
        return None
    weights = both["weights"]
    weights = np.asarray(weights.toarray() if hasattr(weights, "toarray") else weights, dtype=np.float64)
    targets = as_array(both["y"])
    if weights.shape != (rows, *targets.shape):
        return None
    return law("weighted_samples", support=targets, weights=weights)


def read_ragged(found: Any, rows: int) -> Law | None:
    """Draws that are more for some rows than for others, as those of crepes' Mondrian categories."""
    if not (isinstance(found, np.ndarray) and found.dtype == object and found.shape == (rows,)):
        return None
    draws = [np.asarray(row, dtype=np.float64) for row in found]
    if any(row.ndim != 1 or not len(row) for row in draws):
        return None
    most = max(map(len, draws))
    support = np.stack([np.append(row, np.full(most - len(row), row[-1])) for row in draws])
    weights = np.stack([np.where(np.arange(most) < len(row), 1.0 / len(row), 0.0) for row in draws])
    same = len({len(row) for row in draws}) == 1
    return law("samples", values=support) if same else law("weighted_samples", support=support, weights=weights)
