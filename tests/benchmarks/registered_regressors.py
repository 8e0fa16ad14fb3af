"""Five real tables, and eleven fitted models of ten kinds that are registered in MLflow as their users would.

Wherever MLflow has a flavor for a model it is logged by that flavor, with nothing of ours; quantiles by LightGBM (one
model a level), an ensemble and a histogram, which no flavor holds together, are logged by ``log_predictive_model``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.neural_network import MLPRegressor

from congruence.kernels import Histogram, Samples
from congruence.tasks.contract import log_predictive_model

LEVELS = np.round(np.arange(0.05, 0.96, 0.05), 2).tolist()


@dataclass(frozen=True)
class Table:
    """A real table: inputs standardised, rows in random order, the training rows first.

    Attributes:
        glm: the statsmodels model of it: "ols", "gamma" or "negativebinomial".
        x, y: standardised inputs, and targets.
        unscaled: the inputs as they were.
        train: rows to fit.
    """

    name: str
    source: str
    glm: str
    x: pd.DataFrame
    y: pd.Series[float]
    unscaled: pd.DataFrame
    train: int

    @property
    def fitted(self) -> tuple[pd.DataFrame, pd.Series[float]]:
        """The rows that models are fitted on."""
        return self.x[: self.train], self.y[: self.train]

    @property
    def asked(self) -> tuple[pd.DataFrame, np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        """The rows that they are judged on: inputs, targets and the inputs as they were."""
        x, y, unscaled = (part[self.train :] for part in (self.x, self.y, self.unscaled))
        return x.reset_index(drop=True), y.to_numpy(), {str(name): unscaled[name].to_numpy() for name in unscaled}


def tables(folder: Path, train: int, test: int) -> Iterator[Table]:
    """The five of them; ``folder`` holds those that no package ships."""
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    yield _table("diabetes", "scikit-learn; disease progression after a year", "ols", x, y, 242, 200)

    frame = pd.read_csv(folder / "protein" / "data.csv.gz", header=None)  # the last column is the target
    about = "Rana 2013; deviation of a protein's predicted structure"
    yield _table("protein", about, "ols", frame.iloc[:, :-1], frame.iloc[:, -1], train, test)

    frame = pd.read_csv(folder / "bike-hourly" / "hour.csv.gz")
    used = ["season", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "hum", "windspeed"]
    about = "Fanaee-T and Gama 2013; rentals in an hour, 1 to 977"
    yield _table("bike rentals", about, "negativebinomial", frame[used], frame["cnt"], train, test)

    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    about = "statsmodels, RAND health insurance; visits to a doctor in a year, a third of them 0"
    yield _table("doctor visits", about, "negativebinomial", frame.drop(columns="mdvis"), frame["mdvis"], train, test)

    frame = pd.read_csv(folder / "motor-claims" / "motorcycle-claims.csv.gz")
    frame = frame[frame["skadkost"] > 0].assign(kon=lambda rows: rows["kon"] == "M")
    used = ["agarald", "kon", "zon", "mcklass", "fordald", "bonuskl", "duration"]
    about = "Ohlsson and Johansson 2010; cost of a policy's motorcycle claims in thousand kronor"
    yield _table("claim costs", about, "gamma", frame[used], frame["skadkost"] / 1000.0, len(frame) - 300, 300)


def _table(name: str, about: str, glm: str, x: pd.DataFrame, y: pd.Series[float], train: int, test: int) -> Table:
    rows = np.random.default_rng(0).permutation(len(x))[: train + test]
    x, y = x.iloc[rows].reset_index(drop=True).astype(float), y.iloc[rows].reset_index(drop=True).astype(float)
    x.columns = pd.Index([name if isinstance(name, str) else f"x{name}" for name in x.columns])
    scaled = (x - x[:train].mean()) / x[:train].std().replace(0.0, 1.0)
    return Table(name, about, glm, scaled, y, x, train)


def registered(table: Table, kind: str) -> str:
    """Fit a model of this kind and register it; its URI."""
    x, y = table.fitted
    name = f"{table.name}-{kind}".replace(" ", "-").replace(",", "").replace("'", "")
    model, flavor = KINDS[kind](table, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if flavor == "ours":
            info = log_predictive_model(model, name="model", input_example=x.head(), registered_model_name=name)
        else:
            options = {
                "sklearn": {"serialization_format": "cloudpickle"},
                "pytorch": {"serialization_format": "pickle"},
            }
            info = getattr(mlflow, flavor).log_model(
                model, name="model", registered_model_name=name, pip_requirements=["numpy"],
                signature=mlflow.models.infer_signature(x), **options.get(flavor, {}),
            )  # fmt: skip
    return f"models:/{name}/{info.registered_model_version}"


Made = tuple[Any, str]
"""A fitted model, and the flavor of MLflow that logs it, or "ours"."""


def generalised_linear(table: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    formula, frame = f"y ~ {' + '.join(x.columns)}", x.assign(y=y)
    if table.glm == "gamma":
        return smf.glm(formula, frame, family=sm.families.Gamma(sm.families.links.Log())).fit(), "statsmodels"
    if table.glm == "negativebinomial":
        return smf.negativebinomial(formula, frame).fit(disp=0, maxiter=500), "statsmodels"
    return smf.ols(formula, frame).fit(), "statsmodels"


def gaussian_process(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    return GaussianProcessRegressor(RBF(3.0) + WhiteKernel(), normalize_y=True).fit(x[:500], y[:500]), "sklearn"


def ngboost(table: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    from ngboost import NGBRegressor
    from ngboost.distns import LogNormal, Normal

    dist = LogNormal if table.glm == "gamma" else Normal
    return NGBRegressor(dist, n_estimators=300, learning_rate=0.02, verbose=False, random_state=0).fit(x, y), "sklearn"


def lightgbm_quantiles(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    from lightgbm import LGBMRegressor

    return {q: LGBMRegressor(objective="quantile", alpha=q, verbose=-1).fit(x, y) for q in LEVELS}, "ours"


def catboost_quantiles(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    return _catboost(f"MultiQuantile:alpha={','.join(map(str, LEVELS))}").fit(x, y), "catboost"


def catboost_uncertainty(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    return _catboost("RMSEWithUncertainty").fit(x, y), "catboost"


def _catboost(loss: str) -> Any:
    from catboost import CatBoostRegressor

    return CatBoostRegressor(loss_function=loss, iterations=300, verbose=0, allow_writing_files=False, thread_count=2)


def quantile_forest(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    from quantile_forest import RandomForestQuantileRegressor

    return RandomForestQuantileRegressor(100, min_samples_leaf=5, random_state=0).fit(x, y), "sklearn"


def conformal(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    from crepes import WrapRegressor

    model, half = WrapRegressor(RandomForestRegressor(100, random_state=0)), len(x) // 2
    model.fit(x[:half], y[:half])
    model.calibrate(x[half:][:200], y[half:][:200], cps=True)
    return model, "sklearn"


def ensemble(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    """The outputs of ten networks as draws: what many call an uncertainty."""
    center, spread = float(y.mean()), float(y.std())
    networks = [
        MLPRegressor(hidden_layer_sizes=(32,), max_iter=200, random_state=k).fit(x, (y - center) / spread)
        for k in range(10)
    ]
    return lambda new: Samples(np.column_stack([center + spread * one.predict(new) for one in networks])), "ours"


class MixtureDensityNetwork(torch.nn.Module):
    """Three normal laws, whose weights, means and scales are a network's outputs."""

    def __init__(self, inputs: int, center: float, spread: float) -> None:
        super().__init__()
        self.center, self.spread = center, spread
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, 48), torch.nn.Tanh(), torch.nn.Linear(48, 9))

    def forward(self, rows: torch.Tensor) -> torch.distributions.Distribution:
        weights, means, scales = self.layers(rows).double().chunk(3, dim=1)
        scales = self.spread * (torch.nn.functional.softplus(scales) + 1e-2)
        parts = torch.distributions.Normal(self.center + self.spread * means, scales)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), parts)


def mixture_density(_: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    torch.manual_seed(0)
    network = MixtureDensityNetwork(x.shape[1], float(y.mean()), float(y.std()))
    inputs, targets = torch.tensor(x.to_numpy()).float(), torch.tensor(y.to_numpy())
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4)
    for _step in range(300):
        optimiser.zero_grad()
        (-network(inputs).log_prob(targets).mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network, "pytorch"


def histogram(table: Table, x: pd.DataFrame, y: pd.Series[float]) -> Made:
    """A classifier of at most twelve bins with about as many targets each; counts lie in the middle of theirs."""
    borders = np.unique(np.quantile(y, np.linspace(0, 1, 13)))
    if table.glm == "negativebinomial":
        borders = np.unique(np.append(np.floor(borders) - 0.5, y.max() + 0.5))
    bins = np.clip(np.searchsorted(borders, y, side="right") - 1, 0, len(borders) - 2)
    model = HistGradientBoostingClassifier(max_iter=40, learning_rate=0.08, min_samples_leaf=10).fit(x, bins)
    return lambda new: Histogram(borders, model.predict_proba(new), tail_share=0.2), "ours"


KINDS: dict[str, Callable[[Table, pd.DataFrame, pd.Series[float]], Made]] = {
    "linear or GLM": generalised_linear,
    "Gaussian process": gaussian_process,
    "NGBoost": ngboost,
    "LightGBM quantiles": lightgbm_quantiles,
    "CatBoost quantiles": catboost_quantiles,
    "CatBoost with uncertainty": catboost_uncertainty,
    "quantile forest": quantile_forest,
    "conformal predictive system": conformal,
    "ensemble of networks": ensemble,
    "mixture density network": mixture_density,
    "histogram of a classifier": histogram,
}
