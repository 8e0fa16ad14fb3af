"""Objects of packages whose requirements exclude ours (older pandas, SciPy or torch): where someone put them in anyway.

`pip install --no-deps gluonts toolz tabpfn einops lightgbmlss pyro-ppl pyro-api opt_einsum` does; they are skipped
elsewhere, and tests/tasks/formats/test_objects.py reads objects of the same structure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from congruence.kernels import distributions as families
from congruence.tasks.contract import PredictionSettings, read_distribution

N = 6
RNG = np.random.default_rng(0)


def read(output: Any, rows: int = N) -> families.Distribution:
    return read_distribution(output, PredictionSettings(), rows)


def test_forecasts_of_gluonts() -> None:
    forecast = pytest.importorskip("gluonts.model.forecast")
    start, draws = pd.Period("2026-01-01", freq="D"), RNG.normal(size=(N, 50, 1))
    found = read([forecast.SampleForecast(samples=one, start_date=start) for one in draws])
    assert isinstance(found, families.Samples)
    np.testing.assert_array_equal(found.values, draws[:, :, 0])
    levels, values = ["0.1", "0.5", "0.9"], np.sort(RNG.normal(size=(N, 3)), axis=1)
    made = [
        forecast.QuantileForecast(forecast_arrays=row[:, None], start_date=start, forecast_keys=levels)
        for row in values
    ]
    found = read(made)
    np.testing.assert_allclose(found.quantile(np.array([[0.1, 0.5, 0.9]])), values, rtol=1e-12)


def test_the_bar_distribution_of_tabpfn() -> None:
    bars = pytest.importorskip("tabpfn.architectures.shared.bar_distribution")
    criterion = bars.FullSupportBarDistribution(torch.linspace(-3.0, 4.0, 30, dtype=torch.float64))
    logits = torch.tensor(RNG.normal(size=(N, 29)))
    found = read({"criterion": criterion, "logits": logits})
    for y in (-5.0, -1.3, 0.2, 3.9, 6.0):
        own = -criterion(logits, torch.full((N,), y, dtype=torch.float64))
        np.testing.assert_allclose(found.log_prob(np.full(N, y)), own.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found.mean(), criterion.mean(logits).numpy(), rtol=1e-6)


def test_the_negative_binomial_of_lightgbmlss() -> None:
    model = pytest.importorskip("lightgbmlss.model")
    family = pytest.importorskip("lightgbmlss.distributions.NegativeBinomial")
    lightgbm = pytest.importorskip("lightgbm")
    x = pd.DataFrame({"a": RNG.normal(size=300)})
    y = RNG.poisson(np.exp(0.5 + 0.5 * x["a"]) * RNG.gamma(2.0, 0.5, 300)).astype(float)
    made = model.LightGBMLSS(family.NegativeBinomial())
    made.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(x, label=y), num_boost_round=3)
    parameters = made.predict(x[:N], pred_type="parameters")
    found = read(parameters)
    own = torch.distributions.NegativeBinomial(
        torch.tensor(parameters["total_count"].to_numpy(float)), torch.tensor(parameters["probs"].to_numpy(float))
    )
    for k in (0.0, 1.0, 5.0):
        np.testing.assert_allclose(
            found.log_prob(np.full(N, k)), own.log_prob(torch.full((N,), k, dtype=torch.float64)).numpy(), rtol=1e-9
        )
