"""The authors' four trained networks on the discrete wave, from plain arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.networks.heads import HEADS, distribution

_FILES = {"gaussian": "gaussian", "poisson": "poisson", "negative_binomial": "nbinom", "double_poisson": "ddpn"}


def published_network(folder: Path, head_name: str, x: Array) -> Distribution:
    """The predictions at x (n, 1) of the checkpoint ``discrete_sine_wave_*_weights.npz`` of a head in ``folder``."""
    with np.load(folder / f"discrete_sine_wave_{_FILES[head_name]}_weights.npz") as held:
        arrays = {name: torch.as_tensor(held[name]) for name in held.files}
    head = HEADS[head_name]
    layers: list[nn.Module] = []
    for name in ("backbone.layers.0", "backbone.layers.2", "backbone.layers.4", "backbone.layers.6"):
        layers += [_linear(arrays, name), nn.ReLU()]
    with torch.inference_mode():
        features = nn.Sequential(*layers)(torch.as_tensor(x, dtype=torch.float32))
        # Their negative binomial ends in softplus where ours ends in exp.
        positive = "head.0.weight" in arrays
        raw = _linear(arrays, "head.0" if positive else "head")(features)
        raw = nn.functional.softplus(raw).log() if positive else raw
        parameters = head.parameters(raw.double())
    return distribution(head.family, {name: value.numpy() for name, value in parameters.items()})


def _linear(arrays: dict[str, torch.Tensor], name: str) -> nn.Linear:
    weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer
