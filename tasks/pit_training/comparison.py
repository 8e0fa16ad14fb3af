"""The interpreter against the paper's recipe on held-out synthetic histograms, as a Markdown record."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import numpy as np
import torch

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.mixtures import SUPPORT, mixture_cdf, wasserstein
from congruence.kernels.pit_interpreter.network import Decomposition, decompose
from congruence.kernels.pit_interpreter.refinement import refine
from congruence.kernels.pit_interpreter.shape import KINDS, faults, measure
from congruence.kernels.pit_interpreter.synthetic import SyntheticHistograms, draw
from congruence.tasks.pit_training.networks import PaperNetwork

HELD_OUT_SEED = 20_240_001
HISTOGRAMS = 1000
_PROBABILITY_BINS = ((0.0, 0.05), (0.05, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.0))


@dataclass(frozen=True)
class Contender:
    """One of the paper's networks, what it was trained on, and for how long."""

    name: str
    network: PaperNetwork


def held_out() -> dict[str, SyntheticHistograms]:
    """1,000 histograms of each test set: the paper's own, and the wide prior at sample sizes from 100 to 10^6."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    sets = {"paper's prior, n = 10,000": draw(rng, HISTOGRAMS, prior="paper")}
    sets["wide prior, n from 30 to 1,000,000"] = draw(rng, HISTOGRAMS)
    for rows in (100, 1000, 10_000, 1_000_000):
        sets[f"wide prior, n = {rows:,}"] = draw(rng, HISTOGRAMS, rows=rows)
    return sets


def interpreter_distances(
    histograms: SyntheticHistograms, parameters: dict[str, Array] | None = None, *, refined: bool = True
) -> Array:
    """1-Wasserstein distances (m,) of the interpreter's decompositions to the truth, on [-6, 6]."""
    estimate = decompose(histograms.counts, parameters)
    mixtures = estimate.weights, estimate.means, estimate.scales
    if refined:
        mixtures = refine(histograms.counts, *mixtures)
    return wasserstein(mixture_cdf(*mixtures, SUPPORT), histograms.cdf)


def paper_distances(network: PaperNetwork, histograms: SyntheticHistograms) -> Array:
    """The same for a network of the paper."""
    with torch.no_grad():
        cdf = network(histograms.counts).cdf(torch.from_numpy(SUPPORT.astype(np.float32)))
    return wasserstein(cdf.numpy().astype(np.float64), histograms.cdf)


def record(parameters: dict[str, Array], contenders: list[Contender], seconds: float, command: str) -> str:
    """The comparison as Markdown: distances, and how far stated fault probabilities are from frequencies."""
    names = ["interpreter", "its network alone", *(contender.name for contender in contenders)]
    lines = [
        "# PIT-histogram interpreter: training record",
        "",
        f"Written by `{command}`. Every network trained for {seconds:.0f} s of processor time on one thread "
        f"({platform.machine()}, {platform.python_implementation()} {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}).",
        "",
        "## Mean 1-Wasserstein distance to the true data-generating distribution",
        "",
        f"{HISTOGRAMS:,} held-out synthetic histograms each, in predictive standard deviations; standard error in "
        "brackets. Lower is better.",
        "",
        "| held-out set | " + " | ".join(names) + " |",
        "|---" * (1 + len(names)) + "|",
    ]
    for name, histograms in held_out().items():
        columns = [interpreter_distances(histograms, parameters, refined=refined) for refined in (True, False)]
        columns += [paper_distances(contender.network, histograms) for contender in contenders]
        cells = [f"{column.mean():.4f} ({column.std() / np.sqrt(len(column)):.4f})" for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_reliability(parameters)]) + "\n"


def _reliability(parameters: dict[str, Array]) -> list[str]:
    histograms = draw(np.random.default_rng(HELD_OUT_SEED + 1), 20_000)
    estimate = decompose(histograms.counts, parameters)
    stated, present = _stated(estimate), _present(histograms)
    lines = [
        "## Are the stated probabilities right?",
        "",
        "20,000 held-out histograms of the wide prior. Share of histograms in which the fault is there, among those "
        "whose stated probability lies in the range (number of cases in brackets).",
        "",
        "| fault | " + " | ".join(f"{low:g}-{high:g}" for low, high in _PROBABILITY_BINS) + " | calibration error |",
        "|---" * (2 + len(_PROBABILITY_BINS)) + "|",
    ]
    for column, name in enumerate((*KINDS, "calibrated")):
        cells, error = [], 0.0
        for low, high in _PROBABILITY_BINS:
            members = (stated[:, column] >= low) & ((stated[:, column] < high) | (high == 1.0))
            share = float(present[members, column].mean()) if members.any() else float("nan")
            cells.append(f"{share:.2f} ({int(members.sum())})" if members.any() else "none")
            error += abs(float((present[members, column] - stated[members, column]).sum())) / len(stated)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {error:.4f} |")
    return lines


def _stated(estimate: Decomposition) -> Array:
    return np.concatenate([estimate.faults, estimate.calibrated[:, None]], axis=1)


def _present(histograms: SyntheticHistograms) -> Array:
    present = faults(measure(histograms.cdf))
    return np.concatenate([present, ~present.any(axis=1, keepdims=True)], axis=1).astype(np.float64)
