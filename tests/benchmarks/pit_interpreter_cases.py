"""What the PIT-histogram interpreter says where the answer is known; run by hand, the record lies beside this file.

    PYTHONPATH=tests python tests/benchmarks/pit_interpreter_cases.py [PROTEIN_FOLDER] > pit_interpreter_cases.md

The folder holds data.csv.gz and test_mask.csv.gz of the UCI protein data (9 inputs and a scaled target; ten splits).
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from pit_networks import DensityNetwork, DensityNetworkSettings
from scipy.special import ndtr

from congruence.kernels.pit_interpreter import Interpretation, interpret_pit
from congruence.tasks.reproduction.laws import inverse_problem

RMSD_MEAN, RMSD_STD = 7.7485, 6.1183


def calibrated_splits() -> None:
    """How often a calibrated model is called calibrated, not judged, or accused."""
    print("## Calibrated models, 500 simulated splits each\n")
    print("| n | no evidence of miscalibration | abstained | accused |\n|---|---|---|---|")
    for rows in (100, 300, 1000, 10_000):
        rng = np.random.default_rng(rows)
        labels = Counter(interpret_pit(rng.random(rows), resamples=50).verdict.label for _ in range(500))
        calm, abstained = labels.pop("no evidence of miscalibration", 0), labels.pop("abstained", 0)
        print(f"| {rows:,} | {calm} | {abstained} | {sum(labels.values())} {dict(labels) or ''} |")


def known_faults() -> None:
    """Verdicts on simple faults, as a function of the sample size."""
    print("\n## Known faults: share of 40 splits whose findings hold the fault\n")
    print("| fault | n = 100 | 300 | 1,000 | 10,000 |\n|---|---|---|---|---|")
    gamma = np.sqrt(5.0)
    cases = {
        "outcomes 0.5 higher (biased down)": ("biased down", lambda rng, n: rng.normal(0.5, 1.0, n)),
        "1.5 times as wide (underdispersed)": ("underdispersed", lambda rng, n: rng.normal(0.0, 1.5, n)),
        "0.7 times as wide (overdispersed)": ("overdispersed", lambda rng, n: rng.normal(0.0, 0.7, n)),
        "gamma of shape 5 (skewed right)": ("skewed right", lambda rng, n: rng.gamma(5.0, size=n) / gamma - gamma),
        "Student t, df 4 (heavy-tailed)": ("heavy-tailed", lambda rng, n: rng.standard_t(4, n) / np.sqrt(2.0)),
        "modes at -0.9 and 0.9 (more modes)": (
            "more modes",
            lambda rng, n: rng.choice([-0.9, 0.9], n) + rng.normal(0.0, np.sqrt(0.19), n),
        ),
    }
    for name, (kind, sample) in cases.items():
        cells = []
        for rows in (100, 300, 1000, 10_000):
            rng = np.random.default_rng(rows)
            verdicts = [interpret_pit(ndtr(sample(rng, rows)), resamples=50).verdict for _ in range(40)]
            found = sum(any(finding.kind == kind for finding in verdict.findings) for verdict in verdicts)
            cells.append(f"{found / 40:.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def illustrations(protein: Path | None) -> None:
    """The paper's inverse problem and, where its data is, protein under three training recipes."""
    print("\n## The paper's illustrations, normal predictive distributions\n")
    x, y = inverse_problem(10_000)
    x_test, y_test = inverse_problem(10_000, seed=1)
    settings = DensityNetworkSettings(width=64, epochs=60)
    _report("inverse problem, n = 10,000", DensityNetwork(x, y, settings), x_test, y_test)
    if protein is None:
        return
    data = np.loadtxt(protein / "data.csv.gz", delimiter=",")
    masks = np.loadtxt(protein / "test_mask.csv.gz", delimiter=",") == 1.0
    inputs, targets = data[:, :-1], RMSD_MEAN + RMSD_STD * data[:, -1]
    recipes = {
        "unscaled targets, 20 epochs": DensityNetworkSettings(),
        "unscaled targets, 60 epochs": DensityNetworkSettings(epochs=60),
        "scaled targets, 64 units, 60 epochs": DensityNetworkSettings(width=64, epochs=60, scale_targets=True),
    }
    for name, recipe in recipes.items():
        for fold in range(3):
            test = masks[:, fold]
            network = DensityNetwork(inputs[~test], targets[~test], recipe)
            _report(f"protein, {name}, split {fold}", network, inputs[test], targets[test])


def _report(name: str, network: DensityNetwork, x: np.ndarray, y: np.ndarray) -> None:
    predictive = network.predict(x)
    interpretation: Interpretation = interpret_pit(predictive.cdf(y))
    nll, crps = -predictive.log_prob(y).mean(), predictive.crps(y).mean()
    print(f"- **{name}** (NLL {nll:.3f}, CRPS {crps:.3f}): {interpretation.verdict.text}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("# PIT-histogram interpreter: cases with known answers\n")
    print(f"{platform.machine()}, one thread, numpy {np.__version__}, torch {torch.__version__}\n")
    calibrated_splits()
    known_faults()
    illustrations(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
