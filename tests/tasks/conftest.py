"""Evaluations to plot, log and compare: real numbers from a small regression, made by the kernels themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from congruence.kernels.calibration.regression import calibration_error_of_pit
from congruence.kernels.congruence import conditional_congruence_error
from congruence.kernels.distributions import Distribution, Normal
from congruence.kernels.feature_maps import output_features
from congruence.kernels.protocols import EXACT
from congruence.kernels.target_errors import marginal_kernel, target_errors
from congruence.tasks.evaluation import Evaluation, Metric, SplitSummary
from congruence.tasks.registry import ModelVersion

MakeEvaluation = Callable[..., Evaluation]


def _thumbnails(rows: Sequence[int]) -> list[Image.Image]:
    return [Image.fromarray(np.full((16, 16, 3), (row * 7) % 256, np.uint8)) for row in rows]


def _influence(x: np.ndarray, y: np.ndarray, predictive: Distribution) -> tuple[float, pd.DataFrame]:
    """By the definition: e = S Delta, and the derivatives of mean |e_j|^2 and mean |e_j| by Delta_i, times what of
    psi(y_i) a leave-one-out smooth does not foresee.
    """
    kernel, n = marginal_kernel(y), len(y)
    features = output_features(kernel, y, predictive)
    delta = target_errors(y, predictive, kernel, features=features).delta
    gram = EXACT.input_kernel(x, x)
    smoother = gram @ np.linalg.inv(gram + 0.1 * n * np.eye(n))
    error, psi = smoother @ delta, features(y)
    surprise = (psi - smoother @ psi) / (1.0 - np.diag(smoother))[:, None]
    size = np.linalg.norm(error, axis=1)
    squared = np.sum(2.0 / n * (smoother @ error) * surprise, axis=1)
    root = np.sum(smoother @ (error / size[:, None]) / n * surprise, axis=1)
    return float(np.mean(size**2)), pd.DataFrame({"cce_squared_influence": squared, "cce_influence": root})


def _evaluation(
    *,
    scale: float = 1.0,
    bias: float = 0.0,
    rows: int = 120,
    invalid: int = 2,
    model: ModelVersion | None = None,
    split: str = "test",
    split_digest: str = "s" * 64,
    **changes: Any,
) -> Evaluation:
    """y ~ N(2 x, 1) on the circle, predicted by N(2 x + bias, scale^2); the last ``invalid`` rows are unreadable."""
    rng = np.random.default_rng(7)
    angle = rng.uniform(0, np.pi, rows)
    x = np.column_stack([np.cos(angle), np.sin(angle)])
    y = 2 * angle + rng.normal(size=rows)
    valid = np.arange(rows) < rows - invalid
    x, targets = x[valid], y[valid]
    predictive = Normal(2 * angle[valid] + bias, np.full(len(targets), scale))
    result = conditional_congruence_error(x, targets, predictive, input_kernel=EXACT.input_kernel)
    scores = pd.DataFrame({"key": [f"image-{row}" for row in range(rows)], "valid": valid, "reason": ""})
    scores.loc[~valid, "reason"] = "truncated image"
    values = {
        "target": targets,
        "mean": predictive.mean(),
        "std": predictive.std(),
        "cce": result.values,
        "cce_noise_floor": result.noise_floor_values,
        "nll": -predictive.log_prob(targets),
        "crps": predictive.crps(targets),
        "absolute_error": np.abs(targets - predictive.mean()),
        "squared_error": (targets - predictive.mean()) ** 2,
        "pit": predictive.cdf(targets),
    }
    for name, column in values.items():
        scores[name] = np.nan
        scores.loc[valid, name] = column
    scores["half"] = np.where(angle < np.pi / 2, "left", "right")
    slices = (
        scores[valid].groupby("half").agg(rows=("cce", "size"), cce_mean=("cce", "mean"),
                                          cce_noise_floor=("cce_noise_floor", "mean")).reset_index(names="value")
    )  # fmt: skip
    slices.insert(0, "slice", "half")
    squared_mean, influence = _influence(x, targets, predictive)
    influence.insert(0, "key", scores.loc[valid, "key"].to_numpy())
    metrics = {
        "cce_squared_mean": Metric(squared_mean),
        "cce_mean": Metric(result.mean, 0.9 * result.mean, 1.1 * result.mean),
        "cce_noise_floor": Metric(result.noise_floor),
        "cce_excess": Metric(result.excess),
        "nll_mean": Metric(float(np.mean(values["nll"]))),
        "crps_mean": Metric(float(np.mean(values["crps"]))),
        "ece": Metric(calibration_error_of_pit(values["pit"])),
        "mae": Metric(float(np.mean(values["absolute_error"]))),
    }
    fields: dict[str, Any] = {
        "model": model or ModelVersion("angle", "1", "models:/angle/1"),
        "split": SplitSummary(split, split_digest, rows, int(valid.sum())),
        "protocol": EXACT,
        "metrics": metrics,
        "scores": scores,
        "predictive": predictive,
        "targets": targets,
        "slices": slices,
        "embedding_map": np.where(valid[:, None], np.column_stack([np.cos(angle), np.sin(angle)]), np.nan),
        "thumbnails": _thumbnails,
        "provenance": {"encoder": {"id": "identity"}, "solver": "cholesky", "seed": 7},
        "seconds": {"embed": 1.5, "solve": 0.25},
        "influence": influence,
    }
    return Evaluation(**{**fields, **changes})


@pytest.fixture(scope="session")
def make_evaluation() -> MakeEvaluation:
    """A function that evaluates a normal forecast of some ``scale`` and ``bias``, and takes any field instead."""
    return _evaluation
