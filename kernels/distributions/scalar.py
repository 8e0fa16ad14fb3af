"""What families of one target share: shapes, rows and slicing, and scipy.stats where scipy has the family."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np
import scipy

from congruence.kernels.arrays import Array, align_levels, as_rows, equal_rows, require_parameter
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.base import Distribution, Seed
from congruence.kernels.distributions.expectations import shifted
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.product_forms import waves
from congruence.kernels.rng import stream


class ScalarDistribution(Distribution):
    """Distributions of one target: a family says what it is at k values or levels per row, (n, k), in any shape.

    A family gives ``_log_prob`` and ``_cdf``, and the rest only where it knows better: quantiles are searched for, and
    scores and expectations are integrals over the cdf. Samples and point forecasts may be vectors: then they have no
    order, and what needs one is refused.
    """

    def log_prob(self, y: Any) -> Array:
        return self._shaped(self._log_prob, "log_prob", y)

    def cdf(self, y: Any) -> Array:
        return self._shaped(self._cdf, "cdf", y)

    def cdf_left(self, y: Any) -> Array:
        return self._shaped(self._cdf_left, "cdf_left", y)

    def quantile(self, q: Any) -> Array:
        return self._shaped(self._quantile, "quantile", q, align_levels)

    def crps(self, y: Any) -> Array:
        return self._shaped(self._crps, "crps", y)

    @property
    def may_jump(self) -> bool:
        return type(self)._cdf_left is not ScalarDistribution._cdf_left

    @abstractmethod
    def _log_prob(self, y: Array) -> Array: ...

    @abstractmethod
    def _cdf(self, y: Array) -> Array: ...

    def _cdf_left(self, y: Array) -> Array:
        return self._cdf(y)

    def _quantile(self, q: Array) -> Array:
        """Searched for between values that are doubled until they hold every level inside (0, 1)."""
        outer = np.where(q <= 0.0, -np.inf, np.inf)
        row, column = np.nonzero((q > 0.0) & (q < 1.0))
        level, reach = q[row, column], 1.0
        law = self[row]
        while reach < np.finfo(np.float64).max and np.any((law.cdf(-reach) >= level) | (law.cdf(reach) < level)):
            reach *= 2.0
        ends = np.full(len(row), reach)
        outer[row, column] = smallest_reaching(lambda chosen: law[chosen].cdf, level, -ends, ends, whole=False)
        return outer

    def _crps(self, y: Array) -> Array:
        return quadrature.crps(self, y)


class Parametric(ScalarDistribution):
    """A family whose dataclass fields are parameter arrays (n,): checks them, broadcasts them, slices them."""

    _above_zero: ClassVar[dict[str, str]] = {}  # parameters above 0, and what is expected of each
    _may_be_infinite: ClassVar[tuple[str, ...]] = ()
    _argument_names: ClassVar[dict[str, str]] = {}  # of fields that the constructor calls otherwise

    def __post_init__(self) -> None:
        family = type(self).__name__
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        unbounded = self._may_be_infinite
        given = {
            name: as_rows(getattr(self, name), self._argument_names.get(name, name), family, infinite=name in unbounded)
            for name in names
        }
        self._hold(**dict(zip(names, equal_rows(family, **given), strict=True)))
        for name, expected in self._above_zero.items():
            values = getattr(self, name)
            require_parameter(values > 0, values, self._argument_names.get(name, name), family, expected)
        self._check()

    def _check(self) -> None:
        """Raise InvalidInputError where a parameter is outside its domain otherwise than by not being positive."""

    def parameters(self) -> dict[str, Array]:
        """The parameter arrays by the constructor's names."""
        names = [item.name for item in fields(self)]  # type: ignore[arg-type]
        return {self._argument_names.get(name, name): getattr(self, name) for name in names}

    @property
    def _law(self) -> Sequence[Array]:
        """The parameters in order, as the formulas take them, (n,)."""
        return tuple(self.parameters().values())

    @property
    def _columns(self) -> list[Array]:
        """The same beside values of each row, (n, 1)."""
        return [values[:, None] for values in self._law]

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def __getitem__(self, rows: Any) -> Self:
        return type(self)(*(np.atleast_1d(values[rows]) for values in self.parameters().values()))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        columns = zip(*(part.parameters().values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))


class ScipyFamily(Parametric):
    """A family that scipy.stats has under the name ``_in_scipy``, with parameters of the same names."""

    _in_scipy: ClassVar[str]

    def _scipy(self, *parameters: Any) -> Any:
        return getattr(scipy.stats, self._in_scipy)(**dict(zip(self.parameters(), parameters, strict=True)))

    @property
    def _frozen(self) -> Any:
        return self._scipy(*self._columns)

    def _log_prob(self, y: Array) -> Array:
        return np.asarray(self._frozen.logpdf(y))

    def _cdf(self, y: Array) -> Array:
        return np.asarray(self._frozen.cdf(y))

    def _quantile(self, q: Array) -> Array:
        return np.asarray(self._frozen.ppf(q))

    def _crps(self, y: Array) -> Array:
        """In closed form, and by quadrature in rows where that is not finite."""
        with np.errstate(all="ignore"):
            scores = self._closed_crps(y)
        wrong = ~np.all(np.isfinite(scores), axis=1)
        if np.any(wrong):
            scores[wrong] = quadrature.crps(self[wrong], y[wrong])
        return np.maximum(scores, 0.0)

    @abstractmethod
    def _closed_crps(self, y: Array) -> Array:
        """The CRPS of y (n, k), which may fail to be finite."""

    def mean(self) -> Array:
        return np.asarray(self._scipy(*self._law).mean())

    def std(self) -> Array:
        return np.asarray(self._scipy(*self._law).std())

    def sample(self, size: int, seed: Seed = 0) -> Array:
        return np.asarray(self._frozen.rvs(size=(len(self), size), random_state=stream(seed, "samples")))


class LocationScale(ScipyFamily):
    """loc + scale Z, for a standard distribution of Z that the family gives."""

    loc: Array
    scale: Array

    @abstractmethod
    def _standard_characteristic_function(self, x: Array) -> Array:
        """E exp(i x_ij Z) for x (n, m)."""

    @abstractmethod
    def _standard_moments(self, order: int) -> Array:
        """E Z^k for k = 0, ..., order, (order + 1,) or (n, order + 1)."""

    def characteristic_function(self, t: Array) -> Array:
        t = np.asarray(t)
        standard = self._standard_characteristic_function(np.multiply.outer(self.scale, t))
        return np.asarray(standard * waves(self.loc, t))

    def translated(self, by: float) -> Self:
        return type(self)(**self.parameters() | {"loc": self.loc + by})

    def raw_moments(self, order: int) -> Array:
        return shifted(self.loc, self.scale, self._standard_moments(order))
