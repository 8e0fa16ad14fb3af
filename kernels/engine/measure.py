"""Versions measured on rows in memory under a protocol: once, or as the mean over repeats of its draws and references.

The papers report mean and standard deviation over repeats: ``preprint`` draws one sample per point five times; ``ecai``
does so for each of ten bootstraps of the validation split, which adds the reference's own sampling error. A repeat is
the same driver with other reference rows, weights or draws.

Right-hand sides of any other kind are smoothed by ``smooth``, with their certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_matrix, require_targets
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.plan import Ask, needs_residual
from congruence.kernels.engine.results import (
    BlocksInference,
    CongruenceInfluence,
    CongruenceResult,
    CongruenceUncertainty,
    ErrorBounds,
    ExpectedCongruence,
    TargetVariation,
)
from congruence.kernels.engine.system import (
    TILE_ROWS,
    System,
    TilePoints,
    product,
    projected,
    residual_bounds,
    tile_slices,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol, reference_choices


def evaluate_protocol(
    protocol: EvaluationProtocol,
    x_reference: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    query: Any | None = None,
    weights: Any | None = None,
    dependence: RowDependence | None = None,
    landmarks: int | None = None,
    draws: int | None = 0,
    seed: int = 0,
) -> dict[str, CongruenceResult]:
    """Returns the CCE of every version under a protocol.

    Args:
        protocol: kernels, lambda, samples, draws, bootstraps and downsampling; embeddings are brought to unit norm
            where it says so.
        x_reference: embeddings of the reference split, (n, d).
        y: its targets, (n,) or (n, q), which fix the output kernel for all repeats.
        versions: predictive distributions at the reference inputs, n rows each.
        query: embeddings (m, d) of the points to evaluate; by default the reference split.
        weights: what each point counts in means, (m,); equal by default.
        dependence: which reference rows may depend on each other.
        landmarks: see ``prepare``.
        draws: simulated sets of targets of the congruence test; 0 for no test, None for the default number.
        seed: of draws, choices of the reference and probes.

    Raises:
        InvalidInputError: an input that cannot be evaluated.
        ProtocolError: a zero embedding under unit norm.
    """
    x = require_matrix(x_reference, "x_reference")
    points = None if query is None else require_matrix(query, "query")
    counted = None if weights is None else mean_one(weights, len(x if points is None else points))
    split = HeldSplit(x, require_targets(y, "y", len(x)), points, counted, dependence)
    ask = Ask(list(versions), tested=draws != 0, draws=draws or None)
    return measure_held(split, protocol, versions, ask, Accuracy.of(landmarks), seed)


def measure_held(
    split: HeldSplit,
    protocol: EvaluationProtocol,
    versions: Mapping[str, Distribution],
    ask: Ask,
    accuracy: Accuracy,
    seed: int = 0,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, CongruenceResult]:
    """Returns what is measured of every version on rows in memory."""
    if not protocol.is_repeated:
        return split.driver(protocol, versions, seed).measure(ask, accuracy, announce)
    dependence = split.dependence
    split = replace(split, dependence=None)
    ask = replace(ask, tested=ask.tested and dependence is None)
    choices = list(reference_choices(protocol, len(split.x), seed))
    # The test and what is expected of a true version are by the whole reference, or the first part of it.
    judge = split.driver(protocol, versions, seed, choices[0] if protocol.downsampling is not None else None)
    judged = judge.measure(replace(ask, uncertainty=False), accuracy, announce)
    kernel = judge.look_at(list(versions)).output_kernel(judge.last_system)
    if protocol.downsampling is not None and protocol.output_kernel is None:
        whole = split.driver(protocol, versions, seed)
        few = whole.system(min(accuracy.first, whole.n), needs_targets=needs_residual(protocol))
        kernel = whole.look_at(list(versions)).output_kernel(few)
    protocol, found = replace(protocol, output_kernel=kernel), dict[str, list[CongruenceResult]]()
    for number, choice in enumerate(choices):
        numbers = range(number * protocol.draws, (number + 1) * protocol.draws) if protocol.samples else [number]
        driver = split.driver(protocol, versions, seed, choice)
        repeated = replace(ask, tested=False, band=False, samples=protocol.samples, repeats=numbers)
        for label, one in driver.measure(repeated, accuracy, announce).items():
            if ask.uncertainty:
                spread = spread_over(one.uncertainty, choice.rows, len(split.x))
                one = replace(one, made=TargetVariation(spread, None))
            found.setdefault(label.split(", repeat ")[0], []).append(one)
    reason = "a protocol with samples, bootstraps or downsampling takes rows as independent; use protocol 'exact'"
    inference = None if dependence is None else BlocksInference(dependence.kind, None, reason)
    return {
        name: replace(
            mean_of_repeats(found.get(name, []), judged[name], ask, refused=dependence is not None),
            solver=judged[name].solver,
            output_kernel=kernel.describe(),
            inference=inference,
            reason=judged[name].reason,
        )
        for name in versions
    }


def mean_of_repeats(
    found: Sequence[CongruenceResult], judged: CongruenceResult, ask: Ask, *, refused: bool
) -> CongruenceResult:
    """Returns the means over the repeats of a version, whose bounds hold in every repeat and in their mean.

    ``judged``: by one reference, whose test and expected mean CCE they have; ``refused``: they have none.
    """
    if not found:
        raise InvalidInputError("repeats: there are none; give at least one reference sample")
    floors, band = np.mean([one.noise_floor_values**2 for one in found], axis=0), None
    if judged.band is not None and not refused:
        # Draws in place of exact means, and other references, have another floor: norms go with its root.
        counts = np.ones(len(floors)) if found[0].weights is None else found[0].weights
        apart = np.sqrt(float(np.mean(counts * floors)) / float(np.mean(counts * judged.noise_floor_values**2)))
        band = ExpectedCongruence(*(apart * end for end in (judged.band.mean, judged.band.low, judged.band.high)))
    known = repeated_uncertainty([one.uncertainty for one in found]) if ask.uncertainty else None
    return replace(
        found[0],
        values=np.mean([one.values for one in found], axis=0),
        noise_floor_values=np.sqrt(floors),
        error_bound=max(one.error_bound for one in found),
        mean_error_bound=float(np.mean([one.mean_error_bound for one in found])),
        bound_kind="sampled" if any(one.bound_kind == "sampled" for one in found) else "computed",
        made=TargetVariation(known, band),
        test=None if refused else judged.test,
        means=np.array([one.mean for one in found]),
        mean_squares=np.mean([one.values**2 for one in found], axis=0),
    )


_TINY = float(np.finfo(float).tiny)


def spread_over(uncertainty: CongruenceUncertainty, rows: Array, total: int) -> CongruenceUncertainty:
    """Returns the same with influences on all ``total`` rows of a split, of which the reference held ``rows``."""
    influence = uncertainty.influence
    squared, root = np.zeros(total), np.zeros(total)
    squared[rows], root[rows] = influence.squared, influence.root
    return replace(uncertainty, influence=replace(influence, squared=squared, root=root))


def repeated_uncertainty(repeats: Sequence[CongruenceUncertainty]) -> CongruenceUncertainty:
    """Of the mean over repeats, which share the targets but not their choices of rows and draws.

    Influences are averaged, so that what is a repeat's own cancels. Their root sum of squares is corrected by what the
    signs tell of one repeat, and the spread of the repeats' means over their number is added. Draws of the signs differ
    between references, so two versions' difference counts what is quadratic in the noise more than once.
    """
    influences = [item.influence for item in repeats]
    mean, squared_mean = ([getattr(each, name) for each in influences] for name in ("mean", "squared_mean"))
    root, squared, noise = (
        np.mean([getattr(each, name) for each in influences], axis=0) for name in ("root", "squared", "noise")
    )
    corrections = [
        (
            item.standard_error / max(float(np.linalg.norm(item.influence.root)), _TINY),
            item.squared_standard_error / max(float(np.linalg.norm(item.influence.squared)), _TINY),
            item.noise_standard_error / max(item.squared_standard_error, _TINY),
        )
        for item in repeats
    ]
    correction, of_square, of_noise = np.mean(corrections, axis=0)
    of_square *= np.linalg.norm(squared)
    return CongruenceUncertainty(
        CongruenceInfluence(float(np.mean(squared_mean)), float(np.mean(mean)), squared, root, noise),
        standard_error=float(np.hypot(correction * np.linalg.norm(root), _error_of_mean(mean))),
        squared_standard_error=float(np.hypot(of_square, _error_of_mean(squared_mean))),
        noise_standard_error=float(np.hypot(of_square * of_noise, _error_of_mean(squared_mean))),
    )


def _error_of_mean(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / float(np.sqrt(len(values))) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Smoothed:
    """k(x)' A^-1 B at m points, (m, c), and bounds on the norm of its error."""

    values: Array = field(repr=False)
    bounds: ErrorBounds


def smooth(system: System, x: Array, query: Array | None, rhs: Array) -> Smoothed:
    """Returns right-hand sides (n, c) at the rows x (n, d) smoothed to query points, by default to x itself."""
    inputs, rhs = system.inputs, np.asarray(rhs, dtype=np.float64)
    alone = replace(inputs, basis=np.empty((0, 0)), kept=None)  # columns without directions, of any points

    def tiles(points: Array) -> Iterator[tuple[slice, Any, Array]]:
        moved = points.astype(inputs.dtype)
        return alone.tiles(TilePoints(moved if inputs.center is None else moved - inputs.center.astype(moved.dtype)))

    def products(points: Array, weights: Array) -> Array:
        return np.concatenate([product(columns, weights) for _, columns, _ in tiles(points)])

    if inputs.is_exact:
        weights = system.factor.solve(rhs)
    else:
        projections = np.zeros((len(inputs.landmarks), rhs.shape[1]))
        for rows, columns, _ in tiles(x):
            projections += projected(columns, rhs[rows])
        weights = system.factor.solve(projections)
    own = rhs - inputs.shift * weights if inputs.is_exact else products(x, weights)
    values = own if query is None else products(query, weights)
    solution, (at_rows, at_points) = (rhs - own) / inputs.shift, system.residual_positions
    kz = np.zeros((len(inputs.residual), rhs.shape[1]))
    for rows in tile_slices(slice(0, len(x)), 4 * TILE_ROWS):
        block = x[rows].astype(np.float64)
        block = block if inputs.center is None else block - inputs.center
        kz += np.asarray(inputs.kernel(block, inputs.residual)).T @ solution[rows]
    residual, read = own[at_rows] - kz[: len(at_rows)], None
    if query is not None:
        read = values[at_points] - kz[len(at_rows) :]
    return Smoothed(values, residual_bounds(system, residual, read, len(values)))
