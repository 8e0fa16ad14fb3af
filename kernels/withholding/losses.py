"""Losses beyond what the version itself expects: a row that is hard to predict, and said to be, is no fault."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.scores import absolute_error, crps, negative_log_likelihood
from congruence.kernels.streams import stream

NLL, CRPS, ERROR = "NLL beyond expected", "CRPS beyond expected", "absolute error"
BEYOND = (NLL, CRPS)
_DRAWS = 16


def excess_losses(y: Array, predictive: Distribution, *, seed: int = 0) -> dict[str, Array]:
    """Losses of n rows by name, (n,) each: NLL and CRPS less their mean over draws from the law, and the plain error.

    NLL is left out of laws without density, and where a target is impossible under its law: no mean is finite then.
    """
    draws = np.asarray(predictive.sample(_DRAWS, seed=stream(seed, "losses that a version expects")), dtype=np.float64)
    found = {}
    if predictive.has_density():
        scores = negative_log_likelihood(y, predictive, infinite="keep")
        expected = -np.mean([predictive.log_prob(draws[:, draw]) for draw in range(_DRAWS)], axis=0)
        if np.isfinite(scores).all() and np.isfinite(expected).all():
            found[NLL] = scores - expected
    expected = np.mean([predictive.crps(draws[:, draw]) for draw in range(_DRAWS)], axis=0)
    found[CRPS] = crps(y, predictive) - expected
    found[ERROR] = absolute_error(y, predictive)
    return {name: np.asarray(loss) for name, loss in found.items() if np.isfinite(loss).all()}


def impossible_targets(y: Array, predictive: Distribution) -> int:
    """How many targets have density or mass 0 under their law; 0 of laws without density."""
    if not predictive.has_density():
        return 0
    return int(np.isinf(negative_log_likelihood(y, predictive, infinite="keep")).sum())
