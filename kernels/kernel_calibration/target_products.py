"""The target side of a pair, <Delta_i, Delta_j>, as a function of two blocks of rows.

For smooth kernels of one target the rows are Delta in finite features and the product is a matrix product. Where no
short list of features is exact (Laplacian and Matern kernels have a kink; vectors fill a volume), kernel means on a
line and closed forms take its place. Where such means would take too much memory (beyond some 50,000 laws that bend at
places of their own) these laws have features, too, which miss 1e-6 to 1e-7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Laplace, MultivariateNormal
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.distributions.gaussian_expectations import has_gaussian_expectation
from congruence.kernels.kernel_calibration.laplace_products import LaplaceProduct
from congruence.kernels.kernel_functions import Kernel, Laplacian
from congruence.kernels.mean_embeddings.feature_maps import FeatureMap, output_features
from congruence.kernels.mean_embeddings.fourier import rbf_gammas
from congruence.kernels.mean_embeddings.gram import ErrorGram
from congruence.kernels.mean_embeddings.line_products import LineProduct, line_product, without_kinks
from congruence.kernels.mean_embeddings.residuals import target_errors


class TargetProduct(Protocol):
    """<Delta_i, Delta_j> for two blocks of target rows."""

    def __call__(self, a: Any, b: Any) -> Any:
        """The block of products, (n, m)."""

    def diagonal(self, a: Any) -> Any:
        """The products of each row with itself, (n,)."""


@dataclass(frozen=True)
class FeatureProduct(TargetProduct):
    """Rows are Delta_i in the features of the target kernel, shape (n, r)."""

    def __call__(self, a: Any, b: Any) -> Any:
        return a @ b.T

    def diagonal(self, a: Any) -> Any:
        return (a * a).sum(axis=1)


@dataclass(frozen=True)
class JoinedProduct(TargetProduct):
    """Of a sum of kernels: rows are those of a ``LineProduct``, then Delta_i in features of the other terms."""

    line: LineProduct
    columns: int

    def __call__(self, a: Array, b: Array) -> Array:
        block = self.line(a[:, : self.columns], b[:, : self.columns])
        block += a[:, self.columns :] @ b[:, self.columns :].T
        return np.asarray(block)

    def diagonal(self, a: Array) -> Array:
        rest = a[:, self.columns :]
        return np.asarray(self.line.diagonal(a[:, : self.columns]) + np.einsum("ij,ij->i", rest, rest))


@dataclass(frozen=True)
class NormalProduct(TargetProduct):
    """Of vectors of independent normal components: rows are (y, loc, scale), (n, 3q).

    No short list of features is exact; the Gaussian integrals are (Widmann et al. 2021, appendix D.1), of every kernel
    that ``gaussian_expectation`` knows.
    """

    kernel: Kernel

    def __call__(self, a: Array, b: Array) -> Array:
        return self._errors(a).products(self._errors(b))

    def diagonal(self, a: Array) -> Array:
        return self._errors(a).diagonal()

    def _errors(self, rows: Array) -> ErrorGram:
        y, loc, scale = np.split(rows, 3, axis=1)
        return ErrorGram.of_normals(self.kernel, y, loc, scale**2)


@dataclass(frozen=True)
class TargetRows:
    """The target side of n rows.

    Attributes:
        product: <Delta_i, Delta_j> of two blocks of ``values``.
        values: what the product reads of each row, (n, c).
        features: psi where ``values`` are Delta in features, else None.
    """

    product: TargetProduct
    values: Array
    features: FeatureMap | None

    def redrawn(self, predictive: Distribution, y: Array, kernel: Kernel) -> TargetRows:
        """The rows of other targets for the same predictions; kernel means on a line are not computed again."""
        if isinstance(self.product, LineProduct):
            return replace(self, values=np.column_stack([self.values[:, :-1], y]))
        return target_rows(predictive, y, kernel)


def target_rows(predictive: Distribution, y: Array, kernel: Kernel) -> TargetRows:
    """The rows for targets y (n,) or (n, q) and n predictive distributions.

    Raises:
        InvalidInputError: the predictions are of another number of targets.
    """
    require_dimension(predictive, y)
    first, *others = kernel.terms
    if type(predictive) is Laplace and isinstance(first, Laplacian) and not others and y.ndim == 1:
        return TargetRows(LaplaceProduct(first.gamma), location_scale_rows(predictive, y), None)
    if isinstance(predictive, MultivariateNormal) and y.ndim == 2 and has_gaussian_expectation(kernel):
        center = np.median(y, axis=0) if kernel.is_stationary else np.zeros(y.shape[1])
        rows = np.column_stack([y - center, predictive.loc - center, predictive.scale])
        return TargetRows(NormalProduct(kernel), rows, None)
    rest, kinked = without_kinks(kernel)
    if y.ndim == 1 and (found := line_product(y, predictive, kinked)) is not None:
        line, rows, _ = found
        if rest is None:
            return TargetRows(line, rows, None)
        both = np.hstack([rows, target_errors(y, predictive, rest).delta])
        return TargetRows(JoinedProduct(line, rows.shape[1]), both, None)
    if y.ndim == 1 and rbf_gammas(kernel) is not None:
        features = output_features(kernel, y, predictive)
        return TargetRows(FeatureProduct(), target_errors(y, predictive, kernel, features=features).delta, features)
    return TargetRows(FeatureProduct(), target_errors(y, predictive, kernel).delta, None)


def location_scale_rows(predictive: Laplace, y: Array) -> Array:
    """(y, loc, scale) side by side, (n, 3q)."""
    return np.column_stack([y, predictive.loc, predictive.scale])
