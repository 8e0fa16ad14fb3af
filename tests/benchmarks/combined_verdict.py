"""True versions that are called wrong, with two slice columns: by each part of the verdict, by all of them together.

    python tests/benchmarks/combined_verdict.py --rows 120 --splits 400 --family normal
    python tests/benchmarks/combined_verdict.py --whole --rows 500 --splits 200 --family levels

"wrong" are those that all parts together contradict; of others nothing is stated. ``--whole`` asks
``congruence.evaluate``, as a user would: all parts of the verdict, segments and sentences among them. The record is
``combined_verdict.md``.
"""

import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri
from simulations import asked

import congruence
from congruence.kernels import EXACT, Deterministic, Distribution, Gamma, Mixture, Normal, Poisson, Samples, prepare
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.pit import pit_values
from congruence.kernels.verdict import SIGNIFICANCE
from congruence.tasks.scores.evaluation import PLACES_P_VALUE, ROW_CORRELATION, MetricValue, verdict_of
from congruence.tasks.scores.faults import with_faults
from congruence.tasks.scores.reading import RowsRead, read_what_is_wrong

METRICS = ["cce", "congruence_test", "calibration", "pit", "actual_over_expected"]  # what sentences are made of
PER_INPUTS = 50  # splits that share inputs and draws
LEVELS = [0.1, 0.5, 0.9]
FAMILIES = ("normal", "poisson", "ensemble", "levels", "rounded", "sparse", "zeros", "groups")  # the last five: whole
PARTS = ("calibration", "congruence", "extremes", "masses", "places")


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


def whole(family: str, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A true version as a user gives it: inputs, targets, prediction, and what else is named."""
    x = rng.standard_normal((n, 3))
    table = pd.DataFrame(x, columns=["age", "wind", "load"])
    table = table.assign(**{name: rng.integers(0, 4, n).astype(str) for name in ("site", "kind")})
    mean, spread, named = 10.0 + 2.0 * x[:, 0], np.exp(0.3 * x[:, 1]), {"slices": ["site", "kind"]}
    y = rng.normal(mean, spread)
    if family == "levels":
        return table, y, mean[:, None] + spread[:, None] * ndtri(LEVELS), named | {"levels": LEVELS}
    if family == "rounded":
        return table, np.round(2.0 * y) / 2.0, Normal(mean, spread), named
    if family == "sparse":
        rate = 0.1 * np.exp(0.5 * x[:, 0])
        return table, rng.poisson(rate).astype(float), Poisson(rate), named
    if family == "zeros":
        zero = ndtr(0.5 * x[:, 0])
        law = Mixture(
            np.stack([zero, 1.0 - zero], axis=1), [Deterministic(0.0 * mean), Gamma(2.0 + 0.0 * mean, spread)]
        )
        return table, law.sample(1, seed=rng)[:, 0], law, named
    if family == "groups":
        groups = np.arange(n) // 5
        z = np.sqrt(0.5) * (rng.standard_normal(groups.max() + 1)[groups] + rng.standard_normal(n))
        return table, mean + spread * z, Normal(mean, spread), named | {"groups": groups}
    law, y = truth(family, x, rng)
    return table, y, law, named


def count_parts(counts: dict[str, int], parts: Any) -> None:
    """Add who of them contradicts the version."""
    for part in parts:
        counts[part.name] += part.p_value < SIGNIFICANCE * part.weight / sum(each.weight for each in parts)


def evaluations(family: str, n: int, splits: range) -> None:
    """Print how often each part contradicts a true version, all together do, and anything is stated of it."""
    counts, judged, started = dict.fromkeys((*PARTS, "wrong", "correlated", "stated"), 0), 0, time.process_time()
    warnings.simplefilter("ignore")
    for split in splits:
        table, y, law, named = whole(family, n, np.random.default_rng([n, split, 1]))
        found = congruence.evaluate(table, y, law, metrics=METRICS, progress=False, seed=split, **named)
        parts, verdict = found.evaluation.verdict.parts, found.verdict
        judged += bool(parts)
        count_parts(counts, parts)
        counts["wrong"] += verdict == "wrong"
        counts["correlated"] += ROW_CORRELATION in found.evaluation.metrics
        counts["stated"] += not found.sentences[0].startswith("No fault found")
    shares = ", ".join(f"{name} {count / len(splits):.3f}" for name, count in counts.items())
    spent = time.process_time() - started
    print(f"{family}, n = {n}: {shares} of {len(splits)} true versions, {judged} of them judged; {spent:.0f} CPU s")


def main() -> None:
    arguments = asked(__doc__, rows=500, splits=400, first=0, draws=199, family=FAMILIES, whole=False)
    n, started = arguments.rows, time.process_time()
    if arguments.whole:
        return evaluations(arguments.family, n, range(arguments.first, arguments.first + arguments.splits))
    settings = CalibrationSettings(draws=999)
    counts = dict.fromkeys(("calibration", "congruence", "places", "wrong", "stated"), 0)
    made = 0
    while made < arguments.splits:
        first = arguments.first + made
        rng = np.random.default_rng([n, first])
        x = EXACT.apply(rng.standard_normal((n, 16)) * np.arange(1, 17) ** -0.5)
        inputs = rng.standard_normal((n, 2))
        x[:, :2] = inputs / 4.0
        system = {"input_kernel": EXACT.input_kernel, "regularization": EXACT.regularization}
        prepared = prepare(x, **system)
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
            wrong = read_what_is_wrong(found, found.regions, RowsRead(pit), metrics, np.arange(n), labels, with_faults)
            metrics[PLACES_P_VALUE] = MetricValue(wrong.p_value)
            verdict = verdict_of(metrics, rows=n)
            count_parts(counts, verdict.parts)
            counts["wrong"] += verdict.is_wrong
            counts["stated"] += not wrong.sentences[0].startswith("No fault found") or any(wrong.places["fault"] != "")
            made += 1
        shares = ", ".join(f"{name} {count / made:.3f}" for name, count in counts.items())
        spent = time.process_time() - started
        print(f"{arguments.family}, n = {n}: {shares} of {made} true versions; {spent:.0f} CPU s", flush=True)
    return None


if __name__ == "__main__":
    main()
