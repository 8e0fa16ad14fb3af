"""Scores of predictive distributions as scikit-learn asks for them: ``GridSearchCV(..., scoring=scorer("crps"))``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels import scores
from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.notebook.predicted import model_distribution, whole_distribution

SCORES: dict[str, Callable[[Array, Distribution], Array]] = {
    "crps": scores.crps,
    "nll": scores.negative_log_likelihood,
    "mae": scores.absolute_error,
    "mse": scores.squared_error,
}
"""A number a row by name, the less the better."""


@dataclass(frozen=True)
class Scorer:
    """Minus the mean score of a fitted model on rows with targets: as scikit-learn has it, more is better.

    Attributes:
        score: its name.
        method: of the model, where its class does not tell.
        levels: of quantiles in an array.
    """

    score: str
    method: str | None = None
    levels: Sequence[float] | None = None

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the score of ``model`` for the rows of X with targets y."""
        predictive = model_distribution(model, X, levels=self.levels, method=self.method)
        return -self.of(y, predictive, sample_weight)

    def of(self, y: Any, predicted: Any, weights: Any = None) -> float:
        """Returns the mean score of predictions, whatever ``congruence.evaluate`` takes as one: less is better."""
        y = require_targets(y, "y")
        predictive = whole_distribution(predicted, len(y), levels=self.levels)
        return float(np.average(SCORES[self.score](y, predictive), weights=weights))


def scorer(score: str = "crps", *, method: str | None = None, levels: Sequence[float] | None = None) -> Scorer:
    """Returns a scorer for ``GridSearchCV``, ``cross_val_score`` and whatever else takes ``scoring=``.

    Args:
        score: ``crps``, ``nll``, ``mae`` or ``mse`` of the predictive mean.
        method: of models whose class does not tell how they are asked, such as "predict(return_std=True)".
        levels: of quantiles, where models answer with an array of them.

    Raises:
        InvalidInputError: another score.
    """
    if score not in SCORES:
        raise InvalidInputError(f"score: {score!r} is none; choose from {', '.join(SCORES)}")
    return Scorer(score, method, levels)
