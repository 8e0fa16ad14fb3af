"""The noise floor: E[CCE(x)^2] = sum_i a_i(x)^2 v_i if the model is the truth, by a few random probes.

With z_i = +-sqrt(v_i) at random, (k(x)' A^-1 z)^2 has that expectation (Hutchinson 1990), and a standard deviation of
sqrt(2) times it. The leading spectrum L of the smoother W knows most of both sums, so only the rest is left to chance:

    E[CCE(x_j)^2] = sum_i L_ji^2 v_i + E[(W z)_j^2 - (L z)_j^2].

The estimate is unbiased whatever L is, and its spread falls with |W_j - L_j| / |W_j|: 16 probes leave 1 to 4 % of the
root at a point that L sees, and up to the plain estimate's 18 % at one that it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.gram.thin_products import product, projected, squares_at, weighted_squares
from congruence.kernels.gram.tiles import tile_slices
from congruence.kernels.resampling.keyed import row_signs

PROBES = 16
ROWS = 4096  # that are taken to double precision at once
TOLERANCE = 0.02  # of the norm of a smoothed probe


def probes_of(variance: Array, positions: Array, seed: int, *, count: int = PROBES, use: str = "") -> Array:
    """Probes z (n, count) of variances v (n,) at the rows ``positions`` of a split; ``use`` tells repeats apart."""
    signs = row_signs(positions, count, seed, f"noise floor probes{use}").astype(np.float64)
    signs *= np.sqrt(variance)[:, None]
    return signs


def probe_tolerances(probes: Array, smoother: SpectralSmoother) -> Array:
    """The residual norms that end a solve on probes (n, p), (p,)."""
    # The leading directions are orthonormal, so these are the norms of L z over the reference points.
    return np.asarray(TOLERANCE * np.linalg.norm(smoother.coefficients(_single(probes)), axis=0))


def add_floor(sums: BlockSums, vectors: Array, variance: Array, probes: Array) -> None:
    """What some rows U (n, k) with variances (n,) and probes (n, p) add to the floor."""
    exact = vectors.astype(np.float64)  # where the probes see all of a point's floor, two large sums leave it
    sums.add("variance", weighted_squares(exact, variance))
    sums.add("probes", projected(exact, probes))


@dataclass(frozen=True)
class FloorCoefficients:
    """What the floor at a point is made of, in the leading directions.

    Attributes:
        squares: F U'diag(v)U F with the filters F, (k, k).
        probes: F U'z, (k, p).
    """

    squares: Array = field(repr=False)
    probes: Array = field(repr=False)

    @classmethod
    def of(cls, filters: Array, sums: BlockSums) -> FloorCoefficients:
        """From what all rows added."""
        return cls(filters[:, None] * sums.added["variance"] * filters, filters[:, None] * sums.added["probes"])

    def squared(self, vectors: Array, smoothed: Array) -> Array:
        """E[CCE(x_j)^2], (m,), at points U (m, k) with smoothed probes W z (m, p)."""
        exact = vectors.astype(np.float64)
        known = product(exact, self.probes)
        chance = np.mean((smoothed - known) * (smoothed + known), axis=1)
        return np.asarray(np.maximum(squares_at(exact, self.squares) + chance, 0.0))


def squared_floor(variance: Array, smoother: SpectralSmoother, probes: Array, smoothed: Array) -> Array:
    """E[CCE(x_j)^2], (m,), from probes z (n, p) and W z (m, p), where all rows are here."""
    sums = BlockSums()
    for rows in tile_slices(slice(0, len(variance)), ROWS):
        add_floor(sums, smoother.analysis[rows], variance[rows], probes[rows])
    floor, points = FloorCoefficients.of(smoother.filters, sums), tile_slices(slice(0, len(smoothed)), ROWS)
    return np.concatenate([floor.squared(smoother.synthesis[rows], smoothed[rows]) for rows in points])


def _single(probes: Array) -> Array:
    return probes.astype(np.float32)
