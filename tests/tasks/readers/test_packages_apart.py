"""Models of packages that no extra of ours brings, read from the registry; skipped where they are not installed.

TabPFN goes with our pinned versions; GluonTS, LightGBMLSS and sktime need others (pandas below 3 or 2.3, scikit-base
below 1.2), which our ranges allow: `uv pip install .[pipeline] gluonts pytest` (or `lightgbmlss`, `numpyro`, `tabpfn`,
`sktime`) into an environment of its own, and `pytest -k gluonts` on this file there.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from logged_models import log_by_us, log_natively, predicted, same
from sklearn.linear_model import LinearRegression

from congruence.kernels import distributions as families
from congruence.tasks.contract import ContractError, PredictionSettings

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"a": RNG.normal(size=60), "b": RNG.normal(size=60)})
TARGET = FRAME["a"] + RNG.normal(size=60)
ASKED = FRAME.head(6)


def test_gluonts(registry: str) -> None:
    """One row a step of a series, one row a series; draws and quantiles."""
    npts = pytest.importorskip("gluonts.model.npts")
    forecasts = pytest.importorskip("gluonts.model.forecast")
    data = [{"start": pd.Period("2026-01-01", freq="D"), "target": np.sin(np.arange(60.0) + k)} for k in range(2)]
    predictor = npts.NPTSPredictor(prediction_length=3)

    def drawn() -> list[Any]:
        np.random.seed(0)  # noqa: NPY002
        return list(predictor.predict(data, num_samples=50))

    def quantiles(frame: pd.DataFrame) -> list[Any]:
        keys = ["0.1", "0.5", "0.9"]
        made = []
        for one in drawn():
            values = np.stack([one.quantile(key) for key in keys])
            made.append(forecasts.QuantileForecast(values, start_date=one.start_date, forecast_keys=keys))
        return made

    rows = pd.DataFrame({"series": np.repeat([0, 1], 3), "step": np.tile([1, 2, 3], 2)})
    draws = np.concatenate([one.samples.T for one in drawn()]).astype(float)
    levels = np.quantile(draws, [0.1, 0.5, 0.9], axis=1, method="inverted_cdf").T
    assert isinstance(drawn()[0], forecasts.SampleForecast)
    read = np.concatenate([one.forecast_array.T for one in quantiles(rows)]).astype(float)
    assert np.all(np.abs(read - levels) < np.ptp(draws, axis=1)[:, None])
    for kind, function, expected in (
        ("draws", lambda frame: drawn(), families.Samples(draws)),
        ("quantiles", quantiles, families.Quantiles([0.1, 0.5, 0.9], read)),
    ):
        log_natively(function, f"{registry}-{kind}", rows, "pyfunc")
        log_by_us(function, f"{registry}-{kind}-ours", rows)
        same(predicted(f"{registry}-{kind}", rows), expected)
        same(predicted(f"{registry}-{kind}-ours", rows), expected)


def untrained_tabpfn(folder: Path) -> Any:
    """TabPFN's regressor with a small network whose weights are random: its own are not on an index of packages."""
    tabpfn = pytest.importorskip("tabpfn")
    architecture = pytest.importorskip("tabpfn.architectures.tabpfn_v2_5")
    bars = pytest.importorskip("tabpfn.architectures.shared.bar_distribution")
    torch.manual_seed(0)
    config = architecture.TabPFNV2p5Config(num_buckets=40, emsize=32, nlayers=2, nhead=2, num_thinking_rows=4)
    criterion = bars.FullSupportBarDistribution(torch.linspace(-4.0, 4.0, 41))
    state = architecture.get_architecture(config).state_dict()
    state |= {f"criterion.{name}": value for name, value in criterion.state_dict().items()}
    path = folder / "untrained.ckpt"
    torch.save({"state_dict": state, "config": asdict(config), "architecture_name": "base"}, path)
    return tabpfn.TabPFNRegressor(model_path=str(path), device="cpu", n_estimators=2, random_state=0)


def test_tabpfn(registry: str, tmp_path: Path) -> None:
    model = untrained_tabpfn(tmp_path).fit(FRAME, TARGET)
    own = model.predict(ASKED, output_type="full")
    log_natively(model, registry, ASKED)
    log_by_us(model, f"{registry}-ours", ASKED)
    borders = own["criterion"].borders.double().numpy()
    shares = torch.softmax(own["logits"].double(), dim=-1).numpy()
    expected = families.Histogram(borders, shares, tail_share=0.5)
    found = predicted(registry, ASKED)
    same(found, expected)
    same(predicted(f"{registry}-ours", ASKED), expected)
    y = torch.tensor(np.append(borders[[0, 5, 20, -1]] + [-1.0, 0.01, 0.01, 1.0], [0.3, -0.8]), dtype=torch.float32)
    np.testing.assert_allclose(found.log_prob(y.numpy()), -own["criterion"](own["logits"], y).numpy(), rtol=1e-4)
    np.testing.assert_allclose(found.mean(), own["mean"], rtol=1e-4)


def test_lightgbmlss(registry: str) -> None:
    model = pytest.importorskip("lightgbmlss.model")
    family = pytest.importorskip("lightgbmlss.distributions.NegativeBinomial")
    lightgbm = pytest.importorskip("lightgbm")
    counts = RNG.poisson(np.exp(0.5 + 0.5 * FRAME["a"])).astype(float)
    made = model.LightGBMLSS(family.NegativeBinomial())
    made.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(FRAME, label=counts), num_boost_round=3)

    def parameters(frame: pd.DataFrame) -> Any:
        return made.predict(frame, pred_type="parameters")

    given = parameters(ASKED).astype(float)
    log_natively(parameters, registry, ASKED, "pyfunc")
    log_by_us(parameters, f"{registry}-ours", ASKED)
    total, p = given["total_count"].to_numpy(), given["probs"].to_numpy()
    expected = families.NegativeBinomial(total * p / (1 - p), 1 / total)
    for name in (registry, f"{registry}-ours"):
        found = predicted(name, ASKED)
        same(found, expected)
        own = torch.distributions.NegativeBinomial(torch.tensor(total), torch.tensor(p))
        for k in (0.0, 1.0, 5.0):
            theirs = own.log_prob(torch.full((len(ASKED),), k, dtype=torch.float64)).numpy()
            np.testing.assert_allclose(found.log_prob(np.full(len(ASKED), k)), theirs, rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_sktime(registry: str) -> None:
    """Rows in any order, by dates or by steps; in sktime's flavor, and by our helper."""
    naive = pytest.importorskip("sktime.forecasting.naive")
    flavor = pytest.importorskip("sktime.utils.mlflow_sktime")
    dates = pd.date_range("2026-01-01", periods=60, freq="D")
    y = pd.Series(50.0 + 10.0 * np.sin(np.arange(60) / 2.0) + RNG.normal(size=60), index=dates)
    model = naive.NaiveForecaster(strategy="last", sp=7).fit(y[:48])
    rows = pd.DataFrame({"day": dates[[50, 48, 53]]})
    own = model.predict_proba(fh=dates[[48, 50, 53]])
    expected = families.Normal(own.mean().to_numpy()[[1, 0, 2], 0], np.sqrt(own.var().to_numpy()[[1, 0, 2], 0]))
    flavor.log_model(model, artifact_path="model", registered_model_name=registry, pip_requirements=["numpy"])
    log_by_us(model, f"{registry}-ours", rows)
    steps = pd.DataFrame({"step": [3, 1, 6]})
    for name in (registry, f"{registry}-ours"):
        same(predicted(name, rows), expected)
    same(predicted(registry, steps), expected)
    asked = PredictionSettings(method="predict_quantiles(alpha=[0.1, 0.5, 0.9])")
    values = model.predict_quantiles(fh=dates[[48, 50, 53]], alpha=[0.1, 0.5, 0.9]).to_numpy()[[1, 0, 2]]
    same(predicted(registry, rows, asked), families.Quantiles([0.1, 0.5, 0.9], values))
    with pytest.raises(ContractError, match="NaiveForecaster forecasts times, and of the columns 'a' none is of dates"):
        predicted(registry, pd.DataFrame({"a": [1.0, 2.0]}))


@pytest.mark.filterwarnings("ignore")
def test_sktime_with_an_exogenous_variable_by_months(registry: str) -> None:
    compose = pytest.importorskip("sktime.forecasting.compose")
    residual = pytest.importorskip("skpro.regression.residual")
    months = pd.period_range("2020-01", periods=60, freq="M")
    x = pd.DataFrame({"x": RNG.normal(size=60)}, index=months)
    y = (3.0 * x["x"] + RNG.normal(size=60)).rename("y")
    model = compose.YfromX(residual.ResidualDouble(LinearRegression())).fit(y[:48], X=x[:48])
    own = model.predict_proba(fh=[1, 2, 3], X=x[48:51])
    expected = families.Normal(own.mean().to_numpy()[::-1, 0], np.sqrt(own.var().to_numpy()[::-1, 0]))
    rows = pd.DataFrame({"month": months[48:51].to_timestamp(), "x": x["x"].to_numpy()[48:51]})[::-1]
    log_by_us(model, registry, rows.reset_index(drop=True))
    same(predicted(registry, rows.reset_index(drop=True)), expected)
