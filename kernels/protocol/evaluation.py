"""CCE under a protocol, with its draws, bootstraps and downsamples.

``preprint`` draws l = 1 sample per point five times; ``ecai`` does so for each of ten bootstraps of the validation
split, which adds the reference's own sampling error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.congruence.preparation import Prepare, prepare
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.landmarks import LEADING
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.downsampling import downsampled_references
from congruence.kernels.protocol.output_scales import output_kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.protocol.repeats import RepeatedResult, repeated_evaluation
from congruence.kernels.protocol.weighting import Reference, weighted_reference
from congruence.kernels.solvers import Nystrom
from congruence.kernels.streams import stream


def evaluate_protocol(
    protocol: EvaluationProtocol,
    x_reference: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    query: Any | None = None,
    seed: int = 0,
    uncertainty: bool = False,
    prepare_inputs: Prepare = prepare,
) -> dict[str, RepeatedResult]:
    """CCE of every version under a protocol.

    Args:
        protocol: kernels, lambda, samples, draws, bootstraps and downsampling; embeddings are brought to unit norm
            where it says so.
        x_reference: embeddings of the reference split, (n, d).
        y: its targets, (n,) or (n, q), which fix the output kernel for all repeats.
        versions: predictive distributions at the reference inputs, n rows each.
        query: embeddings (m, d) of the points to evaluate; by default the reference split.
        seed: of draws, choices of the reference and probes.
        uncertainty: with standard errors and the influence of each reference row.
        prepare_inputs: where Gram systems are prepared; in this process, by the solver that fits, by default.

    Raises:
        InvalidInputError: an input that cannot be evaluated.
        ProtocolError: a zero embedding under unit norm.
    """
    x = protocol.apply(require_matrix(x_reference, "x_reference"))
    points = None if query is None else protocol.apply(require_matrix(query, "query"))
    targets = require_targets(y, "y", len(x))
    prepared = None
    if protocol.bootstraps == 0 and protocol.downsampling is None:
        prepared = _prepared(protocol, x, points, prepare_inputs)
    kernel = resolved_output_kernel(protocol, targets, x, prepared)
    references = protocol_references(protocol, x, points, prepared=prepared, seed=seed, prepare_inputs=prepare_inputs)
    return evaluate_references(protocol, references, targets, versions, kernel, seed=seed, uncertainty=uncertainty)


def evaluate_references(
    protocol: EvaluationProtocol,
    references: Iterable[Reference],
    y: Array,
    versions: Mapping[str, Distribution],
    kernel: Kernel,
    *,
    seed: int = 0,
    uncertainty: bool = False,
) -> dict[str, RepeatedResult]:
    """CCE of every version on the reference samples of a protocol, with its draws; ``kernel`` is k_Y."""
    return repeated_evaluation(
        references,
        y,
        versions,
        kernel,
        samples=protocol.samples,
        draws=protocol.draws if protocol.samples is not None else 1,
        repeats=protocol.repeats,
        seed=seed,
        uncertainty=uncertainty,
    )


def protocol_references(
    protocol: EvaluationProtocol,
    x: Any,
    query: Any | None,
    *,
    prepared: PreparedCongruence | None = None,
    seed: int = 0,
    prepare_inputs: Prepare = prepare,
) -> Iterator[Reference]:
    """The reference samples of a protocol, prepared one after the other: the split itself, bootstraps or downsamples.

    Args:
        protocol: see ``evaluate_protocol``.
        x: inputs of the reference split as ``protocol.apply`` leaves them, (n, d).
        query: points (m, d); by default x.
        prepared: the whole split, where it is prepared already.
        seed: of the choices.
        prepare_inputs: where systems are prepared.
    """
    given: dict[str, Any] = {
        "query": x if query is None else query,
        "input_kernel": protocol.input_kernel,
        "regularization": protocol.regularization,
        "prepare_inputs": prepare_inputs,
    }
    if protocol.downsampling is not None:
        yield from downsampled_references(x, protocol.downsampling, seed=seed, **given)
    elif protocol.bootstraps == 0:
        yield Reference.whole(prepared or _prepared(protocol, x, query, prepare_inputs))
    for bootstrap in range(protocol.bootstraps):
        drawn = stream(seed, "bootstrapped reference", bootstrap).integers(len(x), size=len(x))
        rows, counts = np.unique(drawn, return_counts=True)
        yield weighted_reference(x, rows, weights=counts, **given)


def _prepared(
    protocol: EvaluationProtocol, x: Array, query: Array | None, prepare_inputs: Prepare
) -> PreparedCongruence:
    return prepare_inputs(x, query=query, input_kernel=protocol.input_kernel, regularization=protocol.regularization)


def resolved_output_kernel(
    protocol: EvaluationProtocol, y: Array, x: Array, prepared: PreparedCongruence | None = None
) -> Kernel:
    """k_Y of a protocol, its bandwidth read off the whole reference split x (n, d) whichever points are used."""
    residual = protocol.output_kernel is None and protocol.output_scale == "residual"
    if prepared is None and residual:
        quick = Nystrom(LEADING)  # only the leading spectrum is read
        prepared = prepare(x, input_kernel=protocol.input_kernel, regularization=protocol.regularization, solver=quick)
    return output_kernel(protocol, y, prepared)
