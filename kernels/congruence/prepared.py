r"""Conditional congruence: how far predictive distributions are from the truth, point by point.

.. math::  CCE(x) = \| \hat\mu_{Y|x} - \hat\mu_{f(x)} \|_{H_Y} = \| k(x)' (K + n\lambda I)^{-1} \Delta \|_2

(Young et al. 2025, equations 2 and 3, with the model's own samples at the same inputs, so that both conditional mean
embeddings share one system; Delta_i = psi(y_i) - E psi(Y'_i).) Everything about the inputs is prepared once; each model
version is a set of right-hand sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.congruence.expected import ExpectedCongruence, expected_of_result
from congruence.kernels.congruence.influence_sums import congruence_uncertainty
from congruence.kernels.congruence.noise_floor import PROBES, probe_tolerances, probes_of, squared_floor
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import (
    GramSpectrum,
    SpectralSmoother,
    gram_spectrum,
    landmark_spectrum,
    spectral_smoother,
)
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import (
    TargetErrors,
    output_kernel_or_marginal,
    shared_features,
    target_errors,
)
from congruence.kernels.solvers import Solution, Solver
from congruence.kernels.solvers.bounds import SystemBounds
from congruence.kernels.streams import stream
from congruence.kernels.threads import single_threaded_blas

EXACT_FLOOR_ENTRIES = 2000**2  # n more right-hand sides cost six times the factor
Name = TypeVar("Name")


@dataclass(frozen=True)
class SolvedErrors:
    """What the solution of a system says of one version, and what its uncertainty is made of.

    Attributes:
        error: Delta of the n reference rows, with its variance.
        smoothed: e = k(x)' A^-1 Delta, (m, r).
        result: CCE with its noise floor and certificate.
    """

    error: TargetErrors = field(repr=False)
    smoothed: Array = field(repr=False)
    result: CongruenceResult

    def with_uncertainty(self, smoother: SpectralSmoother, blocks: DependentBlocks | None = None) -> CongruenceResult:
        """The result with standard errors and the influence of each reference row.

        ``smoother`` is the system's, ``blocks`` are of rows that depend on each other.
        """
        with single_threaded_blas():
            error = self.error
            known = congruence_uncertainty(
                smoother, error.delta, self.smoothed, sampling_variance=error.sampling_variance, blocks=blocks
            )
        return replace(self.result, uncertainty=known)


@dataclass(frozen=True)
class PreparedCongruence:
    """A reference split with its system prepared: evaluates as many model versions as wanted (from ``prepare``).

    ``dependence`` says which rows may depend on each other; None where all are independent.
    """

    operator: RegularizedGram
    solver: Solver
    state: Any = field(repr=False)
    query: Any | None = field(repr=False)
    kernel_maximum: float
    weights: Array | None = field(default=None, repr=False)
    """What each point counts in means over them, (m,), of mean 1; None where they count equally."""
    dependence: RowDependence | None = field(default=None, repr=False)

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
        """CCE of one model version; see ``conditional_congruence_error`` and ``congruence_errors``."""
        versions = {"": predictive}
        return self.congruence_errors(
            y, versions, output_kernel=output_kernel, samples=samples, seed=seed, uncertainty=uncertainty
        )[""]

    def expected_congruence(
        self,
        y: Any,
        predictive: Distribution,
        result: CongruenceResult,
        *,
        output_kernel: Kernel | None = None,
        seed: int = 0,
    ) -> ExpectedCongruence:
        """What the mean of ``result`` would be if ``predictive`` were the truth: on average, and its 95 % band.

        Args:
            y: targets of the reference split, (n,) or (n, q), of which only the range and variance are used.
            predictive: the version's predictive distributions at the reference inputs, n rows.
            result: its CCE, under the same ``output_kernel``.
            output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
            seed: of the draws.

        Raises:
            InvalidInputError: y or the version does not fit the reference split, or the result is of other points.
        """
        y = require_targets(y, "y", self.operator.n)
        if len(predictive) != self.operator.n:
            raise InvalidInputError(
                f"predictive: {len(predictive)} rows for {self.operator.n} reference rows; give one law per row"
            )
        points = self.operator.n if self.query is None else len(self.query)
        if len(result.values) != points:
            raise InvalidInputError(
                f"result: of {len(result.values)} points, expected the {points} of this preparation; evaluate with it"
            )
        kernel = output_kernel_or_marginal(output_kernel, y)
        return expected_of_result(result, self.smoother, y, predictive, kernel, seed=seed)

    def congruence_errors(
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

        What is said of a version is the same in whatever company, up to the solver's tolerance.

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
        kernel = output_kernel_or_marginal(output_kernel, y)
        errors = self._errors_of(y, versions, kernel, samples, seed)
        solved = self.solve_versions(errors, seed=seed)
        if not uncertainty:
            return {name: version.result for name, version in solved.items()}
        blocks = {name: version_blocks(self.dependence, y, law) for name, law in versions.items()}
        return {name: version.with_uncertainty(self.smoother, blocks[name]) for name, version in solved.items()}

    def solve_versions(
        self,
        errors: Mapping[Name, TargetErrors],
        *,
        seed: int = 0,
        uses: Mapping[Name, str] | None = None,
        probes: int | None = None,
        positions: Array | None = None,
    ) -> dict[Name, SolvedErrors]:
        """One solve for the target errors of many versions, or draws of one, each with probes of its own.

        Args:
            errors: by name, n rows each.
            seed: of the noise floor's probes.
            uses: what tells the probes of repeats apart, by name.
            probes: to take for the noise floor; by default none where it is read off a factor, else 16.
            positions: of the reference rows in their split, by which they have their probes; all of it by default.
        """
        exact = probes is None and self._floor_is_exact
        count = 0 if exact else probes or PROBES
        rows = np.arange(self.operator.n) if positions is None else positions

        def drawn(name: Name, error: TargetErrors) -> Array:
            return probes_of(error.variance, rows, seed, count=count, use=uses[name] if uses else "")

        with single_threaded_blas():
            rhs, limits, errors = self._right_hand_sides(errors, count, drawn)
        smoothed, solution = self.smooth(rhs, tolerances=limits, groups=self._groups(errors, count))
        found: dict[Name, SolvedErrors] = {}
        start = 0
        for name, error in errors.items():
            stop = start + error.delta.shape[1]
            if exact:
                floor = self._squared_weights @ error.variance
            else:
                columns = slice(stop, stop + count)
                floor = squared_floor(error.variance, self.smoother, rhs[:, columns], smoothed[:, columns])
            result = self._result(error, smoothed[:, start:stop], floor, solution, slice(start, stop))
            found[name] = SolvedErrors(error, smoothed[:, start:stop], result)
            start = stop + count
        return found

    def smooth(
        self, rhs: Array, *, tolerances: Array | None = None, groups: Sequence[slice] | None = None
    ) -> tuple[Array, Solution]:
        """k(x)' A^-1 rhs at the query points, (m, c), for right-hand sides (n, c), and the solution it comes from.

        ``tolerances`` (c,) are residual norms that end a column, NaN for the solver's own, which the columns of each of
        the ``groups`` share among themselves.
        """
        solution = self.solver.solve(self.state, rhs, tolerances=tolerances, groups=groups)
        if self.query is not None:
            return self.operator.cross(self.query, solution.value), solution
        # At the reference points K Z = B - n lambda Z - R costs no pass.
        smoothed = self.operator.shift * solution.value
        np.subtract(rhs, smoothed, out=smoothed)
        smoothed -= solution.residual
        return smoothed, solution

    def _right_hand_sides(
        self, errors: Mapping[Name, TargetErrors], probes: int, drawn: Callable[[Name, TargetErrors], Array]
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
                rhs[:, columns] = drawn(name, error)
                limits[columns] = probe_tolerances(rhs[:, columns], self.smoother)
            start = stop + probes
        return rhs, limits, viewed

    @staticmethod
    def _groups(errors: Mapping[Name, TargetErrors], probes: int) -> list[slice]:
        """The columns of each version."""
        ends = np.cumsum([0, *(error.delta.shape[1] + probes for error in errors.values())])
        return [slice(int(start), int(stop)) for start, stop in pairwise(ends)]

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
        bounds = self.bounds.of(error.delta, smoothed, solution, columns)
        if self.weights is not None:
            bounds = bounds.weighted(float(np.mean(self.weights**2)))
        features = error.feature_error.bound(values - bounds.at_point, self.kernel_maximum, self.operator.shift)
        return CongruenceResult(
            values,
            np.sqrt(squared_floor),
            bounds.at_point + features,
            bounds.in_mean + features,
            solution.seconds,
            solution.iterations,
            bound_kind="sampled" if error.feature_error.kind == "sampled" else bounds.kind,
            weights=self.weights,
        )

    @property
    def _floor_is_exact(self) -> bool:
        points = self.operator.n if self.query is None else len(self.query)
        return self.solver.factorizes and points * self.operator.n <= EXACT_FLOOR_ENTRIES

    @cached_property
    def bounds(self) -> SystemBounds:
        """What is known of the errors of this system's solutions."""
        return SystemBounds(self.operator, self.query, self.kernel_maximum)

    @cached_property
    def spectrum(self) -> GramSpectrum:
        """The leading spectrum of the Gram matrix, on some of the solver's landmarks where it has any."""
        low_rank = self.solver.low_rank(self.state)
        return gram_spectrum(self.operator) if low_rank is None else landmark_spectrum(self.operator, low_rank.leading)

    @cached_property
    def smoother(self) -> SpectralSmoother:
        """k(x)' A^-1 at the query points in the leading directions, for what asks thousands of smoothings of it."""
        return replace(spectral_smoother(self.spectrum, self.query), weights=self.weights)

    @cached_property
    def _squared_weights(self) -> Array:
        """[a_i(x_j)^2], (m, n): E[CCE(x_j)^2] = sum_i a_i(x_j)^2 v_i if the model is the truth."""
        weights, _ = self.smooth(np.eye(self.operator.n))
        return np.asarray(weights**2)
