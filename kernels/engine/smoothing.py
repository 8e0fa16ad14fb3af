"""Right-hand sides of any kind smoothed by a prepared system in memory, with their certificate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.engine.spectrum import TILE_ROWS
from congruence.kernels.engine.system import ErrorBounds, System, residual_bounds
from congruence.kernels.engine.tiles import TileMaker, TilePoints, product, projected, tile_slices


@dataclass(frozen=True)
class Smoothed:
    """k(x)' A^-1 B at m points, (m, c), and bounds on the norm of its error."""

    values: Array = field(repr=False)
    bounds: ErrorBounds


def smooth(system: System, x: Array, query: Array | None, rhs: Array) -> Smoothed:
    """Returns right-hand sides (n, c) at the rows x (n, d) smoothed to query points, by default to x itself."""
    inputs, rhs = system.inputs, np.asarray(rhs, dtype=np.float64)
    if inputs.is_exact:
        weights = system.factor.solve(rhs)
    else:
        projections = np.zeros((len(inputs.landmarks), rhs.shape[1]))
        for rows, columns in _columns(system, x):
            projections += projected(columns, rhs[rows])
        weights = system.factor.solve(projections)
    own = rhs - inputs.shift * weights if inputs.is_exact else _products(system, x, weights)
    values = own if query is None else _products(system, query, weights)
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


def _products(system: System, x: Array, weights: Array) -> Array:
    values = np.empty((len(x), weights.shape[1]))
    for rows, columns in _columns(system, x):
        values[rows] = product(columns, weights)
    return values


def _columns(system: System, x: Array) -> Iterator[tuple[slice, Array]]:
    inputs = system.inputs
    points = x.astype(inputs.dtype)
    points = points if inputs.center is None else points - inputs.center.astype(points.dtype)
    maker, here, others = TileMaker(inputs.kernel, int(x.shape[1])), TilePoints(points), TilePoints(inputs.landmarks)
    for rows in tile_slices(here.all, TILE_ROWS):
        yield rows, maker.tile(here, rows, others, others.all)
