"""The paper's illustrations: density networks with one normal per input, whose PIT histograms tell what they lack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.normal import Normal


def inverse_problem(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """x = u^2, y = u + 0.25 eps, u uniform on (-1, 1): two branches where a normal has one mode (section 4.1)."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1.0, 1.0, rows)
    return (u**2)[:, None], u + 0.25 * rng.standard_normal(rows)


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
