"""The demonstration's versions of hourly counts: the true law, one without its spread, one that knows no weekend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from mlflow import MlflowClient

from congruence.tasks.contract import log_predictive_model
from congruence.tasks.hourly.dataset import DISPERSION, INPUTS, hourly_counts, mean_count

MODEL_NAME = "hourly-hires"

DESCRIPTIONS = {
    "truth": "the true distribution",
    "poisson": "the right mean, and Poisson: its spread is too small",
    "weekday": "takes every day for a working day",
}
"""What each version is, by its alias, in the order of registration."""


def true_law(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns mean and dispersion."""
    return pd.DataFrame({"mean": mean_count(frame), "dispersion": np.full(len(frame), DISPERSION)})


def poisson(frame: pd.DataFrame) -> pd.DataFrame:
    """Column rate."""
    return pd.DataFrame({"rate": mean_count(frame)})


def weekday(frame: pd.DataFrame) -> pd.DataFrame:
    """The true law of a working day with the same hour and temperature."""
    return true_law(frame.assign(workingday=1))


_VERSIONS: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "truth": ("negative_binomial", true_law),
    "poisson": ("poisson", poisson),
    "weekday": ("negative_binomial", weekday),
}


def register_versions() -> None:
    """Log and register the versions under ``MODEL_NAME``, each with its alias and what it is as the tag ``what``."""
    example, client = hourly_counts(5)[list(INPUTS)], MlflowClient()
    for alias, (family, predict) in _VERSIONS.items():
        info = log_predictive_model(
            predict,
            name=MODEL_NAME,
            family=family,
            input_example=example,
            registered_model_name=MODEL_NAME,
            pip_requirements=["congruence", "mlflow", "scipy"],
        )
        version = str(info.registered_model_version)
        client.set_registered_model_alias(MODEL_NAME, alias, version)
        client.set_model_version_tag(MODEL_NAME, version, "what", DESCRIPTIONS[alias])
