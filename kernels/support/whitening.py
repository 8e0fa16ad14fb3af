"""The space in which distances between inputs are taken: directions in which rows vary little count as much as others.

Features that go together (temperature and felt temperature, the units of an encoder) leave a combination that no row
has close to rows in plain distance. In units of the rows' own covariance it is far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sklearn.covariance import ledoit_wolf

from congruence.kernels.arrays import Array


@dataclass(frozen=True)
class Whitening:
    """x -> (x - mean) W with W W' the inverse of a covariance, shrunk towards a multiple of the identity by as much as
    its rows are too few to know it (Ledoit and Wolf 2004).

    Attributes:
        mean: (d,).
        matrix: W, (d, d).
    """

    mean: Array = field(repr=False)
    matrix: Array = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> Whitening:
        """By the covariance of ``rows``, (n, d)."""
        scale = np.std(rows, axis=0, dtype=np.float64)
        scale[~(scale > 0.0)] = 1.0
        covariance = ledoit_wolf(np.asarray(rows, dtype=np.float64) / scale)[0]
        variances, directions = np.linalg.eigh(covariance)
        floor = np.finfo(rows.dtype).eps * max(float(variances[-1]), np.finfo(np.float64).tiny)
        whitened = directions / np.sqrt(np.maximum(variances, floor))
        mean = np.mean(rows, axis=0, dtype=np.float64).astype(rows.dtype)
        return cls(mean, np.asarray(whitened / scale[:, None], dtype=rows.dtype))

    def __call__(self, x: Array) -> Array:
        """``x`` (m, d) in this space, (m, d)."""
        return np.asarray((x - self.mean) @ self.matrix, dtype=self.matrix.dtype)

    def shares(self, difference: Array) -> Array:
        """What each feature of a difference (d,) adds to its squared length in this space, (d,)."""
        return np.asarray(difference * (self.matrix @ (difference @ self.matrix)))
