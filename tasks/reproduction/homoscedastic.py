"""Networks by least squares with the residuals' variance, watched while they train (Widmann et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Normal
from congruence.tasks.networks.repeatable import repeatable


def homoscedastic_history(
    x: Array, y: Array, at: Array, *, hidden: Sequence[int], steps: Sequence[int], seed: int
) -> list[Normal]:
    """The predictions at ``at`` after each of ``steps`` full-batch steps of Adam, on one thread.

    The mean is a network, the variance the mean squared residual of the training rows.
    """
    with repeatable(seed):
        return _history(x, y, at, hidden, steps)


def _history(x: Array, y: Array, at: Array, hidden: Sequence[int], steps: Sequence[int]) -> list[Normal]:
    widths = [x.shape[1], *hidden, 1]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets, asked = torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(at)
    found: list[Normal] = []
    for step in range(max(steps) + 1):
        residuals = network(inputs)[:, 0] - targets
        loss = residuals.square().mean()
        if step in steps:
            with torch.no_grad():
                mean = network(asked)[:, 0].numpy()
            found.append(Normal(mean, np.full(len(at), float(loss.detach().sqrt()))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found
