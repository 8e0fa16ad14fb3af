"""Young et al. (2024), figures 2 and 3: MCMD between a law and six others, homo- and heteroscedastic."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels import RBF, DiscrepancyResult, maximum_conditional_mean_discrepancy
from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.laws import Comparison, heteroscedastic, homoscedastic
from congruence.tasks.reproduction.outcome import Claim, Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import samples_and_values

SECTION = "Young et al. 2024, section 4.1, figures 2 and 3"
SETTINGS: dict[str, tuple[float, float, Callable[[Array], Comparison]]] = {
    "homoscedastic": (0.0, 2.0 * np.pi, homoscedastic),
    "heteroscedastic": (-np.pi, np.pi, heteroscedastic),
}
GAMMA = 0.5
SAME = "same law"


def general_behaviour(plan: Plan) -> Outcome:
    """1,000 pairs of the truth against 500 of each of six laws, lambda 0.1, over several seeds."""
    rows: list[dict[str, object]] = []
    figures = {}
    for name, (low, high, law) in SETTINGS.items():
        for seed in range(plan.size(5, 2)):
            means, picture = _compare(plan, low, high, law, seed, draw=seed == 0)
            rows += [
                {"setting": name, "comparison": other, "seed": seed, "MCMD": mean} for other, mean in means.items()
            ]
            if picture is not None:
                figures[f"figure-{name}"] = picture
    long = pd.DataFrame(rows)
    table = long.groupby(["setting", "comparison"], sort=False)["MCMD"].agg(["mean", "std"]).reset_index()
    claims = [claim for name in SETTINGS for claim in _claims(name, long[long["setting"] == name])]
    notes = (f"RBF kernels with gamma = {GAMMA:g} on x and y; mean and standard deviation over new samples.",)
    return Outcome("general-behaviour", "General behaviour of MCMD", "MCMD", tuple(claims), table, figures, notes)


def _compare(
    plan: Plan, low: float, high: float, law: Callable[[Array], Comparison], seed: int, draw: bool
) -> tuple[dict[str, float], Figure | None]:
    rng = np.random.default_rng([plan.seed, seed])
    x = rng.uniform(low, high, plan.size(1000, 300))
    truth = law(x).truth
    y = rng.normal(truth.loc, truth.scale)
    at = np.linspace(low, high, 200)
    samples: dict[str, tuple[Array, Array]] = {}
    found: dict[str, DiscrepancyResult] = {}
    for name in law(x).compared():
        inputs = rng.uniform(low, high, plan.size(500, 200))
        other = law(inputs).compared()[name]
        samples[name] = inputs, rng.normal(other.loc, other.scale)
        found[name] = maximum_conditional_mean_discrepancy(
            x, y, *samples[name], at, input_kernel=RBF(GAMMA), output_kernel=RBF(GAMMA)
        )
    means = {name: result.mean for name, result in found.items()}
    values = {name: result.values for name, result in found.items()}
    return means, samples_and_values(samples, (x, y), at, values, means) if draw else None


def _claims(setting: str, rows: pd.DataFrame) -> list[Claim]:
    by_seed = rows.pivot_table(index="seed", columns="comparison", values="MCMD")
    others: Mapping[str, Array] = {str(name): by_seed[name].to_numpy() for name in by_seed if name != SAME}
    same = by_seed[SAME].to_numpy()
    nearest = min(others, key=lambda name: float(others[name].mean()))
    narrow, wide = others["other mean, smaller spread"], others["other mean, larger spread"]
    return [
        judged(
            f"{setting}: MCMD tells samples of a different law from those of the same, whatever differs.",
            SECTION,
            all(bool(np.all(values > same)) for values in others.values()),
            f"same law {same.mean():.3f} (noise; highest {same.max():.3f}); nearest other law '{nearest}' "
            f"{others[nearest].mean():.3f} (lowest {others[nearest].min():.3f}) over {len(same)} samples",
            same_law=float(same.mean()),
            nearest=float(others[nearest].mean()),
        ),
        judged(
            f"{setting}: a wrong mean is penalised more where the variance is not increased to explain it.",
            SECTION,
            bool(np.all(narrow > wide)),
            f"with smaller spread {narrow.mean():.3f}, with larger spread {wide.mean():.3f}; the least difference over "
            f"{len(same)} samples is {(narrow - wide).min():.3f}",
            smaller_spread=float(narrow.mean()),
            larger_spread=float(wide.mean()),
        ),
    ]
