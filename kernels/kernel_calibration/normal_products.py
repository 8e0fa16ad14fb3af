"""Target products in closed form for vector-valued normal predictions.

On vectors no short list of features is exact; the Gaussian integrals are (Widmann et al. 2021, appendix D.1, diagonal
covariances), of every kernel that ``gaussian_expectation`` knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.gram import ErrorGram


@dataclass(frozen=True)
class NormalProduct:
    """<Delta_i, Delta_j> for normals with independent components: rows are (y, loc, scale), (n, 3q)."""

    kernel: Kernel

    def __call__(self, a: Array, b: Array) -> Array:
        """k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z') for two row blocks, shape (n, m)."""
        return self._errors(a).products(self._errors(b))

    def diagonal(self, a: Array) -> Array:
        """<Delta_i, Delta_i>, shape (n,)."""
        return self._errors(a).diagonal()

    def _errors(self, rows: Array) -> ErrorGram:
        y, loc, scale = np.split(rows, 3, axis=1)
        return ErrorGram.of_normals(self.kernel, y, loc, scale**2)
