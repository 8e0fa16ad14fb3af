"""Fitted models of statsmodels: ``get_distribution``, and ``get_prediction`` of linear models."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Call,
    Known,
    Reader,
    Spec,
    UnreadableOutputError,
    broadcast,
    is_of,
    is_quantile_regression,
    spec,
)


class StatsmodelsReader(Reader):
    """Generalised linear and discrete models, and linear ones, of which a new observation is Student's t."""

    def known(self, model: Any) -> Known | None:
        without_law = hasattr(model, "family") and not hasattr(model.family, "get_distribution")  # Tweedie
        if not is_of(model, "statsmodels") or without_law or is_quantile_regression(model):
            return None
        if hasattr(model, "get_distribution"):
            return Known(Call("get_distribution"), "get_distribution")
        if hasattr(model, "get_prediction") and hasattr(model, "df_resid"):
            return Known(Call("get_prediction"), "get_prediction: Student's t of a new observation")
        return None

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        """The design matrix of a formula, which ``get_distribution`` of generalised linear models does not make.

        Raises:
            UnreadableOutputError: the model is one quantile.
        """
        if not is_of(model, "statsmodels"):
            return NotImplemented
        if call.method == "get_prediction" and is_quantile_regression(model):
            raise UnreadableOutputError(
                "statsmodels' QuantReg is one quantile, whose get_prediction has no distribution of a target; log one "
                "model a level: log_predictive_model({0.1: low, 0.5: middle, 0.9: high}, ...)"
            )
        make = getattr(model, "_transform_predict_exog", None)
        if call.method != "get_distribution" or make is None:
            return NotImplemented
        transforms = "transform" in inspect.signature(model.get_distribution).parameters
        return call.of(model, inputs if transforms else make(inputs, transform=True)[0])

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        """Student's t, or the normal distribution, of a new observation.

        Raises:
            UnreadableOutputError: predictions of the mean alone.
        """
        if not is_of(output, "statsmodels") or "predicted_mean" not in dir(output):
            return None
        if not hasattr(output, "se_obs") or not hasattr(output, "dist_args"):
            raise UnreadableOutputError(
                f"statsmodels' {type(output).__name__} is the distribution of the estimated mean, not of a target; "
                "give predictions: {method: get_distribution}, which a generalised linear or a discrete model has"
            )
        loc, scale = broadcast(output.predicted_mean, rows), broadcast(output.se_obs, rows)
        if getattr(output.dist, "name", "") == "norm":
            return spec("normal", loc=loc, scale=scale)
        return spec("student_t", df=np.full(rows, float(output.df)), loc=loc, scale=scale)
