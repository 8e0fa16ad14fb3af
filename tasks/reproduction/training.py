"""Training of small networks with heads, as the papers train them; one thread, seeded."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from congruence.kernels.arrays import Array
from congruence.tasks.networks.heads import HEADS, HeadedNetwork
from congruence.tasks.networks.repeatable import repeatable

Rows = tuple[Array, Array]
"""Inputs (n, d) and targets (n,)."""


def train(
    head: str,
    rows: Rows,
    validation: Rows,
    *,
    hidden: Sequence[int] = (128, 128, 128, 64),
    epochs: int = 200,
    batch: int = 32,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-5,
    standardise: bool = False,
    seed: int = 0,
) -> HeadedNetwork:
    """A multilayer perceptron with ``head``: ReLU, AdamW, cosine to 0, the epoch of the best validation loss.

    The defaults are those of Young et al. (2024, appendix B) for the discrete wave.
    """
    with repeatable(seed):
        network = _untrained(head, rows[0], hidden, standardise)
        _fit(network, rows, validation, epochs, batch, learning_rate, weight_decay)
    return network.eval()


def _untrained(head: str, x: Array, hidden: Sequence[int], standardise: bool) -> HeadedNetwork:
    widths = [x.shape[1], *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    center = x.mean(axis=0) if standardise else np.zeros(x.shape[1])
    scale = np.maximum(x.std(axis=0), 1e-8) if standardise else np.ones(x.shape[1])
    return HeadedNetwork(nn.Sequential(*layers), widths[-1], HEADS[head], center, scale)


def _fit(
    network: HeadedNetwork,
    rows: Rows,
    validation: Rows,
    epochs: int,
    batch: int,
    learning_rate: float,
    weight_decay: float,
) -> None:
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in rows)
    held, wanted = (torch.as_tensor(part, dtype=torch.float32) for part in validation)
    loss = network.head.loss
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best, kept = float("inf"), copy.deepcopy(network.state_dict())
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(x)), batch):
            optimizer.zero_grad()
            loss(network.raw(x[chosen]), y[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            reached = float(loss(network.raw(held), wanted).mean())
        if reached < best:
            best, kept = reached, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
