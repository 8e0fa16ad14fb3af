"""What depends on the inputs alone, done once: reference inputs checked, a solver chosen, the system factored."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, require_matrix
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.points import PlacedPoints
from congruence.kernels.gram.variation import operator_variation, warn_if_nearly_constant
from congruence.kernels.kernel_functions import Kernel, require_kernel
from congruence.kernels.solvers import Solver, default_solver


class Prepare(Protocol):
    """Prepares reference inputs where they are to be solved: ``prepare`` in this process, or on a Dask cluster."""

    def __call__(
        self, x: Any, *, query: Any | None, input_kernel: Kernel, regularization: float, scale: Array | None = None
    ) -> PreparedCongruence:
        """See ``prepare``."""


def prepare(
    x: Any,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    regularization: float = 0.1,
    solver: Solver | None = None,
    scale: Array | None = None,
    groups: Any | None = None,
    time: Any | None = None,
) -> PreparedCongruence:
    """Do once what depends on the inputs alone: check them, choose a solver, factor or precondition.

    Args:
        x: reference inputs (n, d): NumPy or CuPy, whose dtype is the arithmetic's; or points placed elsewhere, for
            example on a Dask cluster.
        query: points (m, d) at which to evaluate, labels not needed; by default the reference points.
        input_kernel: k_X.
        regularization: lambda; the system is K + n lambda I.
        solver: by default Cholesky for small n, preconditioned conjugate gradients above.
        scale: s (n,), for reference points that count with weights s^2: the system is S K S + n lambda I, and k(x) is
            S k(x), with S = diag(s). Right-hand sides are scaled likewise by the caller (``weighted_reference``).
        groups: one value per row: rows of one group may depend on each other. Then standard errors and tests are by
            blocks of rows (see ``dependence.blocks``); groups go before time.
        time: as ``groups``, of rows near each other in time.

    Warns:
        NearlyConstantKernelWarning: ``input_kernel`` hardly depends on its inputs.

    Raises:
        InvalidInputError: values not finite, one point, another number of features in ``query``, or lambda <= 0.
    """
    if not regularization > 0 or not np.isfinite(regularization):
        raise InvalidInputError(f"regularization: lambda is {regularization}, expected a positive number such as 0.1")
    require_kernel(input_kernel, "input_kernel")
    points = x if isinstance(x, PlacedPoints) else require_matrix(x, "x")
    scale = None if scale is None else np.asarray(scale, dtype=np.float64)
    operator = RegularizedGram(points, input_kernel, regularization, scale)
    if operator.n < 2:
        raise InvalidInputError("x: one reference point cannot define a conditional law; give at least two rows")
    with np.errstate(over="ignore"):  # what overflows is named below
        maximum = _largest_diagonal(operator, operator.gram_diagonal(), "x")
    warn_if_nearly_constant(operator_variation(operator))
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
    dependence = RowDependence.of(operator.n, groups=groups, time=time)
    return PreparedCongruence(operator, solver, solver.prepare(operator), query, maximum, dependence=dependence)


def _largest_diagonal(operator: RegularizedGram, diagonal: Any, name: str) -> float:
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
    groups: Any | None = None,
    time: Any | None = None,
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
        groups: of rows that may depend on each other, see ``prepare``.
        time: as ``groups``.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare(
        x,
        query=query,
        input_kernel=input_kernel,
        regularization=regularization,
        solver=solver,
        groups=groups,
        time=time,
    )
    return prepared.conditional_congruence_error(
        y, predictive, output_kernel=output_kernel, samples=samples, seed=seed, uncertainty=uncertainty
    )
