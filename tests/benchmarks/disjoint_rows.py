"""CCE of two versions that scored different rows: does the interval of its difference hold the truth, and 0 where due?

    python tests/benchmarks/disjoint_rows.py [--splits 100]

y = x_0 + exp(.3 x_1) normal noise in three features; versions are right, .4 too high, .6 max(x_2, 0) too high, and have
half or twice the spread. Their CCE beyond noise is first measured on 60 splits of 1,200 rows.
"""

import numpy as np
import pandas as pd
from simulations import asked, row

from congruence.kernels.distributions import Normal
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.protocol import EXACT
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.versions import compare_pair
from congruence.tasks.scores.evaluation import MetricValue, SplitSummary
from congruence.tasks.settings.sections import ModelVersion

KINDS = ("right", "high", "high somewhere", "narrow", "wide")
PAIRS = [
    (("high", 150), ("wide", 1200)),
    (("high somewhere", 400), ("high somewhere", 1200)),
    (("high somewhere", 150), ("high", 1200)),
    (("narrow", 400), ("wide", 400)),
    (("high", 150), ("right", 400)),
    (("right", 150), ("right", 400)),
    (("wide", 150), ("wide", 400)),
]


def evaluated(kind: str, rows: int, seed: int) -> ComparedVersion:
    """A version of this kind on rows of its own."""
    draw = np.random.default_rng([seed, rows, KINDS.index(kind)])
    x = draw.normal(size=(rows, 3))
    spread = np.exp(0.3 * x[:, 1])
    y = x[:, 0] + spread * draw.normal(size=rows)
    high = {"high": 0.4, "high somewhere": 0.6 * np.maximum(x[:, 2], 0.0)}.get(kind, 0.0)
    law = Normal(x[:, 0] + high, {"narrow": 0.5, "wide": 2.0}.get(kind, 1.0) * spread)
    held = HeldSplit(np.asarray(EXACT.apply(x)), y, dependence=None, systems={})
    result = measure_held(held, EXACT, {kind: law}, Ask([kind], tested=False), Accuracy(), seed)[kind]
    scores = pd.DataFrame({"key": np.arange(rows), "valid": True, "cce": result.values, "target": y})
    metrics = {"cce_mean": MetricValue(result.mean), "cce_squared_mean": MetricValue(*result.squared_mean_interval())}
    model = ModelVersion(f"{kind} {rows} {seed}", "", f"stored:{kind}")
    split = SplitSummary("p", model.name, rows, rows, "y", "")
    noise = result.uncertainty.influence.noise
    return ComparedVersion(model, split, "exact", "d", metrics, scores, influence_noise=noise, is_stored=True)


def truths() -> dict[str, float]:
    """The root of the mean CCE^2 beyond noise of each kind."""
    found = {}
    for kind in KINDS:
        pairs = [
            compare_pair(evaluated(kind, 1200, seed), evaluated("right", 150, seed)) for seed in range(20_000, 20_060)
        ]
        square = float(np.mean([pair.differences["cce_squared_mean"].first for pair in pairs]))
        found[kind] = float(np.sqrt(max(square, 0.0))) if kind != "right" else 0.0
    return found


if __name__ == "__main__":
    splits, known = asked(__doc__, splits=100).splits, truths()
    for (one, rows), (two, others) in PAIRS:
        apart = [
            compare_pair(evaluated(one, rows, seed), evaluated(two, others, 10_000 + seed)).differences["cce_mean"]
            for seed in range(splits)
        ]
        truth = known[one] - known[two]
        covered = np.mean([item.low <= truth <= item.high for item in apart])
        zero = np.mean([item.low <= 0.0 <= item.high for item in apart])
        row(f"{one}, {rows}", f"{two}, {others}", f"{truth:+.3f}", f"{covered:.2f}", f"{zero:.2f}")
