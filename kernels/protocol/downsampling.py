"""CCE on part of the reference split: k of n points stand for all, and all points stay queries.

The papers downsample uniformly (Young et al. 2025, appendix B.3). Inputs are rarely spread evenly, and a conditional
mean may be estimated from any choice of inputs, so points may also be chosen by how much they matter to the Gram
matrix: ``leverage`` draws by ridge leverage scores (Alaoui and Mahoney 2015), half mixed with uniform, and weights each
draw by its rarity; ``rpcholesky`` covers the inputs (Chen et al. 2024) without weights.
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
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import gram_spectrum
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import output_kernel_or_marginal
from congruence.kernels.protocol.protocol import Downsampling, DownsamplingChoice
from congruence.kernels.protocol.repeats import RepeatedResult, repeated_evaluation
from congruence.kernels.protocol.weighting import Reference, weighted_reference
from congruence.kernels.solvers import Solver, choose_landmarks
from congruence.kernels.streams import stream


def downsampled_congruence(
    x: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    rows: int,
    repeats: int = 5,
    choice: DownsamplingChoice = "uniform",
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
        choice: how they are chosen; see the module.
        seed: of the choices.
        query: points (m, d) at which to evaluate; by default all of x.
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        regularization: lambda.
        solver: chosen by size if not given.

    Raises:
        InvalidInputError: ``rows`` outside [2, n], no repeats, an unknown choice, or an input that cannot be evaluated.
    """
    x = require_matrix(x, "x")
    targets = require_targets(y, "y", len(x))
    references = downsampled_references(
        x,
        Downsampling(rows, repeats, choice),
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
    rows, choice = downsampling.rows, downsampling.choice
    if rows > len(x):
        raise InvalidInputError(f"rows: {rows} of {len(x)} reference points; give a number from 2 to {len(x)}")
    operator = RegularizedGram(x, input_kernel, regularization)
    scores = leverage_scores(operator, seed=seed) if choice == "leverage" else None
    for repeat in range(downsampling.repeats):
        chosen, weights = _choose(operator, rows, choice, scores, stream(seed, "downsampling", repeat))
        yield weighted_reference(
            x,
            chosen,
            query=query,
            input_kernel=input_kernel,
            regularization=regularization,
            weights=weights,
            prepare_inputs=prepare_inputs,
        )


def leverage_scores(operator: RegularizedGram, *, seed: int = 0) -> Array:
    """Ridge leverage scores (K A^-1)_ii, (n,), in the leading spectrum of K; their sum is the effective dimension."""
    spectrum = gram_spectrum(operator, seed=seed)
    vectors = spectrum.vectors(len(spectrum.eigenvalues))
    return np.asarray(np.maximum(vectors**2 @ spectrum.filters, 0.0))


def _choose(
    operator: RegularizedGram, rows: int, choice: DownsamplingChoice, scores: Array | None, rng: np.random.Generator
) -> tuple[Array, Array | None]:
    if scores is not None:
        probabilities = 0.5 * scores / np.sum(scores) + 0.5 / operator.n
        drawn = rng.choice(operator.n, rows, p=probabilities)
        chosen, counts = np.unique(drawn, return_counts=True)
        return chosen, counts / probabilities[chosen]
    if choice == "rpcholesky":
        return choose_landmarks(operator, rows, "rpcholesky", int(rng.integers(2**31))), None
    return np.sort(rng.choice(operator.n, rows, replace=False)), None
