"""Widmann et al. (2021), section 4.2: error, variance and time of the estimators against n."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from congruence.kernels import RBF, Distribution, squared_kernel_calibration_error
from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.laws import calibrated_predictions, uncalibrated_predictions, uncalibrated_skce
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import curves

SOURCE = "Widmann et al. 2021, section 4.2 and its figures"
Law = Callable[[int, int, int], tuple[Distribution, Array]]
MODELS: dict[str, Law] = {"calibrated": calibrated_predictions, "uncalibrated": uncalibrated_predictions}
ESTIMATORS = ("biased", "B = 2", "B = root n", "unbiased")
KERNEL = RBF(0.5)


def skce_estimators(plan: Plan) -> Outcome:
    """The four estimators on new data of 4 to 1,024 rows, beside the truth."""
    sizes = plan.size(5, 3)
    rows = []
    for dimension in (1, 10):
        for model, law in MODELS.items():
            truth = 0.0 if model == "calibrated" else uncalibrated_skce(dimension, KERNEL.gamma)
            for n in (4**k for k in range(1, sizes + 1)):
                rows += _measured(law, model, dimension, n, truth, plan)
    table = pd.DataFrame(rows)
    panels = [
        (f"{model}, d = {dimension}", "rows", measure, _lines(table, str(model), int(dimension), measure))
        for dimension in table["dimension"].unique()
        for model in MODELS
        for measure in ("mean error", "variance", "seconds")
    ]
    largest = table[table["n"] == table["n"].max()]
    by_model = largest.pivot_table(index=["dimension", "model"], columns="estimator", values=["bias", "error of bias"])
    unbiased = [name for name in ESTIMATORS if name != "biased"]
    z = float((by_model["bias"][unbiased].abs() / by_model["error of bias"][unbiased]).max().max())
    excess = by_model["bias"]["biased"]
    variance = largest.pivot_table(index=["dimension", "model"], columns="estimator", values="variance")
    ratio = (variance["B = 2"] / variance["unbiased"]).min()
    slow = largest.groupby("estimator")["seconds"].mean()
    claims = (
        judged(
            "The biased estimator is never negative and errs upwards; the block estimators are unbiased.",
            f"{SOURCE}; lemmas 1 and 2",
            bool((excess > 0).all() and z < 4.0 and (largest.query("estimator == 'biased'")["least"] >= 0).all()),
            f"at n = {int(table['n'].max()):,} the biased one lies {excess.min():.2g} to {excess.max():.2g} above the "
            f"truth; the largest deviation of the three others is {z:.1f} of its standard errors",
            largest_z=z,
        ),
        judged(
            "Larger blocks have a smaller variance.",
            SOURCE,
            bool(ratio > 1.0 and (variance["B = root n"] < variance["B = 2"]).all()),
            f"the variance with blocks of 2 is at least {ratio:.1f} times that of one block of all rows",
            least_ratio=float(ratio),
        ),
        judged(
            "Small blocks take less time than all pairs.",
            SOURCE,
            bool(slow["B = 2"] < slow["unbiased"]),
            f"at n = {int(table['n'].max()):,}: "
            + ", ".join(f"{name} {slow[name] * 1e3:.2f} ms" for name in ESTIMATORS),
            milliseconds_two=float(slow["B = 2"] * 1e3),
            milliseconds_all=float(slow["unbiased"] * 1e3),
        ),
    )
    figures = {"estimators": curves(panels, columns=3, log="xy")}
    notes = ("Variances in k_P k_Y with k_P = exp(-W_2), k_Y = exp(-d^2 / 2).",)
    return Outcome("skce-estimators", "Estimators of SKCE", "SKCE", claims, table, figures, notes)


def _lines(table: pd.DataFrame, model: str, dimension: int, measure: str) -> dict[str, tuple[Array, Array]]:
    part = table[(table["dimension"] == dimension) & (table["model"] == model)].groupby("estimator", sort=False)
    return {str(name): (group["n"].to_numpy(float), group[measure].to_numpy()) for name, group in part}


def _estimate(name: str, predicted: Distribution, y: Array, seed: int) -> float:
    n = len(predicted)
    if name in ("biased", "unbiased"):
        return squared_kernel_calibration_error(y, predicted, estimator=name, output_kernel=KERNEL)  # type: ignore[arg-type]
    size = 2 if name == "B = 2" else max(2, int(np.sqrt(n)))
    return squared_kernel_calibration_error(
        y, predicted, estimator="block", block_size=size, output_kernel=KERNEL, seed=seed
    )


def _measured(law: Law, model: str, dimension: int, n: int, truth: float, plan: Plan) -> list[dict[str, object]]:
    repeats = plan.size(200 if n <= 256 else 30, 12)
    found: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    seconds = dict.fromkeys(ESTIMATORS, np.inf)
    for repeat in range(repeats):
        data = law(n, dimension, plan.seed * 100_000 + repeat)
        for name in ESTIMATORS:
            started = time.perf_counter()
            found[name].append(_estimate(name, *data, seed=repeat))
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return [
        {
            "estimator": name,
            "dimension": dimension,
            "model": model,
            "n": n,
            "mean error": float(np.mean(np.abs(np.array(values) - truth))),
            "bias": float(np.mean(values)) - truth,
            "error of bias": float(np.std(values, ddof=1) / np.sqrt(repeats)),
            "variance": float(np.var(values, ddof=1)),
            "least": float(np.min(values)),
            "seconds": seconds[name],
        }
        for name, values in found.items()
    ]
