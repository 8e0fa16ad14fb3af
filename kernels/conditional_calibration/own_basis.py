"""The basis of a version's own quantiles: what a model says of its targets is a function of the input, too.

Calibration given the prediction is the hypothesis of the kernel calibration error (Widmann et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.conditional_calibration.bases import (
    LANDMARKS_PER_DIRECTION,
    TILE_ROWS,
    BasisKernel,
    KernelColumns,
    kernel_directions,
    typical_gamma,
)
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.engine.tiles import tile_slices
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.scores import matched_targets

OWN = "own quantiles"
_ROWS = 8192


def own_quantiles(y: Any, predictive: Distribution, levels: Sequence[float]) -> Array | None:
    """What a version says of every row, for its own basis: quantiles at ``levels``, (n, q); None for no levels.

    Of draws (``Samples``) those of the target and the l draws together. Given the draws alone, the place of the target
    among them is not uniform under the truth (wide draws leave it in their middle); given all l + 1 values it is.
    """
    if not levels:
        return None
    wanted = np.asarray(levels)[None, :]
    values = predictive.draws
    if values is None:
        return np.asarray(predictive.predictive_quantile(wanted))
    targets = matched_targets(predictive, y)
    parts = (np.column_stack([values[rows], targets[rows]]) for rows in row_slices(len(targets), _ROWS))
    return np.concatenate([Samples(part).predictive_quantile(wanted) for part in parts])


def own_kernel(points: Array, settings: CalibrationSettings, *, dtype: Any, seed: int) -> BasisKernel | None:
    """The kernel of a version's own basis, from its quantiles at the sampled rows, (s, q).

    None where they do not depend on the input, or are not finite.
    """
    gamma = typical_gamma(points, seed) if points.shape[1] and np.isfinite(points).all() else None
    if gamma is None:
        return None
    # In the precision of the shared columns: what is rounding in products with them must not become a direction.
    points = points.astype(dtype)
    count = LANDMARKS_PER_DIRECTION * settings.own_directions
    return BasisKernel.of(OWN, RBF(gamma), points, np.median(points, axis=0), count, seed)


@dataclass(frozen=True)
class OwnColumns:
    """Columns K[rows, landmarks] of a version's own kernel at the rows of a block.

    Attributes:
        kernel: of the version.
        quantiles: (rows, q), finite.
        unbounded: how many rows have quantiles that are not: with any of them the version has no basis of its own.
    """

    kernel: BasisKernel
    quantiles: Array = field(repr=False)
    unbounded: int

    @classmethod
    def of(cls, kernel: BasisKernel, quantiles: Array) -> OwnColumns:
        """From quantiles as the version has them."""
        bad = np.asarray(~np.isfinite(quantiles).all(axis=1))
        assert kernel.center is not None
        finite = np.where(bad[:, None], kernel.center, quantiles).astype(kernel.landmarks.dtype)
        return cls(kernel, finite, int(np.count_nonzero(bad)))

    def tiles(self) -> KernelColumns:
        """Tile by tile."""
        return KernelColumns(self.quantiles, [self.kernel])

    def directions(self, own: OwnDirections) -> Array:
        """U of all rows, in single precision, (rows, k)."""
        columns = self.tiles()
        tiles = tile_slices(slice(0, len(self.quantiles)), TILE_ROWS)
        return np.concatenate([columns.at(rows)[0] @ own.coordinates for rows in tiles], dtype=np.float32)


@dataclass(frozen=True)
class OwnDirections:
    """U = C B of a version's own basis, from the sums of its columns C.

    Attributes:
        coordinates: B, (m, k).
        eigenvalues: of K / n, (k,).
    """

    coordinates: Array = field(repr=False)
    eigenvalues: Array

    @classmethod
    def of(cls, kernel: BasisKernel, products: Array, n: int, settings: CalibrationSettings) -> OwnDirections:
        """From C'C over all n rows."""
        basis, eigenvalues = kernel_directions(kernel, products, n)
        keep = min(settings.own_directions, len(eigenvalues))
        return cls(basis[:, :keep], eigenvalues[:keep] / n)
