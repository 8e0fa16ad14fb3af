"""One call for one number: the CCE of a model, its test, and the discrepancy of two samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.congruence_test import CongruenceTest
from congruence.kernels.engine.plan import output_kernel_or_marginal
from congruence.kernels.engine.results import BoundKind, CongruenceResult
from congruence.kernels.engine.targets import output_features
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.split import prepare


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
    bound_kind: BoundKind
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
    landmarks: int | None = None,
) -> DiscrepancyResult:
    """Returns MCMD(x) between two samples with different inputs, sizes and lambdas, at m query points.

    || k_X(x)' (K + n lambda I)^-1 psi(y) - k_X'(x)' (K' + n' lambda' I)^-1 psi(y') || (Young et al. 2024, equation 4).
    The samples swapped, each with its lambda, have the same MCMD.

    Args:
        x: inputs of the first sample, (n, d).
        y: its targets, (n,) or (n, q).
        x_prime: inputs of the second one, (n', d).
        y_prime: its targets, (n',) or (n', q).
        query: points (m, d).
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var) of the targets of both samples together.
        regularization: lambda of the first system.
        regularization_prime: lambda' of the second; the first's by default.
        landmarks: of both systems, see ``prepare``.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    y, y_prime = require_targets(y, "y"), require_targets(y_prime, "y_prime")
    if y.shape[1:] != y_prime.shape[1:]:
        raise InvalidInputError(
            f"y_prime: targets of shape {y_prime.shape}, but y has {y.shape}; both samples need the same target columns"
        )
    pooled = np.concatenate([y, y_prime])
    kernel = output_kernel_or_marginal(output_kernel, pooled)
    features = output_features(kernel, pooled)
    second = regularization if regularization_prime is None else regularization_prime
    found, weights = [], 0.0
    for inputs, targets, name, value in ((x, y, "y", regularization), (x_prime, y_prime, "y_prime", second)):
        split = prepare(inputs, query=query, input_kernel=input_kernel, regularization=value, landmarks=landmarks)
        require_targets(targets, name, split.n)
        found.append(split.smooth(features(targets)))
        # |a|_1 <= sqrt(n) |a|_2 <= sqrt(k(x, x) / (4 lambda)).
        weights += float(np.sqrt(split.system.kernel_maximum / (4.0 * value)))
    values = np.linalg.norm(found[0].values - found[1].values, axis=1)
    squared = features.error * weights**2  # of MCMD^2, as k_Y is off by no more than the features' error
    missed = float(np.max(np.minimum(np.sqrt(squared), squared / np.maximum(values, np.finfo(float).tiny))))
    kind: BoundKind = "sampled" if any(each.bounds.kind == "sampled" for each in found) else "computed"
    return DiscrepancyResult(values, sum(each.bounds.at_point for each in found) + missed, kind, kernel)


def conditional_congruence_error(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    landmarks: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    groups: Any | None = None,
    time: Any | None = None,
) -> CongruenceResult:
    """Returns the Conditional Congruence Error of one model on a labelled split (Young et al. 2025, equation 3).

    ``query``, ``input_kernel``, ``regularization``, ``landmarks``, ``groups`` and ``time`` are those of ``prepare``.

    Args:
        x: reference inputs, usually embeddings, (n, d).
        y: their targets, (n,) or (n, q).
        predictive: the model's predictive distributions at x, n rows.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        samples: replace exact kernel means by this many draws per point, as the papers do.
        seed: of the draws and of the noise floor's probes.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    split = prepare(
        x,
        query=query,
        input_kernel=input_kernel,
        regularization=regularization,
        landmarks=landmarks,
        groups=groups,
        time=time,
    )
    return split.conditional_congruence_error(y, predictive, output_kernel=output_kernel, samples=samples, seed=seed)


def congruence_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    draws: int | None = None,
    seed: int = 0,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    groups: Any | None = None,
    time: Any | None = None,
) -> CongruenceTest:
    """Tests whether targets y could be draws from ``predictive``, given the inputs x.

    ``query``, ``input_kernel``, ``regularization``, ``groups`` and ``time`` are those of ``prepare``.

    Args:
        x: reference inputs (n, d).
        y: their targets, (n,) or (n, q).
        predictive: the model's predictive distributions at x, n rows. ``Samples`` count as draws from the model.
        draws: simulated sets of targets B; the smallest p-value is 1 / (B + 1). Memory grows with B. By default 999,
            and 199 beyond 50,000 rows.
        seed: of the draws.
        output_kernel: k_Y; by default RBF at the marginal variance that the model states, which makes the test exact.
            The papers' bandwidth is read from y, and the level then holds up to O(1 / n).

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value; no draws; or fewer than ten
            groups or runs of time.
    """
    split = prepare(x, query=query, input_kernel=input_kernel, regularization=regularization, groups=groups, time=time)
    return split.congruence_test(y, predictive, output_kernel=output_kernel, draws=draws, seed=seed)
