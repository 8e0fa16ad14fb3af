"""Models that need nothing said: how a fitted model of a known class is asked for its distributions."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from typing import Any

from congruence.tasks.model_outputs.call import Call
from congruence.tasks.model_outputs.forecasters import is_forecaster
from congruence.tasks.model_outputs.law import is_of

PERCENTS = [round(0.01 * percent, 2) for percent in range(1, 100)]


@dataclass(frozen=True)
class Known:
    """How a model is asked, and what its answer is.

    Attributes:
        call: the method and its arguments.
        answer: "object" where its structure tells; else what an array is: "normal" (mean, standard deviation),
            "normal_variance" (mean, variance), "poisson", "quantiles", "draws".
        levels: of quantiles.
        said: in words.
    """

    call: Call
    answer: str
    said: str
    levels: tuple[float, ...] = ()


def known(model: Any) -> Known | None:
    """How ``model`` is asked, by its class and its settings; None where these do not tell."""
    last = final(model)
    for look in (_by_method, _catboost, _boosted_trees, _forest, _statsmodels, _return_std, _poisson_loss):
        if (found := look(last)) is not None:
            return found
    return None


def final(model: Any) -> Any:
    """The model that answers: the best one of a search, the last step of a pipeline."""
    return through(model)[0]


def through(model: Any, inputs: Any = None) -> tuple[Any, Any]:
    """The model that answers, and the inputs, where there are any, as the steps of a pipeline before it make them."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "steps") and hasattr(model, "named_steps") and not is_forecaster(model):
            for _, step in model.steps[:-1] if inputs is not None else ():
                if step is not None and not isinstance(step, str):
                    inputs = step.transform(inputs)
            model = model.steps[-1][1]
        else:
            return model, inputs


def _by_method(model: Any) -> Known | None:
    if is_of(model, "ngboost") and hasattr(model, "pred_dist"):
        return Known(Call("pred_dist"), "object", "pred_dist")
    if is_of(model, "skpro") and hasattr(model, "predict_proba"):
        return Known(Call("predict_proba"), "object", "predict_proba")
    if is_of(model, "tabpfn") and _has_argument(model, "predict", "output_type"):
        return Known(Call("predict", (), {"output_type": "full"}), "object", 'predict(output_type="full")')
    if is_of(model, "crepes") and hasattr(model, "predict_cpds"):
        return Known(Call("predict_cpds"), "draws", "predict_cpds: the conformal predictive distributions")
    if is_of(model, "mapie") and hasattr(model, "predict_interval"):
        return Known(Call("predict_interval"), "object", "predict_interval: the ends of its intervals as quantiles")
    if is_of(model, "drf") and hasattr(model, "predict"):
        return Known(Call("predict"), "object", "predict: weights on the training targets")
    if is_forecaster(model) and model.get_tag("capability:pred_int", tag_value_default=False, raise_error=False):
        return Known(Call("predict_proba"), "object", "predict_proba at the times of the rows")
    if is_of(model, "torch", "Module"):
        return Known(Call(""), "object", "the module")
    return None


def _catboost(model: Any) -> Known | None:
    if not is_of(model, "catboost"):
        return None
    loss = str((model.get_all_params() or {}).get("loss_function", ""))
    if loss.startswith("RMSEWithUncertainty"):
        return Known(
            Call("predict", (), {"prediction_type": "RMSEWithUncertainty"}),
            "normal_variance",
            "CatBoost RMSEWithUncertainty: mean and variance",
        )
    if loss.startswith("MultiQuantile") and (found := re.search(r"alpha=([-+0-9.eE,\s]+)", loss)):
        levels = tuple(float(level) for level in found[1].split(",") if level.strip())
        return Known(Call("predict"), "quantiles", "CatBoost MultiQuantile", levels)
    if loss.startswith("Poisson"):
        return Known(Call("predict", (), {"prediction_type": "Exponent"}), "poisson", "CatBoost's Poisson mean")
    return None


def _boosted_trees(model: Any) -> Known | None:
    """XGBoost with quantile levels, XGBoost and LightGBM with Poisson losses."""
    if is_of(model, "xgboost"):
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        objective = json.loads(booster.save_config())["learner"]["objective"]
        if objective["name"] == "reg:quantileerror":
            found = objective["quantile_loss_param"]["quantile_alpha"]
            levels = tuple(float(level) for level in re.findall(r"[0-9.]+(?:[eE][-+]?\d+)?", str(found)))
            levels = tuple(round(level, 9) for level in levels)
            return Known(Call("predict"), "quantiles", "XGBoost's quantiles", levels) if len(levels) > 1 else None
        if objective["name"] == "count:poisson":
            return Known(Call("predict"), "poisson", "XGBoost's Poisson mean")
    if is_of(model, "lightgbm"):
        settings = getattr(model, "params", None) or {}
        objective = getattr(model, "objective_", None) or getattr(model, "objective", None) or settings.get("objective")
        if objective == "poisson":
            return Known(Call("predict"), "poisson", "LightGBM's Poisson mean")
    return None


def _forest(model: Any) -> Known | None:
    if not is_of(model, "quantile_forest"):
        return None
    own = model.default_quantiles
    levels = tuple(own) if isinstance(own, (list, tuple)) and len(own) > 1 else tuple(PERCENTS)
    call = Call("predict", (), {"quantiles": list(levels)})
    return Known(call, "quantiles", f"quantile-forest, {len(levels)} quantiles", levels)


def _statsmodels(model: Any) -> Known | None:
    if not is_of(model, "statsmodels"):
        return None
    without_law = hasattr(model, "family") and not hasattr(model.family, "get_distribution")  # Tweedie
    if without_law or is_quantile_regression(model):
        return None
    if hasattr(model, "get_distribution"):
        return Known(Call("get_distribution"), "object", "get_distribution")
    if hasattr(model, "get_prediction") and hasattr(model, "df_resid"):
        return Known(Call("get_prediction"), "object", "get_prediction: Student's t of a new observation")
    return None


def is_quantile_regression(model: Any) -> bool:
    """Whether ``model`` predicts the quantile of one level: statsmodels, scikit-learn, LightGBM, XGBoost."""
    if is_of(model, "statsmodels"):
        return type(getattr(model, "model", None)).__name__ == "QuantReg"
    if is_of(model, "sklearn") and type(model).__name__ == "QuantileRegressor":
        return True
    settings = getattr(model, "params", None)
    named = [getattr(model, name, None) for name in ("loss", "objective")]
    named += [settings.get("objective")] if isinstance(settings, dict) else []
    return any(str(name).lower() in ("quantile", "reg:quantileerror") for name in named)


def _return_std(model: Any) -> Known | None:
    if not (hasattr(model, "predict") and _has_argument(model, "predict", "return_std")):
        return None
    return Known(Call("predict", (), {"return_std": True}), "normal", "predict(return_std=True)")


def _poisson_loss(model: Any) -> Known | None:
    """scikit-learn's generalised linear models and boosted trees with a Poisson loss."""
    if not is_of(model, "sklearn"):
        return None
    if type(model).__name__ == "PoissonRegressor" or getattr(model, "loss", None) == "poisson":
        return Known(Call("predict"), "poisson", "the Poisson mean")
    return None


def _has_argument(model: Any, method: str, argument: str) -> bool:
    try:
        return argument in inspect.signature(getattr(model, method)).parameters
    except (AttributeError, TypeError, ValueError):
        return False
