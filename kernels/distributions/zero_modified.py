"""Counts with zeros of their own: zero-inflated and hurdle forms of every family of counts.

Both are mixtures of 0 and another law V of counts: of the family itself (zero-inflated), or of the family given that it
is positive (hurdle).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import require
from congruence.kernels.distributions.binomial import Binomial
from congruence.kernels.distributions.counts import TAIL_MASS, Count
from congruence.kernels.distributions.double_poisson import DoublePoisson
from congruence.kernels.distributions.negative_binomial import NegativeBinomial
from congruence.kernels.distributions.poisson import Poisson
from congruence.kernels.distributions.zero_truncated import ZeroTruncated
from congruence.kernels.kernel_functions import Kernel


class ZeroModified(Count):
    """0 with probability 1 - a, else a law of counts V that the family ``_family`` gives; the last parameter says a."""

    _family: ClassVar[type[Count]]

    def _family_arguments(self) -> list[Array]:
        return list(self.parameters().values())[:-1]

    @property
    @abstractmethod
    def _other(self) -> Count:
        """V."""

    @property
    @abstractmethod
    def _share(self) -> Array:
        """a, (n,)."""

    @property
    @abstractmethod
    def _zero(self) -> Array:
        """P(Y = 0), (n,)."""

    def _check(self) -> None:
        *_, (name, values) = self.parameters().items()
        require((values >= 0) & (values <= 1), values, name, type(self).__name__, "a probability in [0, 1]")
        self._family(*self._family_arguments())

    def log_positive(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._share) + self._other.log_positive())

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        return np.zeros(len(self)), self._other.window(tail)[1]

    def _log_prob(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            zero, share = np.log(self._zero)[:, None], np.log(self._share)[:, None]
        return np.where(y == 0.0, zero, share + self._other.log_prob(y))

    def _cdf(self, y: Array) -> Array:
        return np.where(y < 0.0, 0.0, 1.0 - self._share[:, None] * self._other.survival(y))

    def _survival(self, y: Array) -> Array:
        return np.where(y < 0.0, 1.0, self._share[:, None] * self._other.survival(y))

    def _quantile(self, q: Array) -> Array:
        share = self._share[:, None]
        level = 1.0 - (1.0 - q) / np.where(share > 0.0, share, 1.0)
        positive = q > self._zero[:, None]
        # A level just above P(Y = 0) may round to that of the family's own zero.
        above = np.maximum(self._other.quantile(np.where(positive, np.clip(level, 0.0, 1.0), 0.5)), 1.0)
        return np.asarray(np.where(positive, above, 0.0))

    def mean(self) -> Array:
        return np.asarray(self._share * self._other.mean())

    def std(self) -> Array:
        mean, std = self._other.mean(), self._other.std()
        return np.asarray(np.sqrt(self._share * (std**2 + (1.0 - self._share) * mean**2)))

    def mean_absolute_difference(self) -> Array:
        cross = 2.0 * (1.0 - self._share) * self._other.mean()
        return np.asarray(self._share * (self._share * self._other.mean_absolute_difference() + cross))

    def mean_absolute_deviation(self, y: Array) -> Array:
        share = self._share[:, None]
        return np.asarray((1.0 - share) * np.abs(y) + share * self._other.mean_absolute_deviation(y))

    def characteristic_function(self, t: Array) -> Array:
        """See Distribution: 1 + a (phi - 1)."""
        return np.asarray(1.0 + self._share[:, None] * (self._other.characteristic_function(t) - 1.0))

    def raw_moments(self, order: int) -> Array:
        result = self._share[:, None] * self._other.raw_moments(order)
        result[:, 0] = 1.0
        return np.asarray(result)

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        at_zero = float(np.asarray(kernel.diagonal(np.zeros(1)))[0])
        return np.asarray((1.0 - self._share) * at_zero + self._share * self._other.kernel_diagonal(kernel))

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        share = self._share[:, None]
        at_zero = np.asarray(kernel(np.zeros(1), nodes))
        return np.asarray((1.0 - share) * at_zero + share * self._other.kernel_expectation(kernel, nodes))


class _ZeroInflated(ZeroModified):
    inflation: Array

    @cached_property
    def _other(self) -> Count:
        return self._family(*self._family_arguments())

    @cached_property
    def _share(self) -> Array:
        return 1.0 - self.inflation

    @cached_property
    def _zero(self) -> Array:
        return np.asarray(self.inflation + self._share * np.exp(self._other.log_prob(0.0)))


class _Hurdle(ZeroModified):
    zero_probability: Array

    @cached_property
    def _other(self) -> Count:
        arguments = dict(list(self.parameters().items())[:-1])
        for name in arguments.keys() & {"rate", "mean", "p"}:
            arguments[name] = np.maximum(arguments[name], self._smallest_mean)
        return ZeroTruncated(self._family(*arguments.values()))

    @property
    def _smallest_mean(self) -> Array | float:
        """Stands for 0, towards which a positive count becomes 1: no digit tells the two apart."""
        return 1e-280

    @property
    def _share(self) -> Array:
        return 1.0 - self.zero_probability

    @property
    def _zero(self) -> Array:
        return self.zero_probability


@dataclass(frozen=True)
class ZeroInflatedPoisson(_ZeroInflated):
    """0 with probability ``inflation``, else Poisson(rate), which may be 0 too."""

    _family = Poisson

    rate: Array
    inflation: Array


@dataclass(frozen=True)
class HurdlePoisson(_Hurdle):
    """0 with ``zero_probability``, else Poisson(rate) given that it is positive (1 in the limit of rate 0)."""

    _family = Poisson

    rate: Array
    zero_probability: Array


@dataclass(frozen=True)
class ZeroInflatedBinomial(_ZeroInflated):
    """0 with probability ``inflation``, else Binomial(n, p), which may be 0 too."""

    _family = Binomial

    n: Array
    p: Array
    inflation: Array


@dataclass(frozen=True)
class HurdleBinomial(_Hurdle):
    """0 with ``zero_probability``, else Binomial(n, p) given that it is positive (1 in the limit of p = 0); n >= 1."""

    _family = Binomial

    n: Array
    p: Array
    zero_probability: Array

    def _check(self) -> None:
        super()._check()
        require(self.n >= 1, self.n, "n", "HurdleBinomial", "at least one trial: without trials nothing is positive")


@dataclass(frozen=True, init=False)
class ZeroInflatedNegativeBinomial(_ZeroInflated):
    """0 with probability ``inflation``, else NegativeBinomial(mean, dispersion), which may be 0 too."""

    _family = NegativeBinomial
    _argument_names: ClassVar[dict[str, str]] = NegativeBinomial._argument_names

    mu: Array
    dispersion: Array
    inflation: Array

    def __init__(self, mean: Array, dispersion: Array, inflation: Array) -> None:
        self._hold(mu=mean, dispersion=dispersion, inflation=inflation)
        self.__post_init__()


@dataclass(frozen=True, init=False)
class HurdleNegativeBinomial(_Hurdle):
    """0 with ``zero_probability``, else NegativeBinomial(mean, dispersion) given that it is positive (1 at mean 0)."""

    _family = NegativeBinomial
    _argument_names: ClassVar[dict[str, str]] = NegativeBinomial._argument_names

    mu: Array
    dispersion: Array
    zero_probability: Array

    def __init__(self, mean: Array, dispersion: Array, zero_probability: Array) -> None:
        self._hold(mu=mean, dispersion=dispersion, zero_probability=zero_probability)
        self.__post_init__()


@dataclass(frozen=True, init=False)
class ZeroInflatedDoublePoisson(_ZeroInflated):
    """0 with probability ``inflation``, else DoublePoisson(mean, inverse_dispersion), which may be 0 too."""

    _family = DoublePoisson
    _argument_names: ClassVar[dict[str, str]] = DoublePoisson._argument_names

    mu: Array
    phi: Array
    inflation: Array

    def __init__(self, mean: Array, inverse_dispersion: Array, inflation: Array) -> None:
        self._hold(mu=mean, phi=inverse_dispersion, inflation=inflation)
        self.__post_init__()


@dataclass(frozen=True, init=False)
class HurdleDoublePoisson(_Hurdle):
    """0 with ``zero_probability``, else DoublePoisson(mean, inverse_dispersion) given that it is positive."""

    _family = DoublePoisson
    _argument_names: ClassVar[dict[str, str]] = DoublePoisson._argument_names

    mu: Array
    phi: Array
    zero_probability: Array

    @property
    def _smallest_mean(self) -> Array:
        return np.exp(-575.0 / self.phi)  # the odds of 1 go as mean^phi

    def __init__(self, mean: Array, inverse_dispersion: Array, zero_probability: Array) -> None:
        self._hold(mu=mean, phi=inverse_dispersion, zero_probability=zero_probability)
        self.__post_init__()
