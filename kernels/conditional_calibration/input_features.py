r"""The leading directions of an input kernel as features F(x), so that smooth functions of x are F(x) beta + constant.

F_k(x) = u_k(x) sqrt(e_k / n lambda) for K = U diag(e) U', so that ridge regression on F with penalty r |beta|^2 is
kernel ridge regression with r times the protocol's n lambda. Directions of which the protocol keeps under 1 % are left
out. The features know the inputs of all rows and the targets of none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices, to_numpy
from congruence.kernels.engine.spectrum import Spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel

_BLOCK = 4096


@dataclass(frozen=True)
class InputFeatures:
    """F at the n reference rows, and what it takes to have it at any other input.

    Attributes:
        values: F(x_i), (n, k).
        landmarks: reference inputs (m, d) whose kernel values span the features.
        kernel: of the inputs.
        basis: (m, k): F(x) = k(x, landmarks) basis.
    """

    values: Array = field(repr=False)
    landmarks: Array = field(repr=False)
    kernel: Kernel
    basis: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)


def input_features(spectrum: Spectrum, x: Array) -> InputFeatures:
    """Returns the features of the rows x (n, d) that a spectrum is of."""
    keep = spectrum.kept
    roots = np.sqrt(spectrum.eigenvalues[:keep] / spectrum.shift)
    landmarks = spectrum.landmarks if spectrum.center is None else spectrum.landmarks + spectrum.center
    return InputFeatures(
        np.asarray(spectrum.vectors(x, keep), dtype=np.float64) * roots,
        landmarks.astype(np.float64),
        spectrum.kernel,
        np.asarray(spectrum.basis[:, :keep], dtype=np.float64) * roots,
    )


def linear_in_kernel(kernel: Kernel, landmarks: Array, weights: Array, x: Any) -> Array:
    """k(x, landmarks) weights, (m, c), for inputs x (m, d), block by block in float64.

    Raises:
        InvalidInputError: another number of features than the landmarks have.
    """
    points = to_numpy(x)
    if points.ndim != 2 or points.shape[1] != landmarks.shape[1]:
        raise InvalidInputError(
            f"x: shape {points.shape}, expected (m, {landmarks.shape[1]}): embed as the reference split was"
        )
    center = kernel.center(landmarks)
    nodes = landmarks if center is None else landmarks - center
    result = np.empty((len(points), weights.shape[1]))
    for rows in row_slices(len(points), _BLOCK):
        block = points[rows].astype(np.float64)
        block = block if center is None else block - center
        result[rows] = np.asarray(kernel(block, nodes)) @ weights
    return result
