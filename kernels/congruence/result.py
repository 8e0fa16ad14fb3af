"""The CCE of one version at m points: values, what a true version would have there, how exact and how certain."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.influence import CongruenceUncertainty
from congruence.kernels.dependence.blocks import t_quantile
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.printed import printed
from congruence.kernels.solvers import NormKind
from congruence.kernels.weights import mean_over

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class CongruenceResult:
    """CCE at m points, with what a perfect model would score there.

    Attributes:
        values: CCE(x_j), (m,).
        noise_floor_values: root of E[CCE(x_j)^2] if the model were the truth, (m,). Exact where the system is factored
            and small; else by the leading spectrum and 16 random probes, see ``noise_floor``.
        error_bound: bound on |computed - exact| CCE at every point, from the solver's residual, the rounding of K and
            the features; exact is what the definition gives for the inputs as they are, in any precision.
        mean_error_bound: bound on |computed - exact| mean CCE, which is often much smaller.
        solution_seconds: wall time of the solve that these values come from (shared by stacked versions).
        iterations: passes over the Gram matrix.
        uncertainty: standard errors and what each reference row contributes; None where it was not asked for.
        bound_kind: how well the bounds are known. "computed": from a residual that was computed. "sampled": from
            residuals or rounding errors at random points with a margin, which is not a proof; so wherever a product
            with more than 256 points was made in single precision.
        weights: what each point counts in means over them, (m,), of mean 1; None where they count equally.
    """

    values: Array = field(repr=False)
    noise_floor_values: Array = field(repr=False)
    error_bound: float
    mean_error_bound: float
    solution_seconds: float
    iterations: int
    uncertainty: CongruenceUncertainty | None = field(default=None, repr=False, kw_only=True)
    bound_kind: NormKind = field(kw_only=True)
    weights: Array | None = field(default=None, repr=False, kw_only=True)

    def __repr__(self) -> str:
        return printed(self, **self._spread_of_mean(), noise_floor=self.noise_floor, excess=self.excess,
                       mean_error_bound=self.mean_error_bound, bound_kind=self.bound_kind,
                       points=len(self.values))  # fmt: skip

    def _spread_of_mean(self) -> dict[str, Any]:
        error = self.standard_error
        return {"mean": self.mean} | ({} if error is None else {"standard_error": error})

    def to_frame(self) -> pd.DataFrame:
        """A table with a row a point, in their order, and the columns of an evaluation's scores.

        ``cce``: CCE there. ``cce_noise_floor``: root of its expected square if the model were the truth.
        ``cce_excess``: root of CCE^2 less the floor's square, not below 0.
        """
        import pandas as pd

        return pd.DataFrame(
            {"cce": self.values, "cce_noise_floor": self.noise_floor_values, "cce_excess": self.excess_values}
        )

    @property
    def mean(self) -> float:
        """Mean CCE over the points (the mean of the root, as the papers report it)."""
        return mean_over(self.values, self.weights)

    @property
    def standard_error(self) -> float | None:
        """Of the mean CCE, with new targets at the same inputs; None where it was not asked for."""
        return None if self.uncertainty is None else self.uncertainty.standard_error

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean CCE that targets at these inputs have on average, by its standard error."""
        known = self.known_uncertainty
        return mean_interval(self.mean, known.standard_error, level, known.blocks)

    def excess_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of ``excess``, from that of the mean CCE."""
        return excess_interval(self.interval(level), self.noise_floor)

    def squared_mean_interval(self, level: float = 0.95) -> tuple[float, float, float]:
        """Mean CCE^2 less the Monte-Carlo term of a finite ensemble, with its confidence interval: value, low, high."""
        known = self.known_uncertainty
        value, reach = known.influence.squared_mean, _quantile(level, known.blocks) * known.squared_standard_error
        return value, value - reach, value + reach

    @property
    def known_uncertainty(self) -> CongruenceUncertainty:
        """``uncertainty``, where it was asked for."""
        if self.uncertainty is None:
            raise InvalidInputError("uncertainty: was not asked for; evaluate with uncertainty=True")
        return self.uncertainty

    @property
    def noise_floor(self) -> float:
        """Root of the expected squares if the model were the truth, meant over the points.

        A mean of roots lies below a root of means: ``CongruenceTest.expected`` is what the mean CCE itself would be.
        """
        return mean_over(self.noise_floor_values, self.weights)

    @property
    def squared_values(self) -> Array:
        """CCE(x_j)^2, whose expectation under a true model is the square of the noise floor, (m,)."""
        return np.asarray(self.values**2)

    @property
    def excess_values(self) -> Array:
        """sqrt(max(0, CCE^2 - floor^2)) point by point, (m,)."""
        return np.asarray(np.sqrt(np.maximum(self.squared_values - self.noise_floor_values**2, 0.0)))

    @property
    def excess(self) -> float:
        """What the mean CCE has beyond the mean noise floor, see ``excess_over``: never above the mean CCE.

        A true version's mean CCE lies a little below its floor, so this is 0 for nearly every true version.
        ``CongruenceTest.expected`` is closer to what it would have: ``excess_over(result.mean, test.expected)``.
        """
        return excess_over(self.mean, self.noise_floor)


def excess_over(mean: float, expected: float) -> float:
    """sqrt(max(0, mean^2 - expected^2)): what a mean CCE has beyond the one that a true version is expected to have.

    Both are means over the same points of the same distance, and independent errors add in squares; so the excess is
    never above the mean CCE, comes back with ``expected`` to it (mean^2 = expected^2 + excess^2), and does not shrink
    as a split grows. Of a true version it is 0 in about half of the splits.
    """
    return math.sqrt(max(0.0, mean * mean - expected * expected))


def excess_interval(interval: tuple[float, float], expected: float) -> tuple[float, float]:
    """Confidence interval of the excess over ``expected`` from the ``interval`` of the mean CCE, of which it rises."""
    low, high = (excess_over(end, expected) for end in interval)
    return low, high


def mean_interval(
    mean: float, standard_error: float, level: float = 0.95, blocks: int | None = None
) -> tuple[float, float]:
    """Confidence interval of a mean CCE by its standard error, Student's t by ``blocks`` of rows."""
    reach = _quantile(level, blocks) * standard_error
    return max(0.0, mean - reach), mean + reach


def _quantile(level: float, blocks: int | None) -> float:
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
    return t_quantile(blocks, level)
