"""The network of Podsztavek et al. (2024), which the interpreter of PIT histograms is measured against."""

import time
from copy import deepcopy

import numpy as np
import torch
from train_pit_interpreter import Output, Prior, SyntheticHistograms, distance, draw

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.shape import (
    COMPONENTS,
    HISTOGRAM_BINS,
    SUPPORT,
    decompose,
    histogram,
    mixture_cdf,
    refine,
    wasserstein,
)


class PaperNetwork(torch.nn.Module):
    """20-16(tanh)-15: from the twenty densities to weights (softmax), means and variances (exp)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(HISTOGRAM_BINS, 16)
        self.output = torch.nn.Linear(16, 3 * COMPONENTS)

    def forward(self, counts: Array) -> Output:
        """Estimates for bin ``counts`` (m, 28), of which it sees the twenty equal bins."""
        hidden = torch.tanh(self.hidden(torch.from_numpy(histogram(counts).astype(np.float32))))
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
