r"""Conditional congruence: how far predictive distributions are from the truth, point by point.

.. math::  CCE(x) = \| \hat\mu_{Y|x} - \hat\mu_{f(x)} \|_{H_Y} = \| k(x)' (K + n\lambda I)^{-1} \Delta \|_2

(Young et al. 2025, equations 2 and 3, with the model's own samples at the same inputs, so that both conditional mean
embeddings share one system; Delta_i = psi(y_i) - E psi(Y'_i).) Everything about the inputs is prepared once; each model
version is a set of right-hand sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.special import ndtri

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.diagnostics import warn_if_nearly_constant
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.functions import Kernel
from congruence.kernels.influence import CongruenceUncertainty, congruence_uncertainty
from congruence.kernels.noise_floor import PROBES, draw_probes, squared_floor
from congruence.kernels.operators import Operator, RegularizedGram
from congruence.kernels.rounding import UNIT, CheckedPoints, float64_rounding
from congruence.kernels.solvers import NormKind, Solution, Solver, certificate, default_solver, weakest_kind
from congruence.kernels.spectrum import (
    GramSpectrum,
    SpectralSmoother,
    gram_spectrum,
    landmark_spectrum,
    spectral_smoother,
)
from congruence.kernels.streams import stream
from congruence.kernels.target_errors import (
    TargetErrors,
    embedded_targets,
    marginal_kernel,
    shared_features,
    target_errors,
)
from congruence.kernels.threads import single_threaded_blas

EXACT_FLOOR_ENTRIES = 2000**2  # n more right-hand sides cost six times the factor
Name = TypeVar("Name")


@dataclass(frozen=True)
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
        bound_kind: how well the bounds are known. "computed": from a residual that was computed. "bound": proven,
            without it. "sampled": from residuals or rounding errors at random points with a margin, which is not a
            proof; so wherever a product with more than 256 points was made in single precision.
    """

    values: Array = field(repr=False)
    noise_floor_values: Array = field(repr=False)
    error_bound: float
    mean_error_bound: float
    solution_seconds: float
    iterations: int
    uncertainty: CongruenceUncertainty | None = field(default=None, repr=False, kw_only=True)
    bound_kind: NormKind = field(kw_only=True)

    @property
    def mean(self) -> float:
        """Mean CCE over the points (the mean of the root, as the papers report it)."""
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float | None:
        """Of the mean CCE, with new targets at the same inputs; None where it was not asked for."""
        return None if self.uncertainty is None else self.uncertainty.standard_error

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean CCE that targets at these inputs have on average, by its standard error."""
        reach = _quantile(level) * self._known_uncertainty.standard_error
        return max(0.0, self.mean - reach), self.mean + reach

    def excess_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the excess: that of the mean CCE^2 less the floor's square, and its root."""
        reach = _quantile(level) * self._known_uncertainty.squared_standard_error
        square = float(np.mean(self.squared_values) - np.mean(self.noise_floor_values**2))
        return float(np.sqrt(max(0.0, square - reach))), float(np.sqrt(max(0.0, square + reach)))

    def squared_mean_interval(self, level: float = 0.95) -> tuple[float, float, float]:
        """Mean CCE^2 less the Monte-Carlo term of a finite ensemble, with its confidence interval: value, low, high."""
        known = self._known_uncertainty
        value, reach = known.influence.squared_mean, _quantile(level) * known.squared_standard_error
        return value, value - reach, value + reach

    @property
    def _known_uncertainty(self) -> CongruenceUncertainty:
        if self.uncertainty is None:
            raise InvalidInputError("uncertainty: was not asked for; evaluate with uncertainty=True")
        return self.uncertainty

    @property
    def noise_floor(self) -> float:
        """Root of the expected squares if the model were the truth, meant over the points.

        A mean of roots lies below a root of means: ``CongruenceTest.expected`` is what the mean CCE itself would be.
        """
        return float(np.mean(self.noise_floor_values))

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
        """sqrt(max(0, mean CCE^2 - mean floor^2)): the part of the error that is the model's, at any split size."""
        return float(np.sqrt(max(0.0, float(np.mean(self.squared_values) - np.mean(self.noise_floor_values**2)))))


class SolverBounds(NamedTuple):
    """Bounds on the error of a norm at every point and in its mean over them, and how they are known."""

    at_point: float
    in_mean: float
    kind: NormKind


def _is_double(dtype: Any) -> bool:
    return bool(np.dtype(dtype).itemsize > 4)


@dataclass(frozen=True)
class PreparedCongruence:
    """A reference split with its system prepared: evaluates as many model versions as wanted (from ``prepare``)."""

    operator: Operator
    solver: Solver
    state: Any = field(repr=False)
    query: Any | None = field(repr=False)
    kernel_maximum: float

    def conditional_congruence_error(
        self,
        y: Any,
        predictive: Distribution,
        *,
        output_kernel: Kernel | None = None,
        samples: int | None = None,
        seed: int = 0,
        uncertainty: bool = False,
    ) -> CongruenceResult:
        """CCE of one model version; see ``conditional_congruence_error`` and ``evaluate``."""
        versions = {"": predictive}
        return self.evaluate(
            y, versions, output_kernel=output_kernel, samples=samples, seed=seed, uncertainty=uncertainty
        )[""]

    def evaluate(
        self,
        y: Any,
        versions: Mapping[str, Distribution],
        *,
        output_kernel: Kernel | None = None,
        samples: int | None = None,
        seed: int = 0,
        uncertainty: bool = False,
    ) -> dict[str, CongruenceResult]:
        """CCE of many model versions in one solve: their right-hand sides are stacked.

        Args:
            y: targets of the reference split, (n,) or (n, q).
            versions: predictive distributions of each version at the reference inputs, n rows each.
            output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
            samples: replace exact kernel means by this many draws per point, as the papers do.
            seed: of the draws and of the noise floor's probes.
            uncertainty: with standard errors and the influence of each reference row.

        Raises:
            InvalidInputError: y or a version does not fit the reference split.
        """
        y = require_targets(y, "y", self.operator.n)
        kernel = marginal_kernel(y) if output_kernel is None else output_kernel
        errors = self._errors_of(y, versions, kernel, samples, seed)
        return self.evaluate_errors(errors, rng=stream(seed, "noise floor probes"), uncertainty=uncertainty)

    def evaluate_errors(
        self,
        errors: Mapping[Name, TargetErrors],
        *,
        rng: np.random.Generator,
        probes: int | None = None,
        uncertainty: bool = False,
    ) -> dict[Name, CongruenceResult]:
        """CCE from the target errors of many versions, or draws of one, in one solve.

        Args:
            errors: by name, n rows each.
            rng: of the noise floor's probes.
            probes: to take for the noise floor; by default none where it is read off a factor, else 16.
            uncertainty: with standard errors and the influence of each reference row.
        """
        exact = probes is None and self._floor_is_exact
        probes = 0 if exact else probes or PROBES
        with single_threaded_blas():
            rhs, limits, errors = self._right_hand_sides(errors, probes, rng)
        smoothed, solution = self.smooth(rhs, tolerances=limits)
        results: dict[Name, CongruenceResult] = {}
        start = 0
        for name, error in errors.items():
            stop = start + error.delta.shape[1]
            if exact:
                floor = self._squared_weights @ error.variance
            else:
                columns = slice(stop, stop + probes)
                floor = squared_floor(error.variance, self.smoother, rhs[:, columns], smoothed[:, columns])
            result = self._result(error, smoothed[:, start:stop], floor, solution, slice(start, stop))
            if uncertainty:
                result = replace(result, uncertainty=self._uncertainty(error, smoothed[:, start:stop]))
            results[name] = result
            start = stop + probes
        return results

    def smooth(self, rhs: Array, *, tolerances: Array | None = None) -> tuple[Array, Solution]:
        """k(x)' A^-1 rhs at the query points, (m, c), for right-hand sides (n, c), and the solution it comes from.

        ``tolerances`` (c,) are residual norms that end a column, NaN for the solver's own.
        """
        solution = self.solver.solve(self.state, rhs, tolerances=tolerances)
        if self.query is not None:
            return self.operator.cross(self.query, solution.value), solution
        # At the reference points K Z = B - n lambda Z - R costs no pass.
        smoothed = self.operator.shift * solution.value
        np.subtract(rhs, smoothed, out=smoothed)
        smoothed -= solution.residual
        return smoothed, solution

    def _right_hand_sides(
        self, errors: Mapping[Name, TargetErrors], probes: int, rng: np.random.Generator
    ) -> tuple[Array, Array, dict[Name, TargetErrors]]:
        """Delta and probes of each version side by side, when to stop on them, and ``errors`` as views of them.

        A caller that lets go of its own has every Delta in memory once.
        """
        viewed: dict[Name, TargetErrors] = {}
        rhs = np.empty((self.operator.n, sum(error.delta.shape[1] + probes for error in errors.values())))
        limits = np.full(rhs.shape[1], np.nan)
        start = 0
        for name, error in errors.items():
            stop = start + error.delta.shape[1]
            rhs[:, start:stop] = error.delta
            viewed[name] = replace(error, delta=rhs[:, start:stop])
            if probes:
                columns = slice(stop, stop + probes)
                limits[columns] = draw_probes(error.variance, self.smoother, rng, out=rhs[:, columns])
            start = stop + probes
        return rhs, limits, viewed

    def _errors_of(
        self, y: Array, versions: Mapping[str, Distribution], kernel: Kernel, samples: int | None, seed: int
    ) -> dict[str, TargetErrors]:
        with single_threaded_blas():
            return {name: self._errors(y, model, kernel, samples, seed) for name, model in versions.items()}

    def _errors(self, y: Array, model: Distribution, kernel: Kernel, samples: int | None, seed: int) -> TargetErrors:
        if samples is not None and len(model) == len(y):
            features = shared_features(kernel, y, model)  # of the model, so that the range does not hang on the draws
            rng = stream(seed, "samples of predictions")
            return target_errors(y, Samples(model.sample(samples, seed=rng)), kernel, features=features)
        return target_errors(y, model, kernel)

    def _result(
        self, error: TargetErrors, smoothed: Array, squared_floor: Array, solution: Solution, columns: slice
    ) -> CongruenceResult:
        values = np.sqrt(np.einsum("ij,ij->i", smoothed, smoothed))
        bounds = self._solver_bounds(error.delta, smoothed, solution, columns)
        features = self._feature_bound(error, values, bounds.at_point)
        return CongruenceResult(
            values,
            np.sqrt(squared_floor),
            bounds.at_point + features,
            bounds.in_mean + features,
            solution.seconds,
            solution.iterations,
            bound_kind=bounds.kind,
        )

    def _uncertainty(self, error: TargetErrors, smoothed: Array) -> CongruenceUncertainty:
        with single_threaded_blas():
            return congruence_uncertainty(
                self.smoother, error.delta, smoothed, sampling_variance=error.sampling_variance
            )

    def _solver_bounds(self, rhs: Array, smoothed: Array, solution: Solution, columns: slice) -> SolverBounds:
        """Bounds on the errors of ``smoothed`` = k(x)'Z (m, c), for the right-hand sides and columns it comes from.

        With the residual R = B - A Z of the exact K, known as R^ + F: k(x)'Z is off by k(x)' A^-1 R. At the reference
        points B - n lambda Z - R^ is off by F - K A^-1 R = n lambda A^-1 F - K A^-1 R^.
        """
        value = solution.value[:, columns]
        read, unread = solution.residual_norm(columns) - solution.unread_norm(columns), solution.unread_norm(columns)
        per_root, kind = self._reference_rounding(rhs, value, solution, columns)
        reach = float(np.sqrt(self.operator.n)) * self._root_mean_diagonal
        rounding = per_root * reach + 8.0 * UNIT * float(np.linalg.norm(rhs))  # of ||F||, with that of B - n lambda Z
        if self.query is not None:
            at_query, query_kind = self._query_rounding(smoothed, value)
            bound = certificate(self.operator, read + unread + rounding, self.kernel_maximum)
            bound += at_query * float(np.sqrt(self.kernel_maximum))
            return SolverBounds(bound, bound, weakest_kind((kind, query_kind, solution.norm_kind)))
        # Without R, B - n lambda Z is off by n lambda A^-1 R, whose rows are only known to be shorter than ||R||.
        bound = certificate(self.operator, read + rounding, self.kernel_maximum) + unread
        bound += min(per_root * float(np.sqrt(self.kernel_maximum)), rounding)
        # Over all reference points the errors add up to ||K A^-1 R||_F or ||n lambda A^-1 R||_F <= ||R||_F.
        in_mean = min(bound, (read + unread + rounding) / float(np.sqrt(self.operator.n)))
        return SolverBounds(bound, in_mean, weakest_kind((kind, solution.norm_kind)))

    def _reference_rounding(
        self, rhs: Array, value: Array, solution: Solution, columns: slice
    ) -> tuple[float, NormKind]:
        """Bound on |F_i| / sqrt(k(x_i, x_i)), F what rounding made of the residual, and how it is known."""
        passes = max(1, solution.iterations)  # each adds the rounding of its own step
        proven = passes * float64_rounding(self.operator, value, self.operator.rounding())
        if _is_double(solution.dtype):
            return proven, "computed"
        checked = self._checked_reference
        exact = checked.gram @ value
        known = rhs[checked.rows] - self.operator.shift * value[checked.rows]
        known -= solution.residual[checked.rows, columns]
        if solution.unread_norms is not None:
            # A residual that was not computed is known for the products of single precision.
            settled = ~solution.residual[:, columns].any(axis=0)
            known[:, settled] = self.operator.cross(checked.points, value[:, settled])
        return proven + checked.largest(known - exact), "computed" if checked.complete else "sampled"

    def _query_rounding(self, smoothed: Array, value: Array) -> tuple[float, NormKind]:
        """Bound on |computed - exact| k(x)'Z / sqrt(k(x, x)) at the query points, and how it is known."""
        proven = float64_rounding(self.operator, value, self.operator.rounding(self.query))
        if _is_double(self.operator.dtype):
            return proven, "computed"
        checked = self._checked_query
        errors = smoothed[checked.rows] - checked.gram @ value
        return proven + checked.largest(errors), "computed" if checked.complete else "sampled"

    @cached_property
    def _checked_reference(self) -> CheckedPoints:
        return CheckedPoints.of_reference(self.operator)

    @cached_property
    def _checked_query(self) -> CheckedPoints:
        return CheckedPoints.of_query(self.operator, self.query)

    @cached_property
    def _root_mean_diagonal(self) -> float:
        return float(np.sqrt(np.mean(self.operator.gram_diagonal(), dtype=np.float64)))

    def _feature_bound(self, error: TargetErrors, values: Array, solver_bound: float) -> float:
        return error.feature_error.bound(values - solver_bound, self.kernel_maximum, self.operator.shift)

    @property
    def _floor_is_exact(self) -> bool:
        points = self.operator.n if self.query is None else len(self.query)
        return self.solver.factorizes and points * self.operator.n <= EXACT_FLOOR_ENTRIES

    @cached_property
    def spectrum(self) -> GramSpectrum:
        """The leading spectrum of the Gram matrix, on some of the solver's landmarks where it has any."""
        low_rank = self.solver.low_rank(self.state)
        return gram_spectrum(self.operator) if low_rank is None else landmark_spectrum(self.operator, low_rank.leading)

    @cached_property
    def smoother(self) -> SpectralSmoother:
        """k(x)' A^-1 at the query points in the leading directions, for what asks thousands of smoothings of it."""
        return spectral_smoother(self.spectrum, self.query)

    @cached_property
    def _squared_weights(self) -> Array:
        """[a_i(x_j)^2], (m, n): E[CCE(x_j)^2] = sum_i a_i(x_j)^2 v_i if the model is the truth."""
        weights, _ = self.smooth(np.eye(self.operator.n))
        return np.asarray(weights**2)


def _quantile(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level: is {level}, expected a probability inside (0, 1)")
    return float(ndtri((1.0 + level) / 2.0))


class Prepare(Protocol):
    """Prepares reference inputs where they are to be solved: ``prepare`` in this process, or on a Dask cluster."""

    def __call__(self, x: Any, *, query: Any | None, input_kernel: Kernel, regularization: float) -> PreparedCongruence:
        """See ``prepare``."""


def prepare(
    x: Any,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    regularization: float = 0.1,
    solver: Solver | None = None,
    operator: Operator | None = None,
) -> PreparedCongruence:
    """Do once what depends on the inputs alone: check them, choose a solver, factor or precondition.

    Args:
        x: reference inputs (n, d): NumPy or CuPy; their dtype is the arithmetic's.
        query: points (m, d) at which to evaluate, labels not needed; by default the reference points.
        input_kernel: k_X.
        regularization: lambda; the system is K + n lambda I.
        solver: by default Cholesky for small n, preconditioned conjugate gradients above.
        operator: K + n lambda I where it lives elsewhere (on a Dask cluster); x is then only its description.

    Warns:
        NearlyConstantKernelWarning: ``input_kernel`` hardly depends on its inputs.

    Raises:
        InvalidInputError: values not finite, one point, another number of features in ``query``, or lambda <= 0.
    """
    if not regularization > 0 or not np.isfinite(regularization):
        raise InvalidInputError(f"regularization: lambda is {regularization}, expected a positive number such as 0.1")
    if operator is None:
        operator = RegularizedGram(require_matrix(x, "x"), input_kernel, regularization)
    if operator.n < 2:
        raise InvalidInputError("x: one reference point cannot define a conditional law; give at least two rows")
    with np.errstate(over="ignore"):  # what overflows is named below
        maximum = _largest_diagonal(operator, operator.gram_diagonal(), "x")
    warn_if_nearly_constant(operator)
    if query is not None:
        query = require_matrix(query, "query")
        if query.shape[1] != operator.dimension:
            raise InvalidInputError(
                f"query: {query.shape[1]} features, but the reference inputs have {operator.dimension}; "
                "embed both with the same encoder"
            )
        with np.errstate(over="ignore"):
            maximum = _largest_diagonal(operator, input_kernel.diagonal(query.astype(operator.dtype)), "query")
    if solver is None:
        solver = default_solver(operator)
    return PreparedCongruence(operator, solver, solver.prepare(operator), query, maximum)


def _largest_diagonal(operator: Operator, diagonal: Any, name: str) -> float:
    """max k(x, x), where no sum of n such values overflows.

    Raises:
        InvalidInputError: the kernel is too large for the arithmetic.
    """
    largest = float(diagonal.max())
    limit = float(np.finfo(operator.dtype).max) / operator.n
    if largest <= limit:
        return largest
    row = int(diagonal.argmax())  # of NaN, too
    raise InvalidInputError(
        f"{name}: k(x, x) is {largest:.3g} at row {row} under {type(operator.kernel).__name__}, and "
        f"{np.dtype(operator.dtype)} sums {operator.n:,} values of at most {limit:.3g}; scale the features (each to a "
        "standard deviation of 1, or every row to norm 1), or use float64 inputs"
    )


def conditional_congruence_error(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    solver: Solver | None = None,
    samples: int | None = None,
    seed: int = 0,
    uncertainty: bool = False,
) -> CongruenceResult:
    """Conditional Congruence Error of one model on a labelled split (Young et al. 2025, equation 3).

    Args:
        x: reference inputs, usually embeddings, (n, d).
        y: their targets, (n,) or (n, q).
        predictive: the model's predictive distributions at x, n rows.
        query: points (m, d) at which to evaluate, labels not needed; by default x itself.
        input_kernel: k_X, for example ``Polynomial(degree=3, gamma=1.0, coef0=1.0)`` on unit-norm embeddings.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        regularization: lambda; the system is K + n lambda I.
        solver: by default Cholesky for small n, preconditioned conjugate gradients above.
        samples: replace exact kernel means by this many draws per point, as the papers do.
        seed: of the draws and of the noise floor's probes.
        uncertainty: with the standard error of the mean (``result.standard_error``, ``result.interval()``).

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare(x, query=query, input_kernel=input_kernel, regularization=regularization, solver=solver)
    return prepared.conditional_congruence_error(
        y, predictive, output_kernel=output_kernel, samples=samples, seed=seed, uncertainty=uncertainty
    )


@dataclass(frozen=True)
class DiscrepancyResult:
    """MCMD at m points.

    Attributes:
        values: MCMD(x_j), (m,).
        error_bound: bound on |computed - exact| MCMD at every point, and so in the mean.
        bound_kind: how well it is known, see ``CongruenceResult``.
        output_kernel: k_Y.
    """

    values: Array = field(repr=False)
    error_bound: float
    bound_kind: NormKind
    output_kernel: Kernel

    @property
    def mean(self) -> float:
        """Mean MCMD over the points."""
        return float(np.mean(self.values))


def maximum_conditional_mean_discrepancy(
    x: Any,
    y: Any,
    x_prime: Any,
    y_prime: Any,
    query: Any,
    *,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    regularization_prime: float | None = None,
    solver: Solver | None = None,
) -> DiscrepancyResult:
    """MCMD(x) between two samples with different inputs, sizes and lambdas, at m query points.

    || k_X(x)' (K + n lambda I)^-1 psi(y) - k_X'(x)' (K' + n' lambda' I)^-1 psi(y') || (Young et al. 2024, equation 4).
    The samples swapped, each with its lambda, have the same MCMD.

    Args:
        x, y: the first sample, (n, d) and (n,) or (n, q).
        x_prime, y_prime: the second one, (n', d) and (n',) or (n', q).
        query: points (m, d).
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var) of the targets of both samples together.
        regularization: lambda of the first system.
        regularization_prime: lambda' of the second; the first's by default.
        solver: for both systems; chosen by size if not given.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    y, y_prime = require_targets(y, "y"), require_targets(y_prime, "y_prime")
    if y.shape[1:] != y_prime.shape[1:]:
        raise InvalidInputError(
            f"y_prime: targets of shape {y_prime.shape}, but y has {y.shape}; both samples need the same target columns"
        )
    pooled = np.concatenate([y, y_prime])
    kernel = marginal_kernel(pooled) if output_kernel is None else output_kernel
    psi, error = embedded_targets(kernel, pooled)
    embeddings, bounds, weights = [], [], 0.0
    second = regularization if regularization_prime is None else regularization_prime
    for inputs, targets, rhs, name, value in (
        (x, y, psi[: len(y)], "y", regularization),
        (x_prime, y_prime, psi[len(y) :], "y_prime", second),
    ):
        prepared = prepare(inputs, query=query, input_kernel=input_kernel, regularization=value, solver=solver)
        require_targets(targets, name, prepared.operator.n)
        smoothed, solution = prepared.smooth(rhs)
        embeddings.append(smoothed)
        bounds.append(prepared._solver_bounds(rhs, smoothed, solution, slice(0, rhs.shape[1])))
        # |a|_1 <= sqrt(n) |a|_2 <= sqrt(k(x, x) / (4 lambda)), see ``certificate``.
        weights += float(np.sqrt(prepared.kernel_maximum / (4.0 * value)))
    values = np.linalg.norm(embeddings[0] - embeddings[1], axis=1)
    squared = error * weights**2  # of MCMD^2, as k_Y is off by no more than the features' error
    missed = float(np.max(np.minimum(np.sqrt(squared), squared / np.maximum(values, np.finfo(float).tiny))))
    solvers = sum(bound.at_point for bound in bounds)
    return DiscrepancyResult(values, solvers + missed, weakest_kind(bound.kind for bound in bounds), kernel)
