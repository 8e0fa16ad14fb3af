"""The interpreter against the paper's recipe, trained as long, on held-out synthetic histograms.

    PYTHONPATH=tests:docs/training python tests/benchmarks/pit_interpreter_training.py > pit_interpreter_training.md

trains the networks of both on one thread, which takes some ten minutes; the record lies beside this file.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

import numpy as np
import torch
from pit_networks import PaperNetwork, interpreter_distances, paper_distances, train_paper_network
from train_pit_interpreter import SyntheticHistograms, TrainingSettings, draw, train_interpreter

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.interpretation import resample
from congruence.kernels.pit_interpreter.shape import KINDS, faults, is_calibrated, measure

HELD_OUT_SEED = 20_240_001
HISTOGRAMS = 1000
_PROBABILITY_BINS = ((0.0, 0.05), (0.05, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.0))
_CASES = 400


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


def record(parameters: dict[str, Array], contenders: list[Contender], seconds: float) -> str:
    """The comparison as Markdown: distances, and how far stated fault probabilities are from frequencies."""
    names = ["interpreter", "its network alone", *(contender.name for contender in contenders)]
    lines = [
        "# PIT-histogram interpreter: training record",
        "",
        "Written by `tests/benchmarks/pit_interpreter_training.py`. Every network trained for "
        f"{seconds:.0f} s of processor time on one thread "
        f"({platform.machine()}, {platform.python_implementation()} {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}).",
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
    sizes = {rows: _Reliability.of(rows, parameters) for rows in (100, 1000, 10_000, 1_000_000)}
    lines = [
        "## Are the stated probabilities right?",
        "",
        f"{_CASES} held-out histograms of the wide prior at each n. Share of cases in which the fault is there (or the "
        "distribution is calibrated), among those whose stated probability lies in the range, over the ten statements "
        "per histogram; number of cases in brackets.",
        "",
        "| n | " + " | ".join(f"{low:g}-{high:g}" for low, high in _PROBABILITY_BINS) + " | cross-entropy |",
        "|---" * (2 + len(_PROBABILITY_BINS)) + "|",
    ]
    for rows, reliability in sizes.items():
        lines.append(f"| {rows:,} | " + " | ".join(reliability.cells()) + f" | {reliability.cross_entropy():.3f} |")
    lines += [
        "",
        "By statement, over all n: share there / mean stated, where stated above 0.7 and below 0.3.",
        "",
    ]
    lines += ["| statement | above 0.7 | below 0.3 |", "|---|---|---|"]
    stated = np.concatenate([reliability.stated for reliability in sizes.values()])
    present = np.concatenate([reliability.present for reliability in sizes.values()])
    for column, name in enumerate((*KINDS, "calibrated")):
        sides = [stated[:, column] > 0.7, stated[:, column] < 0.3]
        cells = [f"{present[s, column].mean():.3f} / {stated[s, column].mean():.3f} ({int(s.sum())})" for s in sides]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


@dataclass(frozen=True)
class _Reliability:
    """Stated probabilities and what was there, each (cases, 10)."""

    stated: Array
    present: Array

    @classmethod
    def of(cls, rows: int, parameters: dict[str, Array]) -> _Reliability:
        histograms = draw(np.random.default_rng(HELD_OUT_SEED + rows), _CASES, rows=rows)
        estimates = [resample(counts, 100, 0, parameters) for counts in histograms.counts]
        stated = [[*item.fault_probabilities, item.calibrated_probability] for item in estimates]
        present = np.column_stack([faults(measure(histograms.cdf)), is_calibrated(histograms.cdf)])
        return cls(np.asarray(stated), present.astype(np.float64))

    def cells(self) -> list[str]:
        cells = []
        for low, high in _PROBABILITY_BINS:
            members = (self.stated >= low) & (self.stated < high)
            cells.append(f"{self.present[members].mean():.2f} ({int(members.sum())})" if members.any() else "none")
        return cells

    def cross_entropy(self) -> float:
        true = np.where(self.present > 0.5, self.stated, 1.0 - self.stated)
        return float(-np.log(true).mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    started = time.process_time()
    network = train_interpreter(TrainingSettings(), report=lambda _: None)
    seconds = time.process_time() - started
    contenders = [
        Contender("paper's recipe", train_paper_network(seconds)),
        Contender("paper's network, wide prior", train_paper_network(seconds, prior="wide")),
    ]
    trained = {name: value.numpy().astype(np.float32) for name, value in network.state_dict().items()}
    print(record(trained, contenders, seconds), end="")
