"""Counts with zeros of their own: any counts with more zeros (``ZeroInflated``), or with other ones (``Hurdle``).

Both have P(Y = k) = c P(X = k) for k > 0, for the base distribution X and a factor c of each row, and another
probability of 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from congruence.kernels.arrays import Array, as_rows, require_parameter
from congruence.kernels.distributions.counts import TAIL_MASS, Count


class ZeroModified(Count):
    """A base distribution of counts and a probability (n,), the second field, that says how many zeros there are."""

    base: Count
    _probability_name: ClassVar[str]

    def __post_init__(self) -> None:
        family, name = type(self).__name__, self._probability_name
        given = as_rows(getattr(self, name), name, family)
        require_parameter((given >= 0) & (given <= 1), given, name, family, "a probability in [0, 1]")
        n = max(len(self.base), len(given))
        rows = np.zeros(n, dtype=np.intp)
        self._hold(
            base=self.base if len(self.base) == n else self.base[rows],
            **{name: given if len(given) == n else given[rows]},
        )
        self._check()

    @property
    def _probability(self) -> Array:
        return np.asarray(getattr(self, self._probability_name))

    @property
    @abstractmethod
    def _zero(self) -> Array:
        """P(Y = 0), (n,)."""

    @property
    @abstractmethod
    def _log_factor(self) -> Array:
        """log c, (n,)."""

    @cached_property
    def _always_one(self) -> Array:
        """The rows, (n,), in which X is so seldom positive that it is 1 if it is."""
        return np.zeros(len(self), dtype=bool)

    @property
    def family(self) -> str:
        return f"{super().family}_{self.base.family}"

    def parameters(self) -> dict[str, Array]:
        """The parameters of the base, and the probability."""
        return {**self.base.parameters(), self._probability_name: self._probability}

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Any) -> Self:
        return type(self)(self.base[rows], np.atleast_1d(self._probability[rows]))  # type: ignore[call-arg]

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        base = type(parts[0].base).concatenate([part.base for part in parts])
        return cls(base, np.concatenate([part._probability for part in parts]))  # type: ignore[call-arg]

    @property
    def largest(self) -> Array:
        return self.base.largest

    def window(self, tail: float = TAIL_MASS) -> tuple[Array, Array]:
        """See Count; from the base's window upwards, as a small share of it may be all that is positive."""
        upper = np.maximum(self.base.window(tail)[1], 1.0)
        return self._moved_out((np.zeros(len(self)), upper), np.ones(len(self)), tail)

    def _tabled(
        self, found: Callable[[Array], Array], by_table: Callable[[Self, Array], Array], most: float = 100.0
    ) -> Array:
        """``found`` from c (n, 1), but ``by_table`` for the rows, (n,), in which c is larger than ``most``.

        Differences of numbers of the size of c lose digits.
        """
        factor = np.exp(np.minimum(self._log_factor, 100.0))
        seldom = (factor > most) | self._always_one
        result = found(np.where(seldom, 1.0, factor)[:, None])
        if np.any(seldom):
            result[seldom] = by_table(self[seldom], seldom)
        return result

    def mean(self) -> Array:
        mean = self.base.mean()[:, None]
        return self._tabled(lambda c: np.asarray(c * mean)[:, 0], lambda law, _: Count.mean(law))

    def std(self) -> Array:
        mean, std = self.base.mean()[:, None], self.base.std()[:, None]
        return self._tabled(
            lambda c: np.sqrt(c * std**2 + c * (1.0 - c) * mean**2)[:, 0], lambda law, _: Count.std(law), most=1.0
        )

    def raw_moments(self, order: int) -> Array:
        of_base = np.append(np.zeros((len(self), 1)), self.base.raw_moments(order)[:, 1:], axis=1)
        return self._tabled(
            lambda c: c * of_base + (np.arange(order + 1) == 0), lambda law, _: Count.raw_moments(law, order)
        )

    def characteristic_function(self, t: Array) -> Array:
        of_base = self.base.characteristic_function(t)
        return self._tabled(lambda c: 1.0 + c * (of_base - 1.0), lambda law, _: Count.characteristic_function(law, t))

    def _crps(self, y: Array) -> Array:
        """c CRPS(X, y) + (1 - c) (|y| - c CRPS(X, 0)), as E |X - X'| / 2 = E X - CRPS(X, 0) of counts."""
        score, at_zero = self.base.crps(y), self.base.crps(0.0)[:, None]
        return self._tabled(
            lambda c: np.maximum(c * score + (1.0 - c) * (np.abs(y) - c * at_zero), 0.0),
            lambda law, rows: Count._crps(law, y[rows]),
        )

    def _log_mass(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            zero, one = np.log(self._zero)[:, None], np.log1p(-self._zero)[:, None]
        positive = self._log_factor[:, None] + self.base.log_prob(k)
        positive = np.where(self._always_one[:, None], np.where(k == 1.0, one, -np.inf), positive)
        return np.where(k == 0.0, zero, positive)

    def _at_most(self, k: Array) -> Array:
        return np.asarray(np.maximum(1.0 - self._beyond(k), 0.0))

    def _beyond(self, k: Array) -> Array:
        with np.errstate(divide="ignore"):
            positive = np.exp(self._log_factor[:, None] + np.log(self.base.survival(k)))
        one = np.where(k < 1.0, 1.0 - self._zero[:, None], 0.0)
        return np.where(self._always_one[:, None], one, np.minimum(positive, 1.0 - self._zero[:, None]))


@dataclass(frozen=True, repr=False)
class ZeroInflated(ZeroModified):
    """0 with probability ``inflation``, else the base distribution of counts, which may be 0 too."""

    _probability_name = "inflation"

    base: Count
    inflation: Array

    @cached_property
    def _zero(self) -> Array:
        return np.asarray(self.inflation + (1.0 - self.inflation) * np.exp(self.base.log_prob(0.0)))

    @cached_property
    def _log_factor(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log1p(-self.inflation)


@dataclass(frozen=True, repr=False)
class Hurdle(ZeroModified):
    """0 with ``zero_probability``, else the base distribution given that it is positive: 1 where it hardly ever is."""

    _probability_name = "zero_probability"

    base: Count
    zero_probability: Array

    def _check(self) -> None:
        largest = self.base.largest
        require_parameter(
            largest > 0, largest, "base", "Hurdle", "a distribution that may be positive: at least one trial"
        )

    @property
    def _zero(self) -> Array:
        return self.zero_probability

    @cached_property
    def _positive(self) -> Array:
        """P(X > 0), (n,)."""
        return self.base.survival(0.0)

    @cached_property
    def _always_one(self) -> Array:
        return np.asarray(self._positive == 0.0)

    @cached_property
    def _log_factor(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log1p(-self.zero_probability) - np.log(np.where(self._always_one, 1.0, self._positive))


@dataclass(frozen=True)
class ZeroModifiedFamily:
    """A wrapper around one family of counts, made from the parameters of both: what settings give a name to."""

    kind: type[ZeroModified]
    base: type[Count]

    def parameter_names(self) -> tuple[str, ...]:
        """The names of the parameters of the base, and the wrapper's probability, in order."""
        return (*self.base.parameter_names(), self.kind._probability_name)

    def __call__(self, *values: Any, **named: Any) -> ZeroModified:
        """The distribution with parameters by place or by name."""
        given = dict(zip(self.parameter_names(), values, strict=False)) | named
        probability = given.pop(self.kind._probability_name)
        return self.kind(self.base(**given), probability)  # type: ignore[call-arg]
