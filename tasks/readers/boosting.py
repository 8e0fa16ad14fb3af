"""Boosted trees: CatBoost, XGBoost, LightGBM, and NGBoost, whose predictions are scipy's distributions."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Call,
    Known,
    Reader,
    Spec,
    as_matrix,
    as_normal,
    as_poisson,
    as_quantiles,
    is_of,
)
from congruence.tasks.readers.scipy_stats import ScipyReader


class NGBoostReader(Reader):
    """``pred_dist``: its ``dist`` is scipy's frozen one, complete where its ``params`` leave out the t's df."""

    package, call = "ngboost", Call("pred_dist")

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if not is_of(output, "ngboost") or not hasattr(output, "dist"):
            return None
        return ScipyReader().read(output.dist, rows, asked)


class CatBoostReader(Reader):
    """CatBoost with uncertainty, with several quantiles, or with a Poisson loss."""

    def known(self, model: Any) -> Known | None:
        loss = _loss(model)
        if loss.startswith("RMSEWithUncertainty"):
            call = Call("predict", (), {"prediction_type": "RMSEWithUncertainty"})
            return Known(call, "CatBoost RMSEWithUncertainty: mean and variance")
        if loss.startswith("MultiQuantile") and (found := re.search(r"alpha=([-+0-9.eE,\s]+)", loss)):
            levels = [float(level) for level in found[1].split(",") if level.strip()]
            return Known(Call("predict"), "CatBoost MultiQuantile", as_quantiles(levels))
        if loss.startswith("Poisson"):
            call = Call("predict", (), {"prediction_type": "Exponent"})
            return Known(call, "CatBoost's Poisson mean", as_poisson)
        return None

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        """Mean and variance; raw, mean and log sigma; of virtual ensembles, the mean and both parts of the variance."""
        matrix = as_matrix(output, rows) if _loss(asked.model).startswith("RMSEWithUncertainty") else None
        if matrix is None:
            return None
        kind = asked.keywords.get("prediction_type")
        if kind in (None, "RMSEWithUncertainty") and matrix.shape[1] == 2:
            return as_normal(matrix[:, 0], matrix[:, 1], squared=True)
        if kind == "RawFormulaVal" and matrix.shape[1] == 2:
            return as_normal(matrix[:, 0], np.exp(matrix[:, 1]))
        if kind == "TotalUncertainty" and matrix.shape[1] == 3:
            return as_normal(matrix[:, 0], matrix[:, 1] + matrix[:, 2], squared=True)
        return None


class XGBoostReader(Reader):
    """XGBoost with quantile levels or a Poisson loss."""

    def known(self, model: Any) -> Known | None:
        if not is_of(model, "xgboost"):
            return None
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        objective = json.loads(booster.save_config())["learner"]["objective"]
        if objective["name"] == "reg:quantileerror":
            found = objective["quantile_loss_param"]["quantile_alpha"]
            levels = [round(float(level), 9) for level in re.findall(r"[0-9.]+(?:[eE][-+]?\d+)?", str(found))]
            return Known(Call("predict"), "XGBoost's quantiles", as_quantiles(levels)) if len(levels) > 1 else None
        if objective["name"] == "count:poisson":
            return Known(Call("predict"), "XGBoost's Poisson mean", as_poisson)
        return None

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        if not (is_of(model, "xgboost", "Booster") and hasattr(inputs, "columns")):
            return NotImplemented
        import xgboost

        return call.of(model, xgboost.DMatrix(inputs, enable_categorical=True))


class LightGBMReader(Reader):
    """LightGBM with a Poisson loss; columns of text are categories again, which a signature turned into strings."""

    def known(self, model: Any) -> Known | None:
        if not is_of(model, "lightgbm"):
            return None
        settings = getattr(model, "params", None) or {}
        objective = getattr(model, "objective_", None) or getattr(model, "objective", None) or settings.get("objective")
        return Known(Call("predict"), "LightGBM's Poisson mean", as_poisson) if objective == "poisson" else None

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        booster = getattr(model, "booster_", model)
        if not (is_of(model, "lightgbm") and hasattr(inputs, "columns") and booster.pandas_categorical):
            return NotImplemented
        texts = [name for name in inputs.columns if inputs[name].dtype.kind not in "biufcmM"]
        return call.of(model, inputs.assign(**{name: inputs[name].astype("category") for name in texts}))


def _loss(model: Any) -> str:
    if not is_of(model, "catboost"):
        return ""
    return str((model.get_all_params() or {}).get("loss_function", ""))
