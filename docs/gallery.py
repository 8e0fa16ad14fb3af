"""The faults of a predictive distribution, each made on purpose: pictures and numbers for the documentation.

``python docs/gallery.py FOLDER`` writes one picture a fault and ``faults.json``. Nothing here computes anything of its
own: the numbers are those of ``congruence.kernels``, the sentences those of a report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from congruence.kernels import (
    RBF,
    Distribution,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    conditional_calibration_test,
    congruence_test,
    expected_calibration_error,
    median_gamma,
    pit_values,
    prepare,
)
from congruence.kernels.conditional_calibration.local_reading import group_reading, local_reading
from congruence.kernels.conditional_calibration.regions import read_regions, regions
from congruence.kernels.conditional_calibration.wording import what_is_wrong

ROWS = 1000
BLUE, INK, MUTED, RED = "#2563eb", "#1f2937", "#6b7280", "#dc2626"


@dataclass(frozen=True)
class Fault:
    """A truth and a version of it that is wrong in one way."""

    name: str
    what: str
    truth: Callable[[Any], Distribution]
    version: Callable[[Any], Distribution]


def wave(x: Any) -> Any:
    """The mean of the truth."""
    return np.sin(2.0 * x)


def noise(x: Any) -> Any:
    """Its spread, which grows with x."""
    return 0.15 + 0.2 * (x + 2.0) / 4.0


def truth(x: Any) -> Normal:
    """Normal, heteroscedastic."""
    return Normal(wave(x), noise(x))


def two_modes(x: Any) -> Mixture:
    """The targets lie above or below the wave."""
    parts = [Normal(wave(x) + side, 0.12 * np.ones_like(x)) for side in (-0.5, 0.5)]
    return Mixture(np.full((len(x), 2), 0.5), parts)


def skewed(x: Any) -> Mixture:
    """A long upper tail, of mean 0 around the wave and the spread of ``truth``."""
    s = noise(x)
    parts = [Normal(wave(x) - 0.45 * s, 0.5 * s), Normal(wave(x) + 1.35 * s, 1.1 * s)]
    return Mixture(np.tile([0.75, 0.25], (len(x), 1)), parts)


def rate(x: Any) -> Any:
    """Of counts."""
    return np.exp(1.0 + 0.8 * np.sin(1.5 * x))


def one_spread(x: Any) -> Normal:
    """The same spread everywhere, right on average."""
    return Normal(wave(x), np.full_like(x, np.sqrt(np.mean(noise(x) ** 2))))


def marginal(x: Any) -> Normal:
    """The same law for every input."""
    return Normal(np.full_like(x, np.mean(wave(x))), np.full_like(x, np.sqrt(np.var(wave(x)) + np.mean(noise(x) ** 2))))


def ensemble(x: Any) -> Samples:
    """Ten members that agree too much."""
    members = np.random.default_rng(11).normal(size=(len(x), 10))
    return Samples(wave(x)[:, None] + 0.5 * noise(x)[:, None] * members)


def drifted(x: Any) -> Normal:
    """Right where it was trained (x below 0.5), wrong where the inputs have moved since."""
    beyond = np.maximum(x - 0.5, 0.0)
    return Normal(wave(x) - 0.5 * beyond, noise(x))


FAULTS = (
    Fault("none", "the truth itself", truth, truth),
    Fault("biased", "its mean lies .2 too low", truth, lambda x: Normal(wave(x) - 0.2, noise(x))),
    Fault("overconfident", "its spread is halved", truth, lambda x: Normal(wave(x), 0.5 * noise(x))),
    Fault("underconfident", "its spread is doubled", truth, lambda x: Normal(wave(x), 2.0 * noise(x))),
    Fault("homoscedastic", "one spread for all inputs, right on average", truth, one_spread),
    Fault(
        "missing mode",
        "one normal where the targets fall into two groups",
        two_modes,
        lambda x: Normal(wave(x), np.full_like(x, np.hypot(0.5, 0.12))),
    ),
    Fault("skewed", "a symmetric law for skewed targets", skewed, lambda x: Normal(skewed(x).mean(), skewed(x).std())),
    Fault("ignores the input", "the marginal law everywhere", truth, marginal),
    Fault(
        "counts",
        "Poisson, where the counts are overdispersed",
        lambda x: NegativeBinomial(rate(x), np.full_like(x, 0.4)),
        lambda x: Poisson(rate(x)),
    ),
    Fault("ensemble", "ten members that agree too much", truth, ensemble),
    Fault("drifted", "right below x = .5, wrong on inputs it was not trained on", truth, drifted),
)


def examine(fault: Fault) -> tuple[dict[str, Any], Figure]:
    """Numbers and picture of one fault on ``ROWS`` targets drawn from its truth."""
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(-2.0, 2.0, ROWS))
    y = np.asarray(fault.truth(x).sample(1, seed=5))[:, 0]
    version = fault.version(x)
    prepared = prepare(x[:, None], input_kernel=RBF(4.0 * median_gamma(x[:, None])))
    result = prepared.conditional_congruence_error(y, version)
    test = congruence_test(x[:, None], y, version, input_kernel=prepared.operator.kernel)
    calibration = conditional_calibration_test(x[:, None], y, version)
    pit = pit_values(y, version)
    reading = local_reading(prepared.smoother, pit)
    places = read_regions(regions(x[:, None], number=5, features={"x": x}), pit)
    said = what_is_wrong(group_reading(pit), places, p_value=calibration.p_value)
    numbers = {
        "name": fault.name,
        "what": fault.what,
        "cce": result.mean,
        "expected": test.expected,
        "band": list(test.band),
        "p": test.p_value,
        "calibration_p": calibration.p_value,
        "effects": {order: effect.estimate for order, effect in calibration.effects.items()},
        "ece": expected_calibration_error(y, version),
        "crps": float(np.mean(version.crps(y))),
        "said": said,
    }
    return numbers, _picture(x, y, version, result, reading, pit)


def _picture(x: Any, y: Any, version: Distribution, result: Any, reading: Any, pit: Any) -> Figure:
    figure = Figure(figsize=(9.6, 2.6), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    data, error, histogram = figure.subplots(1, 3)
    low, middle, high = (version.quantile(np.full((len(x), 1), level))[:, 0] for level in (0.05, 0.5, 0.95))
    data.scatter(x, y, s=4, color=MUTED, linewidths=0, alpha=0.6)
    data.fill_between(x, low, high, color=BLUE, alpha=0.2, linewidth=0)
    data.plot(x, middle, color=BLUE, linewidth=1.5)
    data.set_title("targets; 90 % of the version's law", loc="left", fontsize=9, color=INK)
    error.plot(x, result.noise_floor_values, color=MUTED, linewidth=1.2, linestyle="--", label="of a true version")
    error.plot(x, result.values, color=BLUE, linewidth=1.5, label="CCE")
    found = reading.significant()
    error.scatter(x[found], result.values[found], s=6, color=RED, linewidths=0, label="found wrong", zorder=3)
    error.set_ylim(bottom=0.0)
    error.legend(fontsize=7.5, frameon=False)
    error.set_title("CCE at every input", loc="left", fontsize=9, color=INK)
    histogram.hist(pit, bins=20, range=(0.0, 1.0), density=True, color=BLUE, alpha=0.75)
    histogram.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    histogram.set_title("PIT of all targets", loc="left", fontsize=9, color=INK)
    for axes in (data, error, histogram):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7.5, colors=MUTED)
    return figure


def write(folder: Path) -> list[dict[str, Any]]:
    """All pictures as ``<fault>.png`` in ``folder``, and their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    told = []
    for fault in FAULTS:
        numbers, figure = examine(fault)
        numbers["picture"] = fault.name.replace(" ", "-") + ".png"
        figure.savefig(folder / numbers["picture"])
        told.append(numbers)
    (folder / "faults.json").write_text(json.dumps(told, indent=1))
    return told


if __name__ == "__main__":
    for item in write(Path(sys.argv[1])):
        print(item["name"], f"{item['cce']:.4f} ({item['expected']:.4f}) p {item['p']:.3f}", *item["said"])
