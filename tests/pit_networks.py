"""Networks of Podsztavek et al. (2024): what the interpreter of PIT histograms is tried on, and measured against."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.normal import Normal
from congruence.kernels.pit_interpreter.bins import HISTOGRAM_BINS, density
from congruence.kernels.pit_interpreter.mixtures import SUPPORT, mixture_cdf, wasserstein
from congruence.kernels.pit_interpreter.network import COMPONENTS, decompose
from congruence.kernels.pit_interpreter.refinement import refine
from congruence.kernels.pit_interpreter.synthetic import Prior, SyntheticHistograms, draw
from congruence.tasks.pit_training.networks import Output
from congruence.tasks.pit_training.training import distance


@dataclass(frozen=True)
class DensityNetworkSettings:
    """One hidden layer, trained by likelihood on the targets as they are or scaled to unit variance."""

    width: int = 16
    epochs: int = 20
    batch_size: int = 512
    learning_rate: float = 3e-3
    scale_targets: bool = False
    seed: int = 0


class DensityNetwork:
    """Mean and variance of a normal as functions of the input (Nix and Weigend, 1994), fitted on construction."""

    def __init__(self, x: Array, y: Array, settings: DensityNetworkSettings | None = None) -> None:
        settings = settings or DensityNetworkSettings()
        torch.manual_seed(settings.seed)
        self._input_mean, self._input_std = x.mean(axis=0), x.std(axis=0)
        self._mean, self._std = (float(y.mean()), float(y.std())) if settings.scale_targets else (0.0, 1.0)
        self._network = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], settings.width), torch.nn.ReLU(), torch.nn.Linear(settings.width, 2)
        )
        targets = torch.from_numpy(((y - self._mean) / self._std).astype(np.float32))
        self._fit(self._inputs(x), targets, settings)

    def predict(self, x: Array) -> Normal:
        """The predictive distributions of inputs (n, d)."""
        with torch.no_grad():
            mean, variance = self._moments(self._inputs(x))
        scale = np.sqrt(variance.numpy().astype(np.float64))
        return Normal(self._mean + self._std * mean.numpy().astype(np.float64), self._std * scale)

    def _inputs(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(((x - self._input_mean) / self._input_std).astype(np.float32))

    def _moments(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, raw = self._network(inputs).T
        return mean, torch.nn.functional.softplus(raw) + 1e-6

    def _fit(self, inputs: torch.Tensor, targets: torch.Tensor, settings: DensityNetworkSettings) -> None:
        optimizer = torch.optim.Adam(self._network.parameters(), lr=settings.learning_rate)
        for _ in range(settings.epochs):
            for rows in torch.split(torch.randperm(len(inputs)), settings.batch_size):
                mean, variance = self._moments(inputs[rows])
                loss = 0.5 * (variance.log() + (targets[rows] - mean) ** 2 / variance).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


class PaperNetwork(torch.nn.Module):
    """20-16(tanh)-15: from the twenty densities to weights (softmax), means and variances (exp)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(HISTOGRAM_BINS, 16)
        self.output = torch.nn.Linear(16, 3 * COMPONENTS)

    def forward(self, counts: Array) -> Output:
        """Estimates for bin ``counts`` (m, 28), of which it sees the twenty equal bins."""
        hidden = torch.tanh(self.hidden(torch.from_numpy(density(counts).astype(np.float32))))
        logits, means, log_variances = self.output(hidden).split(COMPONENTS, dim=1)
        return Output(torch.softmax(logits, dim=1), means, torch.exp(0.5 * log_variances), torch.empty(len(counts), 0))


def train_paper_network(seconds: float, seed: int = 0, prior: Prior = "paper") -> PaperNetwork:
    """The paper's recipe for ``seconds`` of processor time: the weights that did best on 1,000 validation histograms.

    Adam at 1e-3, batches of 100 fresh histograms, loss sum |G - G^| over 100 points of [-5, 5].
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = PaperNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    validation = draw(rng, 1000, prior=prior)
    best, best_distance = deepcopy(network.state_dict()), np.inf
    end = time.process_time() + seconds
    at = np.linspace(-5.0, 5.0, 100)
    interpolation = np.stack([np.interp(at, SUPPORT, unit) for unit in np.eye(len(SUPPORT))])
    while time.process_time() < end:
        for _ in range(100):
            batch = draw(rng, 100, prior=prior)
            truth = batch.cdf @ interpolation
            estimate = network(batch.counts).cdf(torch.from_numpy(at.astype(np.float32)))
            loss = (estimate - torch.from_numpy(truth.astype(np.float32))).abs().sum(dim=1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            reached = distance(network(validation.counts), validation).item()
        if reached < best_distance:
            best, best_distance = deepcopy(network.state_dict()), reached
    network.load_state_dict(best)
    return network


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
