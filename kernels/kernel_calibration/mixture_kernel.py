"""The lifted Wasserstein distance of mixtures: optimal transport between components instead of between densities.

MW_2(p, p')^2 = min over couplings w of the weights of sum_ab w_ab W_2(p_a, p'_b)^2 (Widmann et al. 2021, appendix D.3;
Delon and Desolneux 2020). It is at least W_2, has a closed form where W_2 of the mixtures has none, and compares what a
mixture density network or an ensemble says component by component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, cast

import numpy as np
import scipy.optimize

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.prediction_kernels import HilbertianKernel
from congruence.kernels.kernel_calibration.quantile_embedding import location_scale_coordinates
from congruence.kernels.kernel_functions import Kernel

_COLUMNS = 3  # weight, location, scale of a component
_MOST_PERMUTED = 4


@dataclass(frozen=True)
class MixtureWasserstein(HilbertianKernel):
    """exp(-scale MW_2^exponent) for mixtures of normal or Laplace components.

    Two components, and components of equal weight (ensembles), take a closed form; more components of unequal weights
    take a linear program per pair (about 2 ms), for small splits. Positive definite where the rows share their weights
    and components keep their roles; elsewhere the choice that is always valid is ``Wasserstein``.
    """

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:  # noqa: ARG002
        """Weight, location and scale of each component side by side, (n, 3K)."""
        return [_component_columns(part) for part in parts]

    def distances(self, a: Any, b: Any) -> Any:
        """MW_2 of each row of a from each row of b."""
        first, second = (rows.reshape(len(rows), -1, _COLUMNS) for rows in (a, b))
        costs = sum((first[:, None, :, None, column] - second[None, :, None, :, column]) ** 2 for column in (1, 2))
        return np.sqrt(np.maximum(_transport(first[:, :, 0], second[:, :, 0], np.asarray(costs)), 0.0))


def _component_columns(part: Distribution) -> Array:
    if not isinstance(part, Mixture):
        raise InvalidInputError(
            f"MixtureWasserstein: the predictions are {type(part).__name__}; use Wasserstein() for single distributions"
        )
    families = {type(component) for component in part.components}
    if len(families) > 1:
        names = ", ".join(sorted(family.__name__ for family in families))
        raise InvalidInputError(f"MixtureWasserstein: components of different families ({names}); use Wasserstein()")
    columns = []
    for k, component in enumerate(part.components):
        location_scale = location_scale_coordinates(component)
        if location_scale is None or component.dimension > 1:
            raise InvalidInputError(
                f"MixtureWasserstein: {type(component).__name__} components have no closed distance; use Wasserstein()"
            )
        columns.append(np.column_stack([part.weights[:, k], location_scale]))
    return np.concatenate(columns, axis=1)


def _transport(p: Array, q: Array, costs: Array) -> Array:
    """The least cost of moving weights p (n, K) to q (m, L) at costs (n, m, K, L), shape (n, m)."""
    if p.shape[1] == 1 or q.shape[1] == 1:
        return np.asarray(np.einsum("ia,jb,ijab->ij", p, q, costs))  # the only coupling
    if p.shape[1] == q.shape[1] == 2:
        return _two_by_two(p[:, None, 0], q[None, :, 0], costs)
    if p.shape[1] == q.shape[1] and np.ptp(p) < 1e-12 and np.ptp(q) < 1e-12:
        return _assignment(costs)
    return _linear_programs(p, q, costs)


def _two_by_two(p: Array, q: Array, costs: Array) -> Array:
    # One free number, the mass t from first to first, and a cost linear in it: the best t is an end of its range.
    slope = costs[..., 0, 0] - costs[..., 0, 1] - costs[..., 1, 0] + costs[..., 1, 1]
    t = np.where(slope > 0, np.maximum(0.0, p + q - 1.0), np.minimum(p, q))
    rest = p * costs[..., 0, 1] + q * costs[..., 1, 0] + (1.0 - p - q) * costs[..., 1, 1]
    return np.asarray(t * slope + rest)


def _assignment(costs: Array) -> Array:
    size = costs.shape[-1]
    rows = np.arange(size)
    if size <= _MOST_PERMUTED:
        options = (costs[..., rows, list(order)].mean(axis=-1) for order in permutations(range(size)))
        return np.asarray(np.minimum.reduce(list(options)))
    result = np.empty(costs.shape[:2])
    for index in np.ndindex(*result.shape):
        chosen = scipy.optimize.linear_sum_assignment(costs[index])
        result[index] = costs[index][chosen].mean()
    return result


def _linear_programs(p: Array, q: Array, costs: Array) -> Array:
    k, m = costs.shape[2:]
    marginals = np.concatenate([np.kron(np.eye(k), np.ones(m)), np.kron(np.ones(k), np.eye(m))])
    result = np.empty(costs.shape[:2])
    for i, j in np.ndindex(*result.shape):
        # One equation is implied by the others; left in, rounding of the weights could contradict it.
        amounts = np.concatenate([p[i], q[j]])[:-1]
        solution = scipy.optimize.linprog(costs[i, j].ravel(), A_eq=marginals[:-1], b_eq=amounts)
        result[i, j] = cast(float, solution.fun)
    return result
