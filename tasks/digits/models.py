"""The demonstration's predictors: what a registered version asks at each row.

A process that loads a version imports this file, so it takes nothing that training alone needs.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.special
from numpy.typing import NDArray
from PIL import Image

from congruence.tasks.contract.predictors import FramePredictor
from congruence.tasks.digits.dataset import noise_scale

REDUCTION = 4
MODEL_NAME = "digit-angle"
DESCRIPTIONS = {
    "truth": "the true distribution",
    "trained": "trained, normal with its own scale per image",
    "overconfident": "version 2 with its scale halved",
    "homoscedastic": "trained, one scale for all images",
    "mixture": "trained, mixture of two normals",
    "marginal": "ignores the image, right on average",
}
"""What each version is, by its alias, in the order of registration."""
UNIT = 40.0  # degrees: the network sees targets of about unit size

Frame = pd.DataFrame


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


class TrueLaw(FramePredictor):
    """N(angle, (5 + 2.5 digit)^2): reads the columns that generated the target."""

    def columns(self, frame: Frame) -> Frame:
        """Columns loc and scale."""
        return pd.DataFrame({"loc": frame["angle"], "scale": noise_scale(frame["digit"])})


@dataclass
class NormalNetwork(FramePredictor):
    """A network whose outputs are loc and, unless ``scale`` is given, log scale."""

    network: Network
    scale: float | None = None
    factor: float = 1.0

    def columns(self, frame: Frame) -> Frame:
        """Columns loc and scale, in degrees."""
        output = self.network(pixels(frame["image"].tolist()))
        scale = np.exp(output[:, 1]) * UNIT if self.scale is None else np.full(len(output), self.scale)
        return pd.DataFrame({"loc": output[:, 0] * UNIT, "scale": self.factor * scale})


@dataclass
class MixtureNetwork(FramePredictor):
    """A network whose outputs are the logits, locs and log scales of a mixture of normals."""

    network: Network

    def columns(self, frame: Frame) -> Frame:
        """Columns weights_k, loc_k and scale_k, in degrees."""
        logits, loc, log_scale = np.split(self.network(pixels(frame["image"].tolist())), 3, axis=1)
        return _mixture_columns(scipy.special.softmax(logits, axis=1), loc * UNIT, np.exp(log_scale) * UNIT)


@dataclass
class MarginalLaw(FramePredictor):
    """One mixture of normals for every row, whatever the image shows."""

    weights: NDArray[np.float64]
    loc: NDArray[np.float64]
    scale: NDArray[np.float64]

    def columns(self, frame: Frame) -> Frame:
        """Columns weights_k, loc_k and scale_k, in degrees."""
        shape = (len(frame), len(self.weights))
        return _mixture_columns(*(np.broadcast_to(part, shape) for part in (self.weights, self.loc, self.scale)))


def _mixture_columns(weights: NDArray[np.float64], loc: NDArray[np.float64], scale: NDArray[np.float64]) -> Frame:
    parts = {"weights": weights, "loc": loc, "scale": scale}
    return pd.DataFrame({f"{name}_{k}": part[:, k] for name, part in parts.items() for k in range(part.shape[1])})
