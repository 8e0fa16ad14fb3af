"""What every predictive distribution can do: one frozen object holds the distributions of n rows.

Shapes. Parameters have shape (n,). An argument (a value y or a probability q) is a scalar, (n,): one per row, or
(n, k) or (1, k): k per row; the result is (n,) or (n, k). Vector-valued families say so and use (n, q) targets.
"""

from __future__ import annotations

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn, Self

import numpy as np

from congruence.kernels.arrays import Array, RowFields, align, align_levels, as_rows, equal_rows, require_parameter
from congruence.kernels.distributions import quadrature
from congruence.kernels.distributions.cells import Cells
from congruence.kernels.distributions.expectations import CountTables, polynomial_diagonal
from congruence.kernels.distributions.quadrature import smallest_reaching
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Polynomial
from congruence.kernels.rng import stream

Seed = int | np.random.Generator
Uniforms = Callable[[int, str], Array]
Stated = Literal["all", "cells", "draws"]

_LEAST_IN_CELL = 1e-9  # of the probability, from which rounded targets have a place in their cell
_TAIL_LEVELS = np.array([1e-13, 1e-10, 1e-7, 1e-5, 1e-3, 1e-2, 0.05, 0.15, 0.3])
KNOT_LEVELS = np.concatenate([_TAIL_LEVELS, [0.5], 1.0 - _TAIL_LEVELS[::-1]])


class Distribution(ABC):
    """n predictive distributions, one per row. Subclasses are frozen dataclasses of parameter arrays.

    A family gives ``_log_prob`` and ``_cdf`` at k values per row, (n, k), and the rest only where it knows better:
    quantiles are searched for, and scores and expectations are integrals over the cdf. Samples, point forecasts and
    normals may be vectors: then they have no order, and what needs one is refused.
    """

    is_discrete = False  # whether all mass lies on whole numbers
    states_tails = True  # whether a target beyond all points contradicts it; points alone say nothing of what is there

    def __init_subclass__(cls, **given: Any) -> None:
        """A family is known by its public place: models that hold one are pickled, and outlive our files."""
        super().__init_subclass__(**given)
        room = __name__.rpartition(".")[0]
        if cls.__module__.startswith(f"{room}.") and cls.__name__ in sys.modules[room].__all__:
            cls.__module__ = room

    @property
    def counts(self) -> CountTables | None:
        """The same distributions as counts, with tables of masses; None where not all mass lies on whole numbers."""
        return None

    @property
    def draws(self) -> Array | None:
        """The values (n, l), or (n, l, q), where a row is known by l exchangeable draws alone; else None."""
        return None

    @property
    def members(self) -> int | None:
        """How many draws a row is known by; None where it is known by more."""
        return None if self.draws is None else self.draws.shape[1]

    @property
    def independent_pairs(self) -> Distribution | None:
        """Draws of which two are as far apart as independent ones, where those that give expectations are not."""
        return None

    def exchangeable(self, y: Array) -> Array | None:
        """Targets y (n,) or (n, q) with the draws of their rows, of which any could be observed, (n, 1 + l, ...)."""
        return self.pooled(y)

    def pooled(self, y: Array) -> Array | None:
        """The same, which do not tell the place of the target among the draws; None of more than draws."""
        return None if self.draws is None else np.concatenate([y[:, None], self.draws], axis=1)

    @property
    def stated(self) -> Stated:
        """What a row says of its outcome: "all" of a distribution; the probabilities of some "cells"; or a few "draws".

        What lies between quantiles, or within a bin, is an interpolation of ours: a prediction is not judged by it.
        """
        return "all" if self.draws is None else "draws"

    def cells(self, y: Array, step: float | None = None) -> Cells | None:  # noqa: ARG002
        """Where rows state "cells" alone: these, and those of outcomes y (n,); None where they state more.

        Outcomes that are rounded to a ``step`` may lie in any cell that they could come from (``cells_of_rounded``).
        """
        return None

    def placed(self, y: Array, share: Array, step: float | None = None) -> Array:
        """Outcomes y (n,), those that are known up to a cell at a ``share`` (n,) of its probability, as we interpolate.

        At random shares they follow what is interpolated if the cells are right, whatever the outcomes do within them.
        Those that are rounded to a ``step`` are known up to it; where next to nothing is predicted they stay.
        """
        if (cells := self.cells(y, step)) is not None:
            start, end = cells.range
            return self.quantile(start + share * (end - start))
        if step is None or self.stated != "all":
            return y
        low, high = y - step / 2.0, y + step / 2.0
        start, end = self.cdf(low), self.cdf(high)
        places = np.clip(self.quantile(start + share * (end - start)), low, high)
        return np.where(end - start > _LEAST_IN_CELL, places, y)

    @property
    def quantile_levels(self) -> Array | None:
        """The levels (K,) at which all rows state a quantile, where they state nothing else; None otherwise.

        Between them quantile functions are smooth.
        """
        return None

    @property
    def has_steps(self) -> bool:
        """Whether outcomes are known up to a step of probability alone: those of counts, and those in cells."""
        return self.is_discrete or self.stated == "cells"

    @property
    def mixture(self) -> tuple[Array, Sequence[Distribution]] | None:
        """The weights (n, K) and the K distributions of which each row is a mixture; None where it is none."""
        return None

    @property
    def recalibration(self) -> tuple[Distribution, Any] | None:
        """The distributions before they were recalibrated, and the ``NormalScoreMap``; None where nothing was done."""
        return None

    def tempered(self, temperature: float) -> Self | None:  # noqa: ARG002
        """Returns the laws with probabilities of bins p^(1/T), normalised: wider for T above 1; None without bins.

        It is what a network's softmax at temperature T gives (Guo et al. 2017).
        """
        return None

    def __repr__(self) -> str:
        """The family, how many rows there are, and between what each parameter lies."""
        parts = () if self.mixture is None else self.mixture[1]
        given = {} if parts else self.parameters()
        said = [repr(part) for part in parts] + [f"{name}={_between(values)}" for name, values in given.items()]
        return f"{type(self).__name__}({', '.join([f'rows={len(self)}', *said])})"

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows n."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> Self:
        """The distributions of some rows: a slice, an index array or a boolean mask."""

    @classmethod
    @abstractmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of ``parts`` one after another."""

    def log_prob(self, y: Any) -> Array:
        """Log density (continuous) or log mass (discrete) at y."""
        return self._shaped(self._log_prob, "log_prob", y)

    def cdf(self, y: Any) -> Array:
        """P(Y <= y)."""
        return self._shaped(self._cdf, "cdf", y)

    def cdf_left(self, y: Any) -> Array:
        """P(Y < y): equal to ``cdf`` where there are no atoms."""
        return self._shaped(self._cdf_left, "cdf_left", y)

    def quantile(self, q: Any) -> Array:
        """Smallest y with P(Y <= y) >= q."""
        return self._shaped(self._quantile, "quantile", q, align_levels)

    def crps(self, y: Any) -> Array:
        """Continuous ranked probability score: the integral of (F(t) - 1[y <= t])^2 over t. Lower is better."""
        return self._shaped(self._crps, "crps", y)

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

    @property
    def may_jump(self) -> bool:
        """Whether the family says of itself what P(Y < y) is."""
        return type(self)._cdf_left is not Distribution._cdf_left

    def log_mass(self, low: Array, high: Array) -> Array:
        """log P(low < Y <= high), of one end each a row, (n,)."""
        return quadrature.log_mass(self, low, high)

    def mean(self) -> Array:
        """E Y, shape (n,); by quadrature where a family has no other way."""
        return self._moments_by_quadrature[0]

    def std(self) -> Array:
        """Standard deviation of Y, shape (n,); by quadrature where a family has no other way."""
        return self._moments_by_quadrature[1]

    @cached_property
    def _moments_by_quadrature(self) -> tuple[Array, Array]:
        return quadrature.mean_and_std(self)

    @cached_property
    def _weighted_values(self) -> tuple[Array, Array]:
        """``quadrature.rule``: kept, as quantiles of mixtures are dear."""
        return quadrature.rule(self)

    def sample(self, size: int, seed: Seed = 0) -> Array:
        """``size`` independent draws per row, shape (n, size).

        A number as ``seed`` names a stream of its own, not ``default_rng(seed)``; see ``rng``.
        """
        return self.quantile(stream(seed, "samples").random((len(self), size)))

    def sample_by(self, uniforms: Uniforms, size: int) -> Array:
        """``size`` independent draws per row, (n, size) or (n, size, q), made of the uniform numbers that are given.

        Args:
            uniforms: of a count k and a purpose, numbers inside (0, 1) for each row, (n, k): others for each purpose.
            size: the number of draws.
        """
        return self.quantile(uniforms(size, ""))

    def characteristic_function(self, t: Array) -> Array:
        """E exp(i t Y) at the frequencies t (m,), (n, m), complex; by quadrature where a family has no other way."""
        return quadrature.characteristic_function(self, t)

    def kernel_expectation(self, kernel: Kernel, nodes: Array) -> Array:
        """E k(t_j, Y_i) at nodes t (r,), shape (n, r); by quadrature where a family has no other way."""
        return quadrature.kernel_expectation(self, kernel, nodes)

    def raw_moments(self, order: int) -> Array:
        """E Y_i^k for k = 0, ..., order, shape (n, order + 1); infinite where they do not exist."""
        return quadrature.raw_moments(self, order)

    def kernel_diagonal(self, kernel: Kernel) -> Array:
        """E k(Y_i, Y_i), shape (n,): exact for stationary kernels and polynomials of one target, and for draws."""
        total = np.zeros(len(self))
        for term in kernel.terms:
            if term.is_stationary:
                total += float(term.diagonal(np.zeros((1, self.dimension)))[0])
            elif isinstance(term, Polynomial) and self.dimension == 1:
                total += polynomial_diagonal(term, self.raw_moments(2 * term.degree))
            else:
                total += self._expected_diagonal(term)
        return total

    def _expected_diagonal(self, kernel: Kernel) -> Array:
        return quadrature.kernel_diagonal(self, kernel)

    def breaks(self) -> Array:
        """Values (n, m) at which each row's cdf jumps or bends, where they are known; one that is infinite is none."""
        return self.quantile(np.array([[0.0, 1.0]]))

    def translated(self, by: float) -> Distribution | None:  # noqa: ARG002
        """The distribution of Y + ``by``: far from the origin, waves of values lose digits. None without a location."""
        return None

    def pit_range(self, y: Any) -> tuple[Array, Array]:
        """The ends of the interval over which the probability integral transform of y is uniform if Y is the truth.

        P(Y < y) and P(Y <= y) for a distribution that is known; draws of an unknown one (``Samples``) have wider ends,
        and those of a distribution that states cells are the ends of the cell of y, (n,) or one for all rows.
        """
        if self.stated == "cells":
            cells = self.cells(np.broadcast_to(np.asarray(y, dtype=np.float64), len(self)))
            assert cells is not None
            return cells.range
        return self.cdf_left(y), self.cdf(y)

    def predictive_quantile(self, q: Any) -> Array:
        """What a new draw from the predicted distribution falls below with probability q.

        The quantile of a distribution that is known; draws of an unknown one (``Samples``) leave room for those not
        drawn.
        """
        return self.quantile(q)

    @property
    def dimension(self) -> int:
        """Number of targets q per row: 1 unless the family is vector-valued."""
        return 1

    def marginal(self, column: int) -> Distribution | None:
        """The distribution of one of several targets; None where a family does not have it in closed form."""
        return self if self.dimension == 1 and column == 0 else None

    def whitened(self, y: Array) -> tuple[Array, Distribution] | None:  # noqa: ARG002
        """Targets y (n, q) whitened by mean and covariance, and what they are if the model is the truth.

        None where a family does not have them in closed form.
        """
        return None

    def remarks(self, y: Array) -> dict[str, Array]:  # noqa: ARG002
        """What else a family says of its rows and their targets y (n,), by the name of a column: (n,) each."""
        return {}

    def has_density(self) -> bool:
        """Whether ``log_prob`` exists for these rows; false for point forecasts and for samples without spread."""
        return True

    @property
    def log_score_excess(self) -> float:
        """By how much the mean log score of a few draws exceeds that of the distribution that they are drawn from."""
        return 0.0

    def knots(self) -> Array:
        """Increasing points (n, k) between which ``cdf`` is smooth, over all but 1e-13 of the mass on each side."""
        return np.asarray(self.quantile(KNOT_LEVELS[None, :]))

    def interval(self, tail: float) -> tuple[float, float]:
        """An interval that holds, for every row, all but ``tail`` of its mass on each side.

        Kept beside the parameters: an evaluation asks for the same few, and two quantiles of every row are dear.
        """
        if tail not in self._intervals:
            self._intervals[tail] = float(np.min(self.quantile(tail))), float(np.max(self.quantile(1.0 - tail)))
        return self._intervals[tail]

    @cached_property
    def _intervals(self) -> dict[float, tuple[float, float]]:
        return {}

    def _hold(self, **values: Any) -> None:
        """Set fields of this frozen value, as its constructor has checked them."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _shaped(
        self,
        method: Callable[[Array], Array],
        name: str,
        argument: Any,
        aligned: Callable[[Any, int], tuple[Array, bool]] | None = None,
    ) -> Array:
        """``method``, which takes (n, k), of an argument of any shape; ``name`` for what vectors do not have."""
        if self.dimension > 1:
            refuse(type(self).__name__, name, self.dimension)
        argument, columns = (aligned or align)(argument, len(self))
        return method(argument) if columns else method(argument[:, None])[:, 0]

    @property
    def family(self) -> str:
        """The name of the family in settings: that of the class in snake case, ``student_t``."""
        return snake_case(type(self).__name__)

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """The names of the parameters, in the constructor's order."""
        return tuple(inspect.signature(cls).parameters)

    def parameters(self) -> dict[str, Array]:
        """The parameter arrays by name, for storage and reports."""
        held = vars(self)  # and what was derived from the parameters and is kept beside them
        return {name: np.asarray(held[name]) for name in self.parameter_names() if name in held}


class ByRows(RowFields, Distribution):
    """A family whose dataclass fields hold its rows."""

    _argument_names: ClassVar[dict[str, str]] = {}  # of fields that the constructor calls otherwise

    def parameters(self) -> dict[str, Array]:
        """The parameter arrays by the constructor's names."""
        return {self._argument_names.get(name, name): held for name, held in self._fields().items()}


class Parametric(ByRows):
    """A family of parameters (n,) for each row: checks them and broadcasts them."""

    _above_zero: ClassVar[dict[str, str]] = {}  # parameters above 0, and what is expected of each
    _may_be_infinite: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        family = type(self).__name__
        given = {
            name: as_rows(held, self._argument_names.get(name, name), family, infinite=name in self._may_be_infinite)
            for name, held in self._fields().items()
        }
        self._hold(**dict(zip(given, equal_rows(family, **given), strict=True)))
        for name, expected in self._above_zero.items():
            values = getattr(self, name)
            require_parameter(values > 0, values, self._argument_names.get(name, name), family, expected)
        self._check()

    def _check(self) -> None:
        """Raise InvalidInputError where a parameter is outside its domain otherwise than by not being positive."""

    @property
    def _law(self) -> Sequence[Array]:
        """The parameters in order, as the formulas take them, (n,)."""
        return tuple(self.parameters().values())

    @property
    def _columns(self) -> list[Array]:
        """The same beside values of each row, (n, 1)."""
        return [values[:, None] for values in self._law]


def snake_case(name: str) -> str:
    """The name of a class as settings have it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def refuse(family: str, what: str, dimension: int) -> NoReturn:
    """Raise InvalidInputError: ``what`` needs an order of the targets, which vectors do not have."""
    raise InvalidInputError(
        f"{family}.{what}: is defined for scalar targets, but these rows have {dimension} targets each; "
        "evaluate one target at a time, or use log_prob, crps (the energy score) or kernel scores"
    )


def require_dimension(predictive: Distribution, targets: Array) -> None:
    """Raise InvalidInputError unless targets, (n,) or (n, q), have as many values per row as the predictions."""
    given = 1 if targets.ndim == 1 else targets.shape[1]
    if given != predictive.dimension:
        raise InvalidInputError(
            f"y: has {given} targets per row (shape {targets.shape}), but the {type(predictive).__name__} predictions "
            f"have {predictive.dimension}; evaluate one target at a time, or predict them together "
            "(MultivariateNormal, Samples of shape (n, l, q))"
        )


def target_range(y: Array, distribution: Distribution | None, tail: float) -> tuple[float, float]:
    """Returns an interval with the targets and all but ``tail`` of the mass of every prediction on each side."""
    low, high = float(np.min(y)), float(np.max(y))
    if distribution is not None:
        lower, upper = distribution.interval(tail)
        low, high = min(low, lower), max(high, upper)
    return low, high


def mass_outside(distribution: Distribution, low: float, high: float) -> Array:
    """Returns P(Y < low) + P(Y > high), (n,)."""
    return np.maximum(distribution.cdf_left(low) + (1.0 - distribution.cdf(high)), 0.0)


def _between(values: Any) -> str:
    """ "0.5", or "0.1 to 2.5"."""
    found = np.asarray(values, dtype=np.float64)
    low, high = (f"{end:.4g}" for end in (np.min(found), np.max(found))) if found.size else ("none", "none")
    return low if low == high else f"{low} to {high}"
