"""Vector laws with a covariance for each row, which no family here holds: refused by name, with what to do."""

from __future__ import annotations

from typing import Any

from congruence.tasks.model_outputs.law import Law, UnreadableOutputError, is_of, kinds

_PACKAGES = ("torch", "numpyro", "pyro", "tensorflow_probability", "scipy")
_NAMES = {
    "LowRankMultivariateNormal",
    "MultivariateNormal",
    "MultivariateNormalDiagPlusLowRank",
    "MultivariateNormalFullCovariance",
    "MultivariateNormalTriL",
    "MultivariateStudentT",
    "multivariate_normal_frozen",
    "multivariate_t_frozen",
}


def refuse_correlated(found: Any, rows: int) -> Law | None:  # noqa: ARG001 - a reader
    """None, unless the object is a law of several targets that depend on each other.

    Raises:
        UnreadableOutputError: it is; says how its draws, or its targets one by one, are evaluated.
    """
    package = type(found).__module__.split(".")[0]
    # NGBoost's other laws answer None for what they do not have.
    of_ngboost = is_of(found, "ngboost") and getattr(found, "cov_inv", None) is not None
    if not of_ngboost and not (package in _PACKAGES and _NAMES & set(kinds(found))):
        return None
    name = "MultivariateNormal" if of_ngboost else type(found).__name__  # NGBoost calls the class MVN
    draws = "np.swapaxes(model.pred_dist(x).sample(500), 0, 1)" if of_ngboost else "draws of shape (rows, 500, targets)"
    raise UnreadableOutputError(
        f"its output is {package}'s {name}, with a covariance of the targets for each row; no family here holds one. "
        f"Give what is near: (1) its draws: log_predictive_model(lambda x: Samples({draws}), ...); (2) one target at "
        "a time: a function that returns Normal(loc[:, 0], scale[:, 0]); (3) MultivariateNormal(loc, scale) of "
        "congruence.kernels, where the targets are to be judged as if they were independent"
    )
