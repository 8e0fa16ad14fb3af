"""Finite mixtures: mixture density networks, ensembles of probabilistic models; and normals of vector targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.special
import scoringrules

from congruence.kernels.arrays import Array, as_numbers, row_slices, to_numpy
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import ByRows, Distribution, Seed, Uniforms, refuse
from congruence.kernels.distributions.continuous import Normal
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.expectations import (
    energy_score,
    gaussian_expectation,
    has_gaussian_expectation,
    mean_distance,
    normal_polynomial_diagonal,
)
from congruence.kernels.distributions.piecewise import require_masses
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.distributions.samples import Samples, as_vectors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Polynomial
from congruence.kernels.rng import stream

_ENTRIES = 2**16  # quantiles searched for at once: they stay in the cache, and end when theirs have been found


@dataclass(frozen=True, repr=False)
class Mixture(ByRows):
    """sum_k w_ik F_ik: ``weights`` (n, K) or (K,), ``components`` K distributions of n rows each.

    Weights must be at least 0 and sum to 1 within 1e-4 (single precision); they are then normalised exactly.
    """

    weights: Array
    components: Sequence[Distribution]

    def __post_init__(self) -> None:
        components = tuple(self.components)
        if not components:
            raise InvalidInputError("Mixture.components: is empty; give at least one distribution")
        lengths = [len(component) for component in components]
        if len(set(lengths)) > 1:
            raise InvalidInputError(f"Mixture.components: have {lengths} rows; every component needs the same n rows")
        weights = np.asarray(to_numpy(self.weights, "Mixture.weights"), dtype=np.float64)
        if weights.ndim not in (1, 2) or weights.shape[-1] != len(components):
            raise InvalidInputError(
                f"Mixture.weights: shape {weights.shape} does not fit {len(components)} components; "
                "expected (n, K) or (K,)"
            )
        weights = np.array(np.broadcast_to(weights, (lengths[0], len(components))))
        self._hold(weights=require_masses(weights, "Mixture.weights"), components=components)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether every component is a distribution of counts."""
        return all(component.is_discrete for component in self.components)

    @property
    def mixture(self) -> tuple[Array, Sequence[Distribution]]:
        return self.weights, self.components

    @cached_property
    def counts(self) -> MixedCounts | None:
        parts = [component.counts for component in self.components]
        known = tuple(part for part in parts if isinstance(part, Count))
        return MixedCounts(self.weights, known) if len(known) == len(parts) else None

    @property
    def dimension(self) -> int:
        return self.components[0].dimension

    def parameters(self) -> dict[str, Array]:
        """The weights, and the parameters of component k as ``component_k.name``."""
        result = {"weights": self.weights}
        for k, component in enumerate(self.components):
            result |= {f"component_{k}.{name}": values for name, values in component.parameters().items()}
        return result

    def has_density(self) -> bool:
        """See Distribution: a log score mixes no masses with densities."""
        kinds = {component.is_discrete for component in self.components}
        return len(kinds) == 1 and all(component.has_density() for component in self.components)

    def _log_prob(self, y: Any) -> Array:
        if len({component.is_discrete for component in self.components}) > 1:
            raise InvalidInputError(
                "Mixture.log_prob: some components have a density and others have mass; use crps instead"
            )
        parts = np.stack([component.log_prob(y) for component in self.components], axis=-1)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights)
        log_weights = log_weights[:, None, :] if parts.ndim == 3 else log_weights
        return np.asarray(scipy.special.logsumexp(parts + log_weights, axis=-1))

    log_prob = _log_prob  # of vectors, too

    def _average(self, value: Callable[[Distribution], Array]) -> Array:
        """sum_k w_k value(component k), for values of shape (n, ...)."""
        total: Any = 0.0
        for k, component in enumerate(self.components):
            part = value(component)
            total = total + self.weights[:, k].reshape(-1, *(1,) * (part.ndim - 1)) * part
        return np.asarray(total)

    def _cdf(self, y: Any) -> Array:
        return np.clip(self._average(lambda component: component.cdf(y)), 0.0, 1.0)

    def _cdf_left(self, y: Any) -> Array:
        return np.clip(self._average(lambda component: component.cdf_left(y)), 0.0, 1.0)

    cdf, cdf_left = _cdf, _cdf_left

    def _quantile(self, q: Array) -> Array:
        """Searched for between the smallest and the largest quantile of the components."""
        if self.counts is not None:
            return self.counts._quantile(q)
        some = row_slices(len(self), _ENTRIES // max(1, q.shape[1]))
        return np.concatenate([self[rows]._searched(q[rows]) for rows in some]) if some else np.empty(q.shape)

    def _searched(self, q: Array) -> Array:
        ends = np.stack([component.quantile(q) for component in self.components])
        unused = self.weights.T[:, :, None] == 0
        lower, upper = np.where(unused, np.inf, ends).min(axis=0), np.where(unused, -np.inf, ends).max(axis=0)

        def cdf_of(elements: Array) -> Callable[[Array], Array]:
            return self[elements // q.shape[1]].cdf

        found = smallest_reaching(cdf_of, q.ravel(), lower.ravel(), upper.ravel(), whole=False)
        return found.reshape(q.shape)

    def mean(self) -> Array:
        return self._average(lambda component: component.mean())

    def std(self) -> Array:
        center = self.mean()
        return np.sqrt(self._average(lambda component: component.std() ** 2 + (component.mean() - center) ** 2))

    def sample(self, size: int, seed: Seed = 0) -> Array:
        rng = stream(seed, "samples")
        return self._picked(rng.random((len(self), size)), lambda component, _: component.sample(size, rng))

    def sample_by(self, uniforms: Uniforms, size: int) -> Array:
        """See Distribution: a component for each draw, and a draw of each of them."""

        def draws(component: Distribution, k: int) -> Array:
            return component.sample_by(lambda count, purpose: uniforms(count, f": {k}{purpose}"), size)

        return self._picked(uniforms(size, ": component"), draws)

    def _picked(self, shares: Array, draws: Callable[[Distribution, int], Array]) -> Array:
        """Of the ``draws`` of all components those of the component at each share (n, size) of the weights."""
        pick = (shares[:, :, None] > np.cumsum(self.weights, axis=1)[:, None, :-1]).sum(axis=2)
        result = draws(self.components[0], 0)
        for k, component in enumerate(self.components[1:], start=1):
            chosen = (pick == k).reshape(*pick.shape, *(1,) * (result.ndim - 2))
            result = np.where(chosen, draws(component, k), result)
        return result

    def _crps(self, y: Array) -> Array:
        """In closed form for normal components (Grimit et al. 2006), else quadrature over the cdf."""
        if self.counts is not None:
            return self.counts._crps(y)
        normals = [component for component in self.components if isinstance(component, Normal)]
        if len(normals) == len(self.components):
            loc = np.stack([component.loc for component in normals], axis=1)[:, None, :]
            scale = np.stack([component.scale for component in normals], axis=1)[:, None, :]
            return np.asarray(scoringrules.crps_mixnorm(y, loc, scale, self.weights[:, None, :]))
        return quadrature.crps(self, y)

    def interval(self, tail: float) -> tuple[float, float]:
        """See Distribution: the hull of the components' intervals."""
        ends = [component.interval(tail) for component in self.components]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def knots(self) -> Array:
        """See Distribution: those of all components."""
        return np.sort(np.concatenate([component.knots() for component in self.components], axis=1), axis=1)

    def characteristic_function(self, t: Array) -> Array:
        return self._average(lambda component: component.characteristic_function(t))

    def breaks(self) -> Array:
        return np.hstack([component.breaks() for component in self.components])

    def translated(self, by: float) -> Mixture | None:
        found = [component.translated(by) for component in self.components]
        parts = [part for part in found if part is not None]
        return Mixture(self.weights, parts) if len(parts) == len(found) else None

    def raw_moments(self, order: int) -> Array:
        return self._average(lambda component: component.raw_moments(order))

    def kernel_diagonal(self, kernel: Kernel) -> Array:
        return self._average(lambda component: component.kernel_diagonal(kernel))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        return self._average(lambda component: component.kernel_expectation(kernel, nodes))


@dataclass(frozen=True, repr=False)
class MixedCounts(Count):
    """The mixture of distributions of counts: ``weights`` (n, K) and K ``components`` of n rows each."""

    weights: Array
    components: tuple[Count, ...]

    def __post_init__(self) -> None:
        """Nothing: the mixture that these counts are has checked them."""

    @property
    def largest(self) -> Array:
        return np.asarray(np.max([part.largest for part in self.components], axis=0))

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        lower, upper = zip(*(part.window(tail) for part in self.components), strict=True)
        return np.min(lower, axis=0), np.max(upper, axis=0)

    def _log_mass(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._sum([np.exp(part.log_prob(k)) for part in self.components])))

    def _at_most(self, k: Array) -> Array:
        return self._sum([part.cdf(k) for part in self.components])

    def _beyond(self, k: Array) -> Array:
        return self._sum([part.survival(k) for part in self.components])

    def _sum(self, parts: list[Array]) -> Array:
        return np.asarray(np.minimum(np.einsum("ik,kij->ij", self.weights, np.stack(parts)), 1.0))


_POINTS = 256
_CLOSED_FORM_ENTRIES = 250_000  # a block and its scratch stay in a core's cache


@dataclass(frozen=True, repr=False)
class MultivariateNormal(ByRows):
    """N(loc, diag(scale^2)) on q targets: ``loc`` and ``scale`` (n, q).

    ``cdf`` is the joint one. The energy score, and kernels other than RBF, Laplacian, Matern, polynomials and their
    sums, use 256 fixed quasi-random points. With one target, (n, 1), it is a ``Normal``.
    """

    loc: Array
    scale: Array

    def __new__(cls, loc: Any = None, scale: Any = None) -> Any:
        """A ``Normal`` where there is one target; what is unpickled is made without parameters."""
        if np.shape(loc) == np.shape(scale) == (np.size(loc), 1):
            return Normal(*(as_numbers(each, "MultivariateNormal", "(n, q)", 2)[:, 0] for each in (loc, scale)))
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("loc", "scale"):
            self._hold(**{name: as_numbers(getattr(self, name), f"MultivariateNormal.{name}", "(n, q)", 2)})
        if self.loc.shape != self.scale.shape:
            raise InvalidInputError(
                f"MultivariateNormal: loc has shape {self.loc.shape}, scale {self.scale.shape}; they must agree"
            )
        if not np.all(self.scale > 0):
            row, column = (int(i) for i in np.argwhere(self.scale <= 0)[0])
            raise InvalidInputError(
                f"MultivariateNormal.scale: row {row}, target {column} is {self.scale[row, column]:g}, expected a "
                "positive standard deviation; check the model's output column"
            )

    @property
    def dimension(self) -> int:
        return int(self.loc.shape[1])

    def _standardize(self, y: Any) -> Array:
        return np.asarray((as_vectors(y, len(self), self.dimension) - self.loc) / self.scale)

    def log_prob(self, y: Any) -> Array:
        """Log density at y (n, q), shape (n,)."""
        z = self._standardize(y)
        return np.asarray(np.sum(-0.5 * z * z - np.log(self.scale) - 0.5 * np.log(2.0 * np.pi), axis=1))

    def cdf(self, y: Any) -> Array:
        """P(every component is at most that of y), for y (n, q), shape (n,)."""
        return np.asarray(np.prod(scipy.special.ndtr(self._standardize(y)), axis=1))

    _log_prob, _cdf, cdf_left = log_prob, cdf, cdf

    def mean(self) -> Array:
        """See Distribution, (n, q)."""
        return self.loc.copy()

    def std(self) -> Array:
        """See Distribution, (n, q)."""
        return self.scale.copy()

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` draws per row, (n, size, q)."""
        noise = stream(seed, "samples").standard_normal((len(self), size, self.dimension))
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * noise)

    def sample_by(self, uniforms: Uniforms, size: int) -> Array:
        """See Distribution, (n, size, q)."""
        noise = scipy.special.ndtri(uniforms(size * self.dimension, "")).reshape(len(self), size, self.dimension)
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * noise)

    def whitened(self, y: Array) -> tuple[Array, Distribution]:
        z = (np.reshape(y, self.loc.shape) - self.loc) / self.scale
        return z, MultivariateNormal(np.zeros_like(z), np.ones_like(z))

    def marginal(self, column: int) -> Normal:
        return Normal(self.loc[:, column], self.scale[:, column])

    def crps(self, y: Any) -> Array:
        """The energy score of y (n, q), shape (n,)."""
        targets = as_vectors(y, len(self), self.dimension)
        return energy_score(self._points(), targets, self._apart)

    @cached_property
    def _apart(self) -> Array:
        """Of two draws of a row, (n,): the same for all targets, and by far the longest part of their scores."""
        return mean_distance(self._points(), fair=False)

    def _points(self) -> Array:
        return np.asarray(self.loc[:, None, :] + self.scale[:, None, :] * normal_points(_POINTS, self.dimension))

    def characteristic_function(self, t: Array) -> Array:  # noqa: ARG002
        """Raises InvalidInputError for q > 1: features of vector targets use ``kernel_expectation``."""
        refuse("MultivariateNormal", "characteristic_function", self.dimension)

    def raw_moments(self, order: int) -> Array:  # noqa: ARG002
        """Raises InvalidInputError for q > 1."""
        refuse("MultivariateNormal", "raw_moments", self.dimension)

    def _quantile(self, q: Array) -> Array:  # noqa: ARG002
        refuse("MultivariateNormal", "quantile", self.dimension)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        """See Distribution: closed form of polynomials, else over fixed points."""
        if isinstance(kernel, Polynomial):
            return normal_polynomial_diagonal(kernel, self.loc, self.scale**2)
        return Samples(self._points()).kernel_diagonal(kernel)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """See Distribution, nodes (r, q): Gaussian integrals where they have a closed form, else over fixed points."""
        if has_gaussian_expectation(kernel):
            result = np.empty((len(self), len(nodes)))
            for rows in row_slices(len(self), _CLOSED_FORM_ENTRIES // max(1, len(nodes))):
                variance = self.scale[rows] ** 2
                result[rows] = gaussian_expectation(kernel, self.loc[rows], variance, nodes, np.zeros_like(nodes))
            return result
        if len(kernel.terms) > 1:
            return np.asarray(sum(self.kernel_expectation(term, nodes) for term in kernel.terms))
        return Samples(self._points()).kernel_expectation(kernel, nodes)


@lru_cache(maxsize=8)
def normal_points(count: int, dimension: int) -> Array:
    """Points (count, dimension) spread like a standard normal distribution: scrambled Sobol points, always the same."""
    from scipy.stats import qmc  # not at the start: every family would load it

    uniform = qmc.Sobol(dimension, scramble=True, rng=stream(0, "Sobol points")).random(count)
    return np.asarray(scipy.special.ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12)))
