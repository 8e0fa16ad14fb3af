"""The training loop, deterministic by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from congruence.kernels.pit_interpreter.mixtures import SPACING, SUPPORT
from congruence.kernels.pit_interpreter.shape import faults, is_calibrated, measure
from congruence.kernels.pit_interpreter.synthetic import SyntheticHistograms, draw
from congruence.tasks.pit_training.networks import InterpreterNetwork, Output

_STRIDE = 2
_LABEL_WEIGHT = 0.15


@dataclass(frozen=True)
class TrainingSettings:
    """Length and step size of the interpreter's training."""

    steps: int = 5000
    batch_size: int = 512
    learning_rate: float = 3e-3
    seed: int = 0


Report = Callable[[str], None]


def train_interpreter(settings: TrainingSettings, report: Report = print) -> InterpreterNetwork:
    """The interpreter, trained on fresh histograms of the wide prior in every step.

    Loss: the 1-Wasserstein distance to the true data-generating distribution (paper, section 3.2) plus the
    cross-entropy of its faults, whose minimiser is their probability given the histogram under the prior.
    """
    torch.manual_seed(settings.seed)
    # Of training data, not of an evaluation: the shipped weights come from this generator, bit by bit.
    rng = np.random.default_rng(settings.seed)
    network = InterpreterNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.steps, pct_start=0.05
    )
    running: list[tuple[float, float]] = []
    for step in range(1, settings.steps + 1):
        batch = draw(rng, settings.batch_size)
        output = network(batch.counts)
        far, entropy = distance(output, batch), _cross_entropy(output, batch)
        optimizer.zero_grad()
        (far + _LABEL_WEIGHT * entropy).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running.append((far.item(), entropy.item()))
        if step % 500 == 0 or step == settings.steps:
            mean_distance, mean_entropy = np.mean(running, axis=0)
            report(f"step {step}: 1-Wasserstein {mean_distance:.4f}, cross-entropy {mean_entropy:.4f}")
            running.clear()
    return network


def distance(output: Output, batch: SyntheticHistograms) -> torch.Tensor:
    """Mean 1-Wasserstein distance of estimates to the truth."""
    at = torch.from_numpy(SUPPORT[::_STRIDE].astype(np.float32))
    truth = torch.from_numpy(batch.cdf[:, ::_STRIDE].astype(np.float32))
    return (output.cdf(at) - truth).abs().sum(dim=1).mean() * (SPACING * _STRIDE)


def _cross_entropy(output: Output, batch: SyntheticHistograms) -> torch.Tensor:
    labels = np.column_stack([faults(measure(batch.cdf)), is_calibrated(batch.cdf)])
    return torch.nn.functional.binary_cross_entropy_with_logits(
        output.faults, torch.from_numpy(labels.astype(np.float32)), reduction="mean"
    )
