"""Regressors with scikit-learn's interface: its own, forests of quantiles, conformal ones, TabPFN and TabICL."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Asked,
    Call,
    Known,
    Reader,
    Spec,
    as_array,
    as_matrix,
    as_poisson,
    as_quantiles,
    is_of,
    kinds,
    softmax,
    spec,
)


class ScikitLearnReader(Reader):
    """Regressors with ``return_std`` in their ``predict``, and scikit-learn's own with a Poisson loss."""

    order = 90

    def known(self, model: Any) -> Known | None:
        if hasattr(model, "predict") and _has_argument(model, "predict", "return_std"):
            return Known(Call("predict", (), {"return_std": True}), "predict(return_std=True)")
        poisson = type(model).__name__ == "PoissonRegressor" or getattr(model, "loss", None) == "poisson"
        return Known(Call("predict"), "the Poisson mean", as_poisson) if is_of(model, "sklearn") and poisson else None


class QuantileForestReader(Reader):
    """quantile-forest: the quantiles that it was made for, or one for each percent."""

    def known(self, model: Any) -> Known | None:
        if not is_of(model, "quantile_forest"):
            return None
        own = model.default_quantiles
        percents = [round(0.01 * percent, 2) for percent in range(1, 100)]
        levels = list(own) if isinstance(own, (list, tuple)) and len(own) > 1 else percents
        call = Call("predict", (), {"quantiles": levels})
        return Known(call, f"quantile-forest, {len(levels)} quantiles", as_quantiles(levels))


class DistributionalForestReader(Reader):
    """drf, and what gives weights of each row (rows, m) on the training targets (m,): attributes, or keys."""

    package, call, said = "drf", Call("predict"), "predict: weights on the training targets"

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        both = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
        if "weights" not in both or "y" not in both:
            return None
        weights = both["weights"]
        weights = np.asarray(weights.toarray() if hasattr(weights, "toarray") else weights, dtype=np.float64)
        targets = as_array(both["y"])
        if weights.shape != (rows, *targets.shape):
            return None
        return spec("weighted_samples", support=targets, weights=weights)


class CrepesReader(Reader):
    """crepes' conformal predictive systems: draws, of Mondrian categories more for some rows than for others."""

    package, call = "crepes", Call("predict_cpds")
    said = "predict_cpds: the conformal predictive distributions"

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if asked.call is None or asked.call.method != "predict_cpds":
            return None
        matrix = as_matrix(output, rows)
        if matrix is not None:
            return spec("samples", values=matrix) if matrix.shape[1] > 1 else None
        draws = [np.asarray(row, dtype=np.float64) for row in output] if isinstance(output, np.ndarray) else []
        if len(draws) != rows or any(row.ndim != 1 or not len(row) for row in draws):
            return None
        most = max(map(len, draws))
        support = np.stack([np.append(row, np.full(most - len(row), row[-1])) for row in draws])
        weights = np.stack([np.where(np.arange(most) < len(row), 1.0 / len(row), 0.0) for row in draws])
        same = len({len(row) for row in draws}) == 1
        return spec("samples", values=support) if same else spec("weighted_samples", support=support, weights=weights)


class MapieReader(Reader):
    """MAPIE's intervals: the prediction (rows,) and the ends (rows, 2, L) of L intervals, read as quantiles.

    It knows the error levels of its intervals, or was given them.
    """

    package, call = "mapie", Call("predict_interval")
    said = "predict_interval: the ends of its intervals as quantiles"

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        errors = asked.keywords.get("alpha")
        errors = errors if errors is not None else getattr(asked.model, "_alphas", None)
        if errors is None or not (isinstance(output, tuple) and len(output) == 2 and np.ndim(output[1]) == 3):
            return None
        tails = np.ravel(errors).astype(np.float64) / 2.0
        ends = np.asarray(output[1], dtype=np.float64)
        if ends.shape != (rows, 2, len(tails)):
            return None
        levels = np.round(np.concatenate([tails, 1.0 - tails]), 12)
        return as_quantiles(levels.tolist())(np.concatenate([ends[:, 0], ends[:, 1]], axis=1))


class TabPfnReader(Reader):
    """TabPFN's full output: a mapping with ``logits`` (rows, B) and the ``criterion`` that holds the borders.

    A "full support" criterion has half-normal tails with half their mass within the outermost bins. Of its kin TabICL
    the 999 quantiles that its network is trained on, at levels .001 to .999.
    """

    def known(self, model: Any) -> Known | None:
        if is_of(model, "tabicl") and _has_argument(model, "predict", "alphas"):
            levels = [round(0.001 * permille, 3) for permille in range(1, 1000)]
            call = Call("predict", (), {"output_type": "quantiles", "alphas": levels})
            return Known(call, "TabICL, 999 quantiles", as_quantiles(levels))
        if is_of(model, "tabpfn") and _has_argument(model, "predict", "output_type"):
            return Known(Call("predict", (), {"output_type": "full"}), 'predict(output_type="full")')
        return None

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if not (isinstance(output, Mapping) and "logits" in output and hasattr(output.get("criterion"), "borders")):
            return None
        criterion = output["criterion"]
        return spec(
            "histogram",
            borders=as_array(criterion.borders),
            probabilities=softmax(as_array(output["logits"]).reshape(rows, -1)),
            tail_share=0.5 if "FullSupportBarDistribution" in kinds(criterion) else 0.0,
        )


def _has_argument(model: Any, method: str, argument: str) -> bool:
    try:
        return argument in inspect.signature(getattr(model, method)).parameters
    except (AttributeError, TypeError, ValueError):
        return False
