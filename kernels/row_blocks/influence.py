"""The pass over influences: what each reference row contributes, and the residuals under drawn signs.

The same linearisation as ``congruence.influence``, whose functions it uses, with every sum over rows made by blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.coded_draws import row_codes, sums_by_code
from congruence.kernels.congruence.influence import MULTIPLIERS, axes_of, leave_one_out
from congruence.kernels.distributions import Distribution
from congruence.kernels.row_blocks.inputs import BlockInputs
from congruence.kernels.row_blocks.right_hand_sides import errors_of, weighted_squares
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.kernels.row_blocks.system import BlockSystem
from congruence.kernels.row_blocks.versions import BlockVersion


@dataclass(frozen=True)
class VersionInfluence:
    """What blocks need for the influence of their rows.

    Attributes:
        version: its features.
        coefficients, chosen: of the fit that residuals are taken from.
        axes: leading axes of the residuals, (r, c).
        squared: filters times U'e, (k, r).
        root: filters times U'(e / |e|), (k, r).
        own: filters U'U filters, (k, k).
    """

    version: BlockVersion
    coefficients: Array = field(repr=False)
    chosen: Array = field(repr=False)
    axes: Array = field(repr=False)
    squared: Array = field(repr=False)
    root: Array = field(repr=False)
    own: Array = field(repr=False)


def version_influence(
    system: BlockSystem, version: BlockVersion, coefficients: Array, chosen: Array, sums: BlockSums
) -> VersionInfluence:
    """From the sums of the pass over scores."""
    filters = system.inputs.filters
    assert filters is not None
    moment = sums.added["residual moment"]
    return VersionInfluence(
        version,
        coefficients,
        chosen,
        axes_of(moment, float(np.trace(moment))),
        (filters[:, None] * sums.added["smoothed"]).astype(np.float32),
        (filters[:, None] * sums.added["directions"]).astype(np.float32),
        (filters[:, None] * system.spread * filters).astype(np.float32),
    )


def influence_sums(
    system: BlockInputs,
    inputs: Array,
    targets: Array,
    predictive: Mapping[str, Distribution],
    versions: Sequence[VersionInfluence],
    first: int,
) -> tuple[dict[str, BlockSums], dict[str, dict[str, Array]]]:
    """U' of the residuals under signs, and the columns of a block's rows: influence, influence_squared."""
    points, _ = system.points(inputs, first)
    sums = {version.version.name: BlockSums() for version in versions}
    columns: dict[str, dict[str, Array]] = {
        name: {column: np.empty(len(points.x)) for column in ("influence", "influence_squared")} for name in sums
    }
    for rows, _, vectors in system.tiles(points):
        assert vectors is not None
        positions = np.arange(first + rows.start, first + rows.stop)
        for known in versions:
            name = known.version.name
            delta = errors_of(known.version, targets[rows], predictive[name][rows]).delta
            residuals = leave_one_out(vectors, known.chosen, known.coefficients, delta)
            own = np.asarray(np.einsum("ik,ik->i", vectors @ known.own, vectors), dtype=np.float64)
            own *= np.einsum("ij,ij->i", residuals, residuals)
            squared = np.einsum("ij,ij->i", (vectors @ known.squared).astype(np.float64), residuals)
            columns[name]["influence_squared"][rows] = (2.0 * squared - own) / system.n
            root = np.einsum("ij,ij->i", (vectors @ known.root).astype(np.float64), residuals)
            columns[name]["influence"][rows] = root / system.n
            _add_signed(sums[name], vectors, residuals, known.axes, positions)
    return sums, columns


def _add_signed(sums: BlockSums, vectors: Array, residuals: Array, axes: Array, positions: Array) -> None:
    noise = (residuals @ axes).astype(np.float32)
    left_out = np.maximum(np.sum(residuals**2, axis=1) - np.sum(noise**2, axis=1, dtype=np.float64), 0.0)
    sums.add("left out", weighted_squares(vectors, left_out))
    # Not the evaluation's seed: two versions compare by the same signs.
    bits = MULTIPLIERS.bit_length()
    codes = row_codes(positions, bits, 0, "signs of residuals")
    sums.add("signed", sums_by_code(vectors, noise, codes, bits))
