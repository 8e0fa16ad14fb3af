"""Hires of bicycles in every hour, made by a law that is known; an hour is like the one before it.

Given its inputs a count is negative binomial with ``mean_count`` and ``DISPERSION``, at every hour. What makes
neighbours alike is a Gaussian copula: standard normal z with lag-1 correlation ``CORRELATION``, of which the count is
the quantile at Phi(z). So the law of each hour stays right, and rows are not independent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import scipy.special
import scipy.stats
from scipy.signal import lfilter

from congruence.kernels.arrays import Array
from congruence.kernels.rng import stream
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.digits import describe_version, registered_kinds

INPUTS = ("sin", "cos", "workingday", "temperature")
DISPERSION = 0.15
CORRELATION = 0.8
FIRST_HOUR = "2026-03-02"

SEED = 2
"""Of the demonstration: 5 in 100 series make even the true law look wrong, and this one is none of them."""


def hourly_counts(rows: int, seed: int = SEED) -> pd.DataFrame:
    """``rows`` hours: columns time, the four inputs, and count."""
    time = pd.date_range(FIRST_HOUR, periods=rows, freq="h")
    turn, day = 2.0 * np.pi * time.hour.to_numpy() / 24.0, np.arange(rows) / 24.0
    weather = _alike(rows, 0.99, seed, "weather of hours")
    frame = pd.DataFrame(
        {
            "time": time,
            "sin": np.sin(turn),
            "cos": np.cos(turn),
            "workingday": (time.dayofweek.to_numpy() < 5).astype(int),
            "temperature": 8.0 + 0.08 * day - 4.0 * np.cos(turn - 0.8) + 3.0 * weather,
        }
    )
    mean = mean_count(frame)
    level = scipy.special.ndtr(_alike(rows, CORRELATION, seed, "counts of hours"))
    law = scipy.stats.nbinom(1.0 / DISPERSION, 1.0 / (1.0 + DISPERSION * mean))
    return frame.assign(count=law.ppf(level).astype(int))


def mean_count(frame: pd.DataFrame) -> Array:
    """Of the true law, given the inputs, (n,)."""
    free = 0.8 * (1.0 - frame["workingday"]) * frame["cos"]
    log = 2.2 - 0.9 * frame["cos"] - 0.5 * frame["sin"] + free + 0.04 * (frame["temperature"] - 12.0)
    return np.asarray(np.exp(log.to_numpy(float)))


def _alike(rows: int, correlation: float, seed: int, purpose: str) -> Array:
    """A stationary series, standard normal at every time, (n,)."""
    noise = stream(seed, purpose).standard_normal(rows)
    noise[1:] *= np.sqrt(1.0 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], noise))


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
    """Log and register the versions under ``MODEL_NAME`` that it lacks, each with its alias and what it is."""
    example = hourly_counts(5)[list(INPUTS)]
    for kind in [kind for kind in _VERSIONS if kind not in registered_kinds(MODEL_NAME)]:
        family, predict = _VERSIONS[kind]
        info = log_predictive_model(
            predict,
            name=MODEL_NAME,
            family=family,
            input_example=example,
            registered_model_name=MODEL_NAME,
            pip_requirements=["congruence", "mlflow", "scipy"],
        )
        describe_version(MODEL_NAME, info.registered_model_version, kind, DESCRIPTIONS[kind])
