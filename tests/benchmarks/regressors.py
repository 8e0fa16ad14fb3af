"""Ten kinds of models on real tables, read as they are: `python tests/benchmarks/regressors.py FOLDER`.

FOLDER holds protein/data.csv.gz (Rana 2013) and bike-hourly/hour.csv.gz (Fanaee-T 2014); diabetes comes with
scikit-learn. Needs the extra `formats`. The kept record is regressors.md.

Each model is fitted on one part of a table, asked for the laws of another, and judged there: scores, and the test of
calibration given the input. Half of the asked rows fit one correction of each law (a shift and a factor in normal
scores, the same everywhere), the other half say what it leaves.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.neural_network import MLPRegressor

from congruence.kernels import (
    Histogram,
    Quantiles,
    Samples,
    conditional_calibration_test,
    crps,
    negative_log_likelihood,
    pit_values,
)
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.tasks.contract.reading import law_distribution
from congruence.tasks.model_outputs.read import law_of_model, read_law

Predict = Callable[[pd.DataFrame], Distribution]
LEVELS = ",".join(f"{level:.2f}" for level in np.arange(0.05, 0.96, 0.05))


def tables(folder: Path, train: int, test: int) -> Iterator[tuple[str, pd.DataFrame, pd.Series, int]]:
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    yield "diabetes", *cut(x, y, 242, 200)
    frame = pd.read_csv(folder / "protein" / "data.csv.gz", header=None)  # the last column is the target
    yield "protein", *cut(frame.iloc[:, :-1], frame.iloc[:, -1], train, test)
    frame = pd.read_csv(folder / "bike-hourly" / "hour.csv.gz")
    used = ["season", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "hum", "windspeed"]
    yield "bike-hourly", *cut(frame[used], frame["cnt"], train, test)


def cut(x: pd.DataFrame, y: pd.Series, train: int, test: int) -> tuple[pd.DataFrame, pd.Series, int]:
    """Rows in random order, inputs standardised, the training rows first."""
    rows = np.random.default_rng(0).permutation(len(x))[: train + test]
    x, y = x.iloc[rows].reset_index(drop=True).astype(float), y.iloc[rows].reset_index(drop=True).astype(float)
    x = (x - x[:train].mean()) / x[:train].std().replace(0.0, 1.0)
    x.columns = [f"x{k}" for k in range(x.shape[1])]
    return x, y, train


def as_it_is(model: Any) -> Predict:
    def predict(x: pd.DataFrame) -> Distribution:
        law = law_of_model(model, x)
        if law.family == "quantiles":
            return Quantiles.rearranged(law.parameters["levels"], law.parameters["values"])
        return law_distribution(law, len(x))

    return predict


def linear(x: pd.DataFrame, y: pd.Series) -> Predict:
    import statsmodels.formula.api as smf

    return as_it_is(smf.ols(f"y ~ {' + '.join(x.columns)}", x.assign(y=y)).fit())


def gaussian_process(x: pd.DataFrame, y: pd.Series) -> Predict:
    return as_it_is(GaussianProcessRegressor(RBF(3.0) + WhiteKernel(), normalize_y=True).fit(x[:500], y[:500]))


def ngboost(x: pd.DataFrame, y: pd.Series) -> Predict:
    from ngboost import NGBRegressor

    return as_it_is(NGBRegressor(n_estimators=150, learning_rate=0.04, verbose=False, random_state=0).fit(x, y))


def catboost(loss: str) -> Callable[[pd.DataFrame, pd.Series], Predict]:
    def fit(x: pd.DataFrame, y: pd.Series) -> Predict:
        from catboost import CatBoostRegressor

        model = CatBoostRegressor(loss_function=loss, iterations=300, verbose=0, allow_writing_files=False)
        return as_it_is(model.fit(x, y))

    return fit


def forest(x: pd.DataFrame, y: pd.Series) -> Predict:
    from quantile_forest import RandomForestQuantileRegressor

    return as_it_is(RandomForestQuantileRegressor(100, min_samples_leaf=5, random_state=0).fit(x, y))


def conformal(x: pd.DataFrame, y: pd.Series) -> Predict:
    from crepes import WrapRegressor

    model, half = WrapRegressor(RandomForestRegressor(100, random_state=0)), len(x) // 2
    model.fit(x[:half], y[:half])
    model.calibrate(x[half:][:200], y[half:][:200], cps=True)
    return as_it_is(model)


def ensemble(x: pd.DataFrame, y: pd.Series) -> Predict:
    """The outputs of ten networks as draws: what many call an uncertainty."""
    center, spread = y.mean(), y.std()
    networks = [
        MLPRegressor(hidden_layer_sizes=(32,), max_iter=200, random_state=k).fit(x, (y - center) / spread)
        for k in range(10)
    ]
    return lambda new: Samples(np.column_stack([center + spread * one.predict(new) for one in networks]))


def mixture_density(x: pd.DataFrame, y: pd.Series) -> Predict:
    torch.manual_seed(0)
    center, spread = float(y.mean()), float(y.std())
    network = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 48), torch.nn.Tanh(), torch.nn.Linear(48, 9))
    inputs, targets = torch.tensor(x.to_numpy()).float(), torch.tensor(((y - center) / spread).to_numpy()).float()

    def law(rows: torch.Tensor, loc: float = 0.0, scale: float = 1.0) -> torch.distributions.Distribution:
        weights, means, scales = network(rows).chunk(3, dim=1)
        parts = torch.distributions.Normal(loc + scale * means, scale * (torch.nn.functional.softplus(scales) + 1e-2))
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), parts)

    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(300):
        optimiser.zero_grad()
        (-law(inputs).log_prob(targets).mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    def predict(new: pd.DataFrame) -> Distribution:
        with torch.no_grad():
            found = law(torch.tensor(new.to_numpy()).float(), center, spread)
        return law_distribution(read_law(found, len(new)), len(new))

    return predict


def histogram(x: pd.DataFrame, y: pd.Series) -> Predict:
    borders = np.unique(np.quantile(y, np.linspace(0, 1, 13)))
    bins = np.clip(np.searchsorted(borders, y, side="right") - 1, 0, len(borders) - 2)
    model = HistGradientBoostingClassifier(max_iter=40, learning_rate=0.08, min_samples_leaf=10).fit(x, bins)
    return lambda new: Histogram(borders, model.predict_proba(new), tail_share=0.2)


KINDS: dict[str, Callable[[pd.DataFrame, pd.Series], Predict]] = {
    "linear, Student's t": linear,
    "Gaussian process": gaussian_process,
    "NGBoost": ngboost,
    "CatBoost quantiles": catboost(f"MultiQuantile:alpha={LEVELS}"),
    "CatBoost with uncertainty": catboost("RMSEWithUncertainty"),
    "quantile forest": forest,
    "conformal predictive system": conformal,
    "ensemble of networks": ensemble,
    "mixture density network": mixture_density,
    "histogram of a classifier": histogram,
}


def judged(x: pd.DataFrame, y: np.ndarray[Any, Any], law: Distribution) -> dict[str, str]:
    test = conditional_calibration_test(x.to_numpy(), y, law, seed=1)
    order, effect = max(test.effects.items(), key=lambda item: item[1].estimate)
    scores = np.asarray(negative_log_likelihood(y, law, infinite="keep")) if law.has_density() else np.array([np.nan])
    outside = float(np.mean(np.isinf(scores)))
    direction = max(test.means.items(), key=lambda item: abs(item[1]))
    return {
        "CRPS": f"{float(np.mean(crps(y, law))):.4g}",
        "NLL": f"inf ({outside:.1%})" if outside else f"{float(np.mean(scores)):.3f}" if law.has_density() else "none",
        "p": f"{test.p_value:.4f}",
        "p on average": f"{test.by_basis.get('constant', np.nan):.4f}",
        "largest effect": f"{order} {effect.estimate:.2f}",
        "mean score": f"{direction[0]} {direction[1]:+.2f}",
    }


def corrected(law: Distribution, y: np.ndarray[Any, Any], half: int) -> Distribution:
    """One shift and factor in normal scores, of the first half's, for the second half's laws."""
    from scipy.special import ndtri

    z = ndtri(np.clip(pit_values(y[:half], law[:half]), 1e-4, 1 - 1e-4))
    rows = len(y) - half
    return recalibrated(law[half:], NormalScoreMap.affine(np.full(rows, z.mean()), np.full(rows, z.std())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1500)
    parser.add_argument("--test", type=int, default=800)
    parser.add_argument("--only", help="one table")
    given = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    for name, x, y, train in tables(given.folder, given.train, given.test):
        if given.only not in (None, name):
            continue
        asked, targets = x[train:].reset_index(drop=True), y[train:].to_numpy()
        half = len(asked) // 2
        print(f"## {name}: {train} rows to fit, {len(asked)} asked, {x.shape[1]} inputs\n")
        print("| model | CRPS | NLL | p | p on average | largest effect | mean score | p corrected | s |")
        print("|---|---|---|---|---|---|---|---|---|")
        for kind, fit in KINDS.items():
            started = time.perf_counter()
            law = fit(x[:train], y[:train])(asked)
            found = judged(asked, targets, law)
            again = conditional_calibration_test(asked[half:].to_numpy(), targets[half:], corrected(law, targets, half))
            seconds = time.perf_counter() - started
            print(f"| {kind} | {' | '.join(found.values())} | {again.p_value:.4f} | {seconds:.0f} |", flush=True)
        print()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
