"""The network that is trained, and what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from congruence.kernels.arrays import Array
from congruence.kernels.pit_interpreter.network import (
    COMPONENTS,
    FEATURES,
    LOG_SCALE_LIMITS,
    MEAN_LIMIT,
    OUTPUTS,
    features,
)


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
