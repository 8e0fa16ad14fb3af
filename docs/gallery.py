"""The faults of a predictive distribution, each made on purpose: pictures and numbers for the documentation.

``python docs/gallery.py FOLDER`` writes one picture a fault and ``faults.json``. Nothing here computes or draws
anything of its own: numbers are those of ``congruence.kernels``, pictures those of ``congruence.tasks.plots``, and
sentences those of a report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
    local_reading,
    median_gamma,
    pit_values,
    prepare,
)
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.conditional_calibration.regions import read_regions, regions
from congruence.kernels.verdict import Verdict
from congruence.tasks import plots
from congruence.tasks.plots.style import figure_of, new_figure, png
from congruence.tasks.sentences.calibration import LEVEL, is_off, is_worth_naming, no_fault
from congruence.tasks.sentences.findings import group_finding, sentences_of

ROWS = 1000


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
    test = congruence_test(x[:, None], y, version, input_kernel=prepared.input_kernel)
    calibration = conditional_calibration_test(x[:, None], y, version)
    pit = pit_values(y, version)
    reading = local_reading(prepared.smoother, pit)
    places = read_regions(regions(x[:, None], number=5, features={"x": x}), pit)
    verdict = Verdict.of({"calibration": calibration.p_value, "congruence": test.p_value})
    p_value = verdict.p_value or 1.0
    said = [no_fault(len(y), p_value)]
    if verdict.is_wrong:
        overall = group_reading(pit)
        off = [place for place in places if place.q_value <= LEVEL and is_worth_naming(place.reading)]
        named = [group_finding(place.reading, place.name) for place in off]
        said = sentences_of(group_finding(overall) if is_off(overall) else None, named, len(places))[0]
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
    figure = new_figure(11.4, 3.4)
    data, error, histogram = figure.subplots(1, 3)
    plots.predictions_along(x, y, version, x_label="x", title="Targets, 90 % of the law", axes=data)
    plots.congruence_along(x, result, reading=reading, neighbours=1, x_label="x", title="CCE at every x", axes=error)
    plots.pit_histogram(pit, title="PIT of all targets", axes=histogram).set(xlabel="PIT", ylabel="density")
    return figure


def examples(folder: Path) -> list[str]:
    """The pictures of the page on plots, of one version that is overconfident; their file names."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-2.0, 2.0, (ROWS, 2))
    mean, spread = wave(x[:, 0]), np.exp(0.5 * x[:, 1] - 1.0)
    y, version = rng.normal(mean, spread), Normal(mean, np.full(ROWS, np.sqrt(np.mean(spread**2))))
    prepared = prepare(x, input_kernel=RBF(4.0 * median_gamma(x)))
    result = prepared.conditional_congruence_error(y, version)
    reading = local_reading(prepared.smoother, pit_values(y, version))
    figure = new_figure(11.4, 4.2)
    left, right = figure.subplots(1, 2)
    plots.congruence_histogram(result, expected=result.band, title="congruence_histogram", axes=left)
    plots.congruence_along(x[:, 1], result, x_label="second input", title="congruence_along", axes=right)
    labels = ("first input", "second input")
    axes = plots.fault_map(x, reading, labels=labels, title="fault_map")
    pictures = {"histogram.png": figure, "faults.png": figure_of(axes)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / name).write_bytes(png(picture))
    return list(pictures)


def write(folder: Path) -> list[dict[str, Any]]:
    """All pictures as ``<fault>.png`` in ``folder``, and their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for fault in FAULTS:
        numbers, figure = examine(fault)
        numbers["picture"] = fault.name.replace(" ", "-") + ".png"
        (folder / numbers["picture"]).write_bytes(png(figure))
        drawn.append(numbers)
    (folder / "faults.json").write_text(json.dumps(drawn, indent=1))
    return drawn


if __name__ == "__main__":
    for item in write(Path(sys.argv[1])):
        print(item["name"], f"{item['cce']:.4f} ({item['expected']:.4f}) p {item['p']:.3f}", *item["said"])
