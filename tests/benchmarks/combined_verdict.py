"""True versions that are called wrong, with two slice columns: by each part of the verdict, by all of them together.

    python tests/benchmarks/combined_verdict.py --rows 120 --splits 400 --family normal

"wrong" are those that all parts together contradict; of others nothing is stated. The record is
``combined_verdict.md``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd

from congruence.kernels import EXACT, Distribution, Normal, Poisson, Samples, prepare
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.pit import pit_values
from congruence.kernels.verdict import SIGNIFICANCE
from congruence.tasks.scores.evaluation import PLACES_P_VALUE, MetricValue, verdict_of
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.rows_read import RowsRead

PER_INPUTS = 50  # splits that share inputs and draws


def truth(family: str, x: np.ndarray, rng: np.random.Generator) -> tuple[Distribution, np.ndarray]:
    mean, spread = 2.0 * x[:, 0], np.exp(0.5 * x[:, 1])
    n = len(x)
    if family == "poisson":
        rate = np.exp(1.0 + 0.5 * x[:, 0])
        return Poisson(rate), rng.poisson(rate).astype(float)
    if family == "ensemble":
        values = mean[:, None] + spread[:, None] * rng.standard_normal((n, 11))
        return Samples(values[:, 1:]), values[:, 0]
    return Normal(mean, spread), rng.normal(mean, spread)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--splits", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--draws", type=int, default=199, help="of the test of congruence")
    parser.add_argument("--family", choices=["normal", "poisson", "ensemble"], default="normal")
    arguments = parser.parse_args()
    n, started = arguments.rows, time.process_time()
    settings = CalibrationSettings(draws=999)
    counts = dict.fromkeys(("calibration", "congruence", "places", "wrong", "stated"), 0)
    made = 0
    while made < arguments.splits:
        first = arguments.first + made
        rng = np.random.default_rng([n, first])
        x = EXACT.apply(rng.standard_normal((n, 16)) * np.arange(1, 17) ** -0.5)
        inputs = rng.standard_normal((n, 2))
        x[:, :2] = inputs / 4.0
        prepared = prepare(x, input_kernel=EXACT.input_kernel, regularization=EXACT.regularization)
        system = {"input_kernel": EXACT.input_kernel, "regularization": EXACT.regularization}
        split = prepare_calibration(x, settings=settings, seed=first, **system)
        for _ in range(min(PER_INPUTS, arguments.splits - made)):
            law, y = truth(arguments.family, 4.0 * x, rng)
            congruence = prepared.congruence_test(y, law, draws=arguments.draws, seed=int(rng.integers(2**31)))
            drawn = int(rng.integers(2**31))
            pit, found = pit_values(y, law, seed=drawn), split.version(y, law, seed=drawn)
            metrics = {
                "cce_mean": MetricValue(congruence.statistic),
                "cce_p_value": MetricValue(congruence.p_value),
                "calibration_p_value": MetricValue(found.test.p_value),
            }
            labels = pd.DataFrame({name: rng.integers(0, 4, n).astype(str) for name in ("site", "kind")})
            wrong = read_what_is_wrong(found, found.regions, RowsRead(pit), metrics, np.arange(n), labels)
            metrics[PLACES_P_VALUE] = MetricValue(wrong.p_value)
            verdict = verdict_of(metrics, rows=n)
            whole = sum(part.weight for part in verdict.parts)
            for part in verdict.parts:
                counts[part.name] += part.p_value < SIGNIFICANCE * part.weight / whole
            counts["wrong"] += verdict.is_wrong
            counts["stated"] += not wrong.sentences[0].startswith("No fault found") or any(wrong.places["fault"] != "")
            made += 1
        shares = ", ".join(f"{name} {count / made:.3f}" for name, count in counts.items())
        spent = time.process_time() - started
        print(f"{arguments.family}, n = {n}: {shares} of {made} true versions; {spent:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
