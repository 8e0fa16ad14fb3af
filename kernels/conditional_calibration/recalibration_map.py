"""x -> G_x, the map that recalibrates predictions where they are: moved, stretched and bent as the input says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.input_features import linear_in_kernel
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

LEVELS = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.97, 0.99, 1.0])
"""Of H, the distribution function that bends a law: its inner values are what is fitted."""

_LEAST_DENSITY = 0.05
_LARGEST_LOG_FACTOR = np.log(50.0)


@dataclass(frozen=True)
class Form:
    """How a map may vary: what was chosen for each part, None for no change.

    Attributes:
        shift: ridge of b.
        factor: ridge of log c.
        shape: ridge of H and its share.
    """

    shift: float | None = None
    factor: float | None = None
    shape: tuple[float, float] | None = None


@dataclass(frozen=True)
class RecalibrationMap:
    """x -> G_x, with all that it takes to apply it to new inputs: arrays and a kernel.

    Attributes:
        form: what was chosen.
        kernel: of the inputs.
        landmarks: (m, d).
        constants: of b, log c and each inner level of H, (2 + L - 2,).
        weights: on the kernel values at the landmarks, (m, 2 + L - 2).
        levels: of H, (L,).
    """

    form: Form
    kernel: Kernel
    landmarks: Array = field(repr=False)
    constants: Array = field(repr=False)
    weights: Array = field(repr=False)
    levels: Array = field(default_factory=lambda: LEVELS, repr=False)

    @property
    def changes_nothing(self) -> bool:
        """Whether the data chose to leave every law as it is."""
        return self.form == Form()

    @property
    def depends_on_input(self) -> bool:
        """Whether the map differs from input to input; else every law is moved, stretched and bent alike."""
        return bool(np.any(self.weights != 0.0))

    def everywhere(self, rows: int) -> NormalScoreMap:
        """The map of ``rows`` inputs that need not be known, where it does not depend on them.

        Raises:
            InvalidInputError: it does.
        """
        if self.depends_on_input:
            raise InvalidInputError("x: the map differs from input to input; give the embedded inputs to `at`")
        return normal_score_map(np.broadcast_to(self.constants, (rows, len(self.constants))), self.form)

    def at(self, x: Any) -> NormalScoreMap:
        """The map of each input x (m, d), embedded as the reference split was."""
        return normal_score_map(
            self.constants + linear_in_kernel(self.kernel, self.landmarks, self.weights, x), self.form
        )

    def __call__(self, x: Any, predictive: Distribution) -> Distribution:
        """The predictions at inputs x, recalibrated."""
        return recalibrated(predictive, self.at(x))


def normal_score_map(values: Array, form: Form) -> NormalScoreMap:
    """The map from rows of b, log c and the inner levels' corrections, (m, L)."""
    shift = values[:, 0]
    factor = np.exp(np.clip(values[:, 1], -_LARGEST_LOG_FACTOR, _LARGEST_LOG_FACTOR))
    shares = np.tile(LEVELS, (len(values), 1))
    if form.shape is not None:
        shares = _rising(values[:, 2:])
    return NormalScoreMap(shift, factor, LEVELS, shares)


def _rising(corrections: Array) -> Array:
    """Distribution functions from corrections of the inner levels, (m, L): rearranged, and nowhere flat."""
    inner = np.sort(np.clip(LEVELS[1:-1] + corrections, 0.0, 1.0), axis=1)
    ends = np.zeros((len(inner), 1))
    mass = np.diff(np.concatenate([ends, inner, ends + 1.0], axis=1), axis=1)
    mass = np.maximum(mass, _LEAST_DENSITY * np.diff(LEVELS))
    shares = np.concatenate([ends, np.cumsum(mass, axis=1)], axis=1) / mass.sum(axis=1, keepdims=True)
    shares[:, -1] = 1.0
    return np.asarray(shares)
