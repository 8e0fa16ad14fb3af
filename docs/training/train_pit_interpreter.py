"""How the weights of the PIT-histogram interpreter were made: python docs/training/train_pit_interpreter.py.

The interpreter learns from synthetic histograms whose data-generating distribution is known. The predictive
distribution is N(0, 1) without loss of generality, as PIT values do not change with translation and scale (Podsztavek
et al., 2024, section 3). Bin counts are multinomial in exact bin probabilities: distributed as the histogram of n
outcomes, without drawing them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy.special import gammainc, ndtr, stdtr

from congruence.kernels.pit_interpreter.shape import (
    COMPONENTS,
    FEATURES,
    LARGEST_ROWS,
    LOG_SCALE_LIMITS,
    MEAN_LIMIT,
    NORMAL_EDGES,
    OUTPUTS,
    SMALLEST_ROWS,
    SPACING,
    SUPPORT,
    faults,
    features,
    is_calibrated,
    measure,
    mixture_cdf,
)

Array: TypeAlias = NDArray[Any]
PAPER_ROWS = 10_000

Prior: TypeAlias = Literal["paper", "wide"]
_STRIDE = 2
_LABEL_WEIGHT = 0.15
Report: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class SyntheticHistograms:
    """m histograms: ``counts`` (m, 28) between bins.EDGES, ``rows`` (m,), ``cdf`` (m, 241) of the truth on SUPPORT."""

    counts: Array
    rows: Array
    cdf: Array


def draw(rng: np.random.Generator, size: int, *, prior: Prior = "wide", rows: int | None = None) -> SyntheticHistograms:
    """``size`` histograms of data-generating distributions from ``prior``.

    ``"paper"``: two-component normal mixtures (section 4). ``"wide"``: those, calibrated and nearly calibrated ones,
    mixtures of up to three normals, gamma and Student t distributions, half of them moved to the mean and variance of
    the predictive distribution, as a network trained by likelihood does. ``rows`` outcomes each, by default 10^4 for
    the paper's prior and log-uniform from 30 to 10^6 for the wide one.
    """
    at = np.concatenate([SUPPORT, NORMAL_EDGES])
    if prior == "paper":
        cdf = _paper(rng, size, at)
        sizes = np.full(size, PAPER_ROWS if rows is None else rows)
    else:
        cdf = _wide(rng, size, at)
        exponents = rng.uniform(np.log10(SMALLEST_ROWS), np.log10(LARGEST_ROWS), size)
        sizes = np.round(10.0**exponents).astype(np.int64) if rows is None else np.full(size, rows)
    at_edges = np.clip(cdf[:, len(SUPPORT) :], 0.0, 1.0)
    probabilities = np.maximum(np.diff(at_edges, axis=1, prepend=0.0, append=1.0), 0.0)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return SyntheticHistograms(rng.multinomial(sizes, probabilities), sizes, cdf[:, : len(SUPPORT)])


def _paper(rng: np.random.Generator, size: int, at: Array) -> Array:
    separation = 2.0 * (1.0 - rng.uniform(0.1, 1.0, size) ** 2)
    weight = rng.uniform(0.0, 1.0, size)
    scales = np.sqrt(2.0 ** rng.uniform(-2.0, 2.0, (size, 2)))
    means = np.stack([-separation / 2.0, separation / 2.0], axis=1)
    return mixture_cdf(np.stack([weight, 1.0 - weight], axis=1), means, scales, at)


def _wide(rng: np.random.Generator, size: int, at: Array) -> Array:
    families: list[tuple[float, Callable[[np.random.Generator, int, Array], Array]]] = [
        (0.15, _calibrated),
        (0.15, _nearly_calibrated),
        (0.25, _paper),
        (0.20, _three_normals),
        (0.09, _two_modes),
        (0.08, _gamma),
        (0.08, _student),
    ]
    chosen = rng.choice(len(families), size, p=[share for share, _ in families])
    cdf = np.empty((size, len(at)))
    for index, (_, family) in enumerate(families):
        members = chosen == index
        cdf[members] = family(rng, int(members.sum()), at)
    return cdf


def _calibrated(_: np.random.Generator, size: int, at: Array) -> Array:
    return np.broadcast_to(ndtr(at), (size, len(at)))


def _nearly_calibrated(rng: np.random.Generator, size: int, at: Array) -> Array:
    location = rng.normal(0.0, 0.12, size)
    scale = 2.0 ** rng.normal(0.0, 0.2, size)
    return np.asarray(ndtr((at - location[:, None]) / scale[:, None]))


def _three_normals(rng: np.random.Generator, size: int, at: Array) -> Array:
    weights = rng.dirichlet(np.ones(3), size)
    means = rng.normal(0.0, 1.2, (size, 3))
    scales = 2.0 ** rng.uniform(-2.5, 1.0, (size, 3))
    return mixture_cdf(weights, *_moved(rng, weights, means, scales), at)


def _two_modes(rng: np.random.Generator, size: int, at: Array) -> Array:
    weight = rng.uniform(0.1, 0.9, size)
    weights = np.stack([weight, 1.0 - weight], axis=1)
    separation = rng.uniform(1.0, 4.0, size)
    means = np.stack([-separation / 2.0, separation / 2.0], axis=1)
    scales = 2.0 ** rng.uniform(-2.5, 0.0, (size, 2))
    return mixture_cdf(weights, *_moved(rng, weights, means, scales), at)


def _gamma(rng: np.random.Generator, size: int, at: Array) -> Array:
    shape = 2.0 ** rng.uniform(0.0, 5.0, size)
    location, scale = _placed(rng, size)
    standard = (at - location[:, None]) / scale[:, None]
    sign = rng.choice([-1.0, 1.0], size)[:, None]
    lower = gammainc(shape[:, None], np.maximum(shape[:, None] + sign * standard * np.sqrt(shape)[:, None], 0.0))
    return np.where(sign > 0, lower, 1.0 - lower)


def _student(rng: np.random.Generator, size: int, at: Array) -> Array:
    df = 2.0 + 2.0 ** rng.uniform(-1.0, 5.0, size)
    location, scale = _placed(rng, size)
    scale = scale * np.sqrt((df - 2.0) / df)
    return np.asarray(stdtr(df[:, None], (at - location[:, None]) / scale[:, None]))


def _placed(rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Location and scale: half close to the predictive distribution, half anywhere."""
    close = rng.random(size) < 0.5
    location = rng.normal(0.0, np.where(close, 0.05, 0.6))
    return location, 2.0 ** rng.normal(0.0, np.where(close, 0.1, 0.5))


def _moved(rng: np.random.Generator, weights: Array, means: Array, scales: Array) -> tuple[Array, Array]:
    """Half of the mixtures as they are, half with about the predictive distribution's mean and variance."""
    mean = (weights * means).sum(axis=1, keepdims=True)
    variance = (weights * (scales**2 + (means - mean) ** 2)).sum(axis=1, keepdims=True)
    ratio = 2.0 ** rng.normal(0.0, 0.1, (len(weights), 1)) / np.sqrt(variance)
    shift = rng.normal(0.0, 0.05, (len(weights), 1))
    close = rng.random((len(weights), 1)) < 0.5
    return np.where(close, (means - mean) * ratio + shift, means), np.where(close, scales * ratio, scales)


@dataclass(frozen=True)
class Output:
    """Mixture parameters (m, 5), and logits of the faults and of calibration (m, 10)."""

    weights: torch.Tensor
    means: torch.Tensor
    scales: torch.Tensor
    faults: torch.Tensor

    def cdf(self, at: torch.Tensor) -> torch.Tensor:
        """Distribution functions at the points ``at`` (p,), shape (m, p)."""
        z = (at[None, :, None] - self.means[:, None, :]) / self.scales[:, None, :]
        below: torch.Tensor = torch.special.ndtr(z)
        return (self.weights[:, None, :] * below).sum(dim=2)


class InterpreterNetwork(torch.nn.Module):
    """What kernels.pit_interpreter.network evaluates, with the same names of layers and the same limits."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.hidden_1 = torch.nn.Linear(FEATURES, width)
        self.hidden_2 = torch.nn.Linear(width, width)
        self.output = torch.nn.Linear(width, OUTPUTS)

    def forward(self, counts: Array) -> Output:
        """Estimates for bin ``counts`` (m, 28)."""
        hidden = torch.tanh(self.hidden_1(torch.from_numpy(features(counts).astype(np.float32))))
        raw = self.output(torch.tanh(self.hidden_2(hidden)))
        logits, means, log_scales, faults = raw.split([COMPONENTS, COMPONENTS, COMPONENTS, OUTPUTS - 3 * COMPONENTS], 1)
        return Output(
            weights=torch.softmax(logits, dim=1),
            means=means.clip(-MEAN_LIMIT, MEAN_LIMIT),
            scales=log_scales.clip(*LOG_SCALE_LIMITS).exp(),
            faults=faults,
        )


@dataclass(frozen=True)
class TrainingSettings:
    """Length and step size of the interpreter's training."""

    steps: int = 5000
    batch_size: int = 512
    learning_rate: float = 3e-3
    seed: int = 0


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


def main() -> None:
    """Train, and write the weights."""
    defaults = TrainingSettings()
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("weights.safetensors"), help="where the weights go")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="training steps of 512 fresh histograms")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 repeats exactly")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    started = time.process_time()
    settings = TrainingSettings(steps=arguments.steps, seed=arguments.seed)
    network = train_interpreter(settings)
    seconds = time.process_time() - started
    parameters = {name: value.numpy().astype(np.float32) for name, value in network.state_dict().items()}
    save_file(parameters, arguments.output, metadata={"steps": str(arguments.steps), "seed": str(arguments.seed)})
    print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes after {seconds:.0f} s")


if __name__ == "__main__":
    main()
