"""CCE on part of the reference split: k of n points, chosen uniformly, stand for all, and all points stay queries.

The papers downsample so (Young et al. 2025, appendix B.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.congruence.preparation import Prepare, prepare
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import output_kernel_or_marginal
from congruence.kernels.protocol.protocol import Downsampling
from congruence.kernels.protocol.repeats import RepeatedResult, repeated_evaluation
from congruence.kernels.protocol.weighting import Reference, weighted_reference
from congruence.kernels.solvers import Solver
from congruence.kernels.streams import stream


def downsampled_congruence(
    x: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    rows: int,
    repeats: int = 5,
    seed: int = 0,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    solver: Solver | None = None,
) -> dict[str, RepeatedResult]:
    """CCE of every version with ``rows`` reference points, repeated over random choices of them.

    Args:
        x: inputs of the split, (n, d).
        y: its targets, (n,) or (n, q), which fix the output kernel for all repeats.
        versions: predictive distributions at x, n rows each.
        rows: k; the system is K + k lambda I.
        repeats: random choices of the reference points.
        seed: of the choices.
        query: points (m, d) at which to evaluate; by default all of x.
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        regularization: lambda.
        solver: chosen by size if not given.

    Raises:
        InvalidInputError: ``rows`` outside [2, n], no repeats, or an input that cannot be evaluated.
    """
    x = require_matrix(x, "x")
    targets = require_targets(y, "y", len(x))
    references = downsampled_references(
        x,
        Downsampling(rows, repeats),
        query=x if query is None else require_matrix(query, "query"),
        input_kernel=input_kernel,
        regularization=regularization,
        seed=seed,
        prepare_inputs=partial(prepare, solver=solver),
    )
    kernel = output_kernel_or_marginal(output_kernel, targets)
    return repeated_evaluation(references, targets, versions, kernel, repeats=repeats, seed=seed)


def downsampled_references(
    x: Array,
    downsampling: Downsampling,
    *,
    query: Array,
    input_kernel: Kernel,
    regularization: float,
    seed: int = 0,
    prepare_inputs: Prepare = prepare,
) -> Iterator[Reference]:
    """The choices of reference points of ``downsampled_congruence``, prepared one after the other as they are used.

    Raises:
        InvalidInputError: more rows than there are.
    """
    rows = downsampling.rows
    if rows > len(x):
        raise InvalidInputError(f"rows: {rows} of {len(x)} reference points; give a number from 2 to {len(x)}")
    for repeat in range(downsampling.repeats):
        chosen = np.sort(stream(seed, "downsampling", repeat).choice(len(x), rows, replace=False))
        yield weighted_reference(
            x,
            chosen,
            query=query,
            input_kernel=input_kernel,
            regularization=regularization,
            prepare_inputs=prepare_inputs,
        )
