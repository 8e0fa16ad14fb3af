"""Young et al. (2024), figures 2 and 3: MCMD between a distribution and six others, homo- and heteroscedastic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from experiment import Array, Claim, Options, Outcome, main
from matplotlib.figure import Figure
from pictures import samples_and_values

from congruence.kernels import RBF, DiscrepancyResult, Normal, maximum_conditional_mean_discrepancy

SECTION = "Young et al. 2024, section 4.1, figures 2 and 3"
GAMMA = 0.5
SAME = "same distribution"


@dataclass(frozen=True)
class Comparison:
    """The truth and the six that Young et al. (2024, section 4.1) compare with it, each normal at given inputs."""

    truth: Normal
    inputs: Array
    shift: float
    narrow: Array
    wide: Array

    def compared(self) -> dict[str, Normal]:
        """Return the distributions of the comparison samples, at ``inputs``."""
        mean, scale = self.truth.loc, self.truth.scale
        return {
            "same distribution": self.truth,
            "smaller spread": Normal(mean, self.narrow),
            "larger spread": Normal(mean, self.wide),
            "other mean, smaller spread": Normal(mean - self.shift, self.narrow),
            "other mean, larger spread": Normal(mean - self.shift, self.wide),
            "other shape": Normal(self.inputs - 5.0, np.full(len(scale), 0.5)),
        }


def homoscedastic(x: Array) -> Comparison:
    """Return the comparison of N(cos x, 1/2) on [0, 2 pi] (appendix A.1); spreads are standard deviations."""
    ones = np.ones(len(x))
    return Comparison(Normal(np.cos(x), 0.5 * ones), x, 2.0, 0.1 * ones, 1.5 * ones)


def heteroscedastic(x: Array) -> Comparison:
    """Return the comparison of N(sin x, sqrt(max(x, 1/5))) on [-pi, pi] (appendix A.2)."""
    scale = np.sqrt(np.maximum(x, 0.2))
    return Comparison(Normal(np.sin(x), scale), x, 3.0, scale / 4.0, 2.0 * scale)


SETTINGS: dict[str, tuple[float, float, Callable[[Array], Comparison]]] = {
    "homoscedastic": (0.0, 2.0 * np.pi, homoscedastic),
    "heteroscedastic": (-np.pi, np.pi, heteroscedastic),
}


def general_behaviour(options: Options) -> Outcome:
    """1,000 pairs of the truth against 500 of each of six distributions, lambda 0.1, over several seeds."""
    rows: list[dict[str, object]] = []
    figures = {}
    for name, (low, high, distribution) in SETTINGS.items():
        for seed in range(options.size(5, 2)):
            means, picture = _compare(options, low, high, distribution, seed, draw=seed == 0)
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
    options: Options, low: float, high: float, distribution: Callable[[Array], Comparison], seed: int, draw: bool
) -> tuple[dict[str, float], Figure | None]:
    rng = np.random.default_rng([options.seed, seed])
    x = rng.uniform(low, high, options.size(1000, 300))
    truth = distribution(x).truth
    y = rng.normal(truth.loc, truth.scale)
    at = np.linspace(low, high, 200)
    samples: dict[str, tuple[Array, Array]] = {}
    found: dict[str, DiscrepancyResult] = {}
    for name in distribution(x).compared():
        inputs = rng.uniform(low, high, options.size(500, 200))
        other = distribution(inputs).compared()[name]
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
        Claim(
            f"{setting}: MCMD tells samples of a different distribution from those of the same, whatever differs.",
            SECTION,
            all(bool(np.all(values > same)) for values in others.values()),
            f"same distribution {same.mean():.3f} (noise; highest {same.max():.3f}); nearest other distribution "
            f"'{nearest}' {others[nearest].mean():.3f} (lowest {others[nearest].min():.3f}) over {len(same)} samples",
        ),
        Claim(
            f"{setting}: a wrong mean is penalised more where the variance is not increased to explain it.",
            SECTION,
            bool(np.all(narrow > wide)),
            f"with smaller spread {narrow.mean():.3f}, with larger spread {wide.mean():.3f}; the least difference over "
            f"{len(same)} samples is {(narrow - wide).min():.3f}",
        ),
    ]


if __name__ == "__main__":
    main(general_behaviour)
