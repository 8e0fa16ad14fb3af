"""A small multilayer perceptron for the demonstration: trained by torch in seconds, kept as NumPy arrays.

One thread, seeded, float32: the same training data give the same weights on the same machine, whatever else runs there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

REDUCTION = 4
UNIT = 40.0  # degrees: the network sees targets of about unit size

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def pixels(images: Sequence[bytes]) -> NDArray[np.float32]:
    """The grey values in [0, 1] of encoded images, made smaller by ``REDUCTION``, one row per image."""
    rows = [np.asarray(Image.open(io.BytesIO(image)).convert("L").reduce(REDUCTION)).ravel() for image in images]
    return np.stack(rows).astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class Network:
    """Centre the inputs, then linear layers with ReLU between them."""

    center: NDArray[np.float32]
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The outputs (n, out) for inputs (n, d)."""
        hidden = x - self.center
        for weight, bias in self.layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0)
        weight, bias = self.layers[-1]
        return np.asarray(hidden @ weight + bias, dtype=np.float64)


def train(
    x: NDArray[np.float32],
    y: NDArray[np.float64],
    loss: Loss,
    outputs: int,
    *,
    hidden: int = 256,
    steps: int = 384,
    batch: int = 128,
    seed: int = 0,
) -> Network:
    """Fit a network to targets (degrees) under ``loss(outputs, y / UNIT)`` by AdamW with one cosine cycle."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _fit(x, y, loss, outputs, hidden, steps, batch)
    finally:
        torch.set_num_threads(threads)


def _fit(
    x: NDArray[np.float32], y: NDArray[np.float64], loss: Loss, outputs: int, hidden: int, steps: int, batch: int
) -> Network:
    center = x.mean(axis=0)
    module = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], hidden),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(hidden, hidden),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(hidden, outputs),
    )
    inputs, targets = torch.as_tensor(x - center), torch.as_tensor(y / UNIT, dtype=torch.float32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    batches = chain.from_iterable(torch.split(torch.randperm(len(x)), batch) for _ in count())
    for rows in islice(batches, steps):
        optimizer.zero_grad()
        loss(module(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    linear = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    layers = tuple((layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()) for layer in linear)
    return Network(center, layers)


def squared_error(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the single output."""
    return (output[:, 0] - y).square().mean()


def normal_nll(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood (up to a constant) of a normal law with outputs loc and log scale."""
    loc, log_scale = output.unbind(1)
    return (log_scale + 0.5 * ((y - loc) * torch.exp(-log_scale)).square()).mean()


def mixture_nll(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same for a mixture of K normals with outputs (logits, loc, log scale), K columns each."""
    logits, loc, log_scale = output.chunk(3, dim=1)
    parts = -log_scale - 0.5 * ((y[:, None] - loc) * torch.exp(-log_scale)).square()
    return -torch.logsumexp(torch.log_softmax(logits, dim=1) + parts, dim=1).mean()
