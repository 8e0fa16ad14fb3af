"""<D_i, D_j> of scalar targets under Laplacian and Matern kernels to rounding, by the laws' kernel means on a line."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Deterministic, Distribution, Samples
from congruence.kernels.kernel_functions import Kernel, Sum
from congruence.kernels.mean_embeddings.base import EmbeddedErrors, FeatureError
from congruence.kernels.mean_embeddings.gram import factored
from congruence.kernels.mean_embeddings.line_cells import Cells
from congruence.kernels.mean_embeddings.line_means import HalfIntegerKernel, line_means


@dataclass(frozen=True)
class LineProduct:
    """<D_i, D_j>: rows are the features and values of ``LineMeans``, and y last.

    Attributes:
        terms: of the kernel.
        cells: where the values are.
        means: number of features.
    """

    terms: tuple[HalfIntegerKernel, ...]
    cells: Cells = field(repr=False)
    means: int

    def __call__(self, a: Array, b: Array) -> Array:
        """k(y, y') - E k(Z, y') - E k(y, Z') + E k(Z, Z') for two row blocks, shape (n, m)."""
        block = a[:, : self.means] @ b[:, : self.means].T
        distances = np.subtract.outer(a[:, -1], b[:, -1])
        for term in self.terms:
            block += term(distances)
        block -= (self._at(b[:, -1]) @ a[:, self.means : -1].T).T
        block -= self._at(a[:, -1]) @ b[:, self.means : -1].T
        return np.asarray(block)

    def diagonal(self, a: Array) -> Array:
        """<D_i, D_i>, shape (n,)."""
        nodes, weights = self.cells.weights_at(a[:, -1])
        at_target = np.einsum("ij,ij->i", np.take_along_axis(a[:, self.means : -1], nodes, axis=1), weights)
        return np.asarray(self.squared_means(a) + len(self.terms) - 2.0 * at_target)

    def squared_means(self, a: Array) -> Array:
        """|E k(Y_i, .)|^2, (n,)."""
        return np.asarray(np.einsum("ij,ij->i", a[:, : self.means], a[:, : self.means]))

    def _at(self, y: Array) -> scipy.sparse.csr_array:
        nodes, weights = self.cells.weights_at(y)
        starts = np.arange(0, weights.size + 1, weights.shape[1])
        return scipy.sparse.csr_array((weights.ravel(), nodes.ravel(), starts), (len(y), self.cells.count))


def without_kinks(kernel: Kernel) -> tuple[Kernel | None, tuple[HalfIntegerKernel, ...]]:
    """The terms of a kernel that are no Laplacian or Matern kernels, and those that are."""
    known = [HalfIntegerKernel.of(term) for term in kernel.terms]
    rest = tuple(term for term, found in zip(kernel.terms, known, strict=True) if found is None)
    return Sum(rest) if rest else None, tuple(found for found in known if found is not None)


def line_product(
    y: Array, predictive: Distribution, terms: tuple[HalfIntegerKernel, ...]
) -> tuple[LineProduct, Array, Array] | None:
    """<D_i, D_j> under the sum of ``terms`` for targets y (n,), its rows, and how far, squared, each is from D_i.

    None as ``line_means``, and for atoms.
    """
    if not terms or predictive.is_discrete or isinstance(predictive, (Samples, Deterministic)):
        return None
    means = line_means(predictive, terms, float(np.min(y)), float(np.max(y)))
    if means is None:
        return None
    product = LineProduct(terms, means.cells, means.features.shape[1])
    return product, np.hstack([means.features, means.values, y[:, None]]), means.moved


def exact_line_errors(
    y: Array, predictive: Distribution, terms: tuple[HalfIntegerKernel, ...]
) -> EmbeddedErrors | None:
    """Coordinates of the errors by a factor of their Gram matrix; None as ``line_product``."""
    found = line_product(y, predictive, terms)
    if found is None:
        return None
    product, rows, moved = found
    gram = product(rows, rows)
    np.fill_diagonal(gram, product.diagonal(rows))
    delta, missed = factored((gram + gram.T) / 2.0)
    return EmbeddedErrors(delta, product.squared_means(rows), FeatureError(missed, displaced=moved))
