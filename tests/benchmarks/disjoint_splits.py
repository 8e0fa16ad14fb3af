"""The same two models on ten disjoint splits: `python tests/benchmarks/disjoint_splits.py PATH/hour.csv.gz`.

The kept record is disjoint_splits.md. What is significant on one split ought to be so in one direction on the others.
Hourly bicycle rentals (UCI 275), one count model fitted to two parts of the training rows, ten disjoint splits: the
paired difference of CCE by what each reference row contributes, beside the resampling of points that it replaces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from congruence.kernels import RBF, NegativeBinomial, median_gamma, prepare
from congruence.kernels.congruence.difference import difference_of_influences
from congruence.kernels.distributions import Distribution
from congruence.kernels.resampling.paired import PairedResampling, PointMetric, mean_of

FEATURES = ["hr", "weekday", "workingday", "weathersit", "temp", "hum", "windspeed", "mnth", "yr"]
SPLITS, ROWS = 10, 1000


def overdispersed(mean: np.ndarray, dispersion: float) -> NegativeBinomial:
    """Counts of that mean with one overdispersion, as fitted on the training rows."""
    return NegativeBinomial(mean, np.full(len(mean), dispersion))


def main(path: Path) -> None:
    """Print one line per split and what both ways of comparing make of them."""
    frame = pd.read_csv(path)
    order = np.random.default_rng(0).permutation(len(frame))
    test, train = order[: SPLITS * ROWS], order[SPLITS * ROWS :]
    x, y = frame[FEATURES].to_numpy(float), frame["cnt"].to_numpy(float)
    scaled = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    models: dict[str, tuple[HistGradientBoostingRegressor, float]] = {}
    third = len(train) // 3
    for number, name in enumerate(("first third", "second third")):
        fitted, rest = train[number * third : (number + 1) * third], train[2 * third :]
        model = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(x[fitted], y[fitted])
        mean = model.predict(x[rest])
        models[name] = (model, float(np.mean((y[rest] - mean) ** 2 - mean) / np.mean(mean**2)))
    print(f"{len(train):,} rows to train, {SPLITS} splits of {ROWS:,}; " + " against ".join(models) + "\n")
    print("| split | CCE | CCE | difference of mean CCE² (standard error) | p | p by resampled points |")
    print("|---:|---:|---:|---:|---:|---:|")
    first_to_second: dict[str, list[tuple[float, float]]] = {"by rows": [], "by points": []}
    for split in range(SPLITS):
        rows = test[split * ROWS : (split + 1) * ROWS]
        prepared = prepare(scaled[rows], input_kernel=RBF(median_gamma(scaled[train])))
        versions: dict[str, Distribution] = {
            name: overdispersed(model.predict(x[rows]), excess) for name, (model, excess) in models.items()
        }
        results = prepared.congruence_errors(y[rows], versions, uncertainty=True)
        one, two = results.values()
        assert one.uncertainty is not None
        assert two.uncertainty is not None
        item = difference_of_influences(one.uncertainty.influence, two.uncertainty.influence)
        points = PairedResampling(ROWS, seed=split).compare(
            PointMetric(one.values[:, None], two.values[:, None], mean_of)
        )
        first_to_second["by rows"].append((item.difference, item.p_value))
        first_to_second["by points"].append((points.difference, points.p_value))
        print(
            f"| {split + 1} | {one.mean:.4f} | {two.mean:.4f} | {item.difference:+.2g} ({item.standard_error:.2g}) | "
            f"{item.p_value:.2g} | {points.p_value:.2g} |"
        )
    for name, found in first_to_second.items():
        signs = [np.sign(difference) for difference, p_value in found if p_value < 0.05]
        print(f"\n{name}: {len(signs)} of {SPLITS} significant at 5 %, {signs.count(1.0)} for the second model, "
              f"{signs.count(-1.0)} for the first")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    main(parser.parse_args().path)
