"""The last pass over a version in blocks of rows: sums of its effects, and what is wrong around every row.

The same numbers as ``local_reading`` on the same directions; q-values, which need all rows, are made of the p-values
that are written (``BlockReading``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.block_bases import PROTOCOL, BlockBases, PreparedBlocks
from congruence.kernels.conditional_calibration.block_versions import BlockRows, ProjectedVersion, regression_at
from congruence.kernels.conditional_calibration.effects import Effect, EffectSums
from congruence.kernels.conditional_calibration.faults import faults
from congruence.kernels.conditional_calibration.local_reading import EVIDENCE, combined_p_values
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.prepared import judged
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.congruence.test import benjamini_hochberg
from congruence.kernels.row_blocks.sums import BlockSums

COLUMNS = ("p_value", "named", "shift", "factor", "region")
"""Columns of every row beside the four smoothed scores: combined p-value, number of the dominant fault where its
evidence suffices and else -1, shift, factor and region."""

PREFIX = "calibration_"
INFLUENCE = f"{PREFIX}influence_"


def reading_sums(
    told: BlockBases, x: Array, rows_of: Mapping[str, BlockRows], versions: Mapping[str, ProjectedVersion]
) -> tuple[dict[str, BlockSums], dict[str, dict[str, Array]]]:
    """What a block adds to the effects of every version, and the columns of its rows.

    Args:
        told: the split's bases.
        x: inputs of the block, as the protocol wants them.
        rows_of: by version.
        versions: what their sums said.
    """
    sums = {name: BlockSums() for name in versions}
    columns: dict[str, list[dict[str, Array]]] = {name: [] for name in versions}
    regions = told.regions(x).astype(np.float64)
    reference = next(iter(versions.values())).plan.reference[0]
    names = tuple(name for name in dict.fromkeys((PROTOCOL, reference)) if name in told.kernels)
    for rows, tile in told.tiles(x, names):
        for name, version in versions.items():
            influence = _add_effects(sums[name], version, tile, rows_of[name].scores[rows])
            _, coordinates = version.plan.smoother
            vectors = tile[PROTOCOL] @ coordinates.astype(tile[PROTOCOL].dtype)
            columns[name].append(_read(version, vectors) | influence)
    written = {
        name: {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        | {f"{PREFIX}region": regions}
        for name, parts in columns.items()
        if parts
    }
    return sums, written


def _add_effects(
    sums: BlockSums, version: ProjectedVersion, tile: Mapping[str, Array], scores: Array
) -> dict[str, Array]:
    """``effects.LeaveOneOut`` with its sums cut at the rows of a tile; gives its influence there."""
    vectors, leverage = regression_at(version.plan, tile)
    _, weights, _ = version.plan.reference
    lift = 1.0 / (1.0 - leverage)

    def of_others(projected: Array, values: Array) -> Array:
        smoothed = vectors @ (weights[:, None] * projected).astype(vectors.dtype)
        return np.asarray(smoothed - leverage[:, None] * values, dtype=np.float64)

    predicted = lift[:, None] * of_others(version.regression, scores)
    lifted = of_others(version.lifted, lift[:, None] * scores)
    variance = (scores - predicted) ** 2
    own = (leverage * lift)[:, None] * variance
    sums.add("signal", np.sum(scores * predicted, axis=0))
    sums.add("products", np.sum(variance * (predicted + lifted) ** 2, axis=0))
    sums.add("variance", np.sum(variance, axis=0))
    sums.add("diagonal", np.sum(own, axis=0))
    sums.add("diagonal squares", np.sum(own**2, axis=0))
    for power in range(3):
        for j in range(len(ORDERS)):
            weighted = vectors * (variance[:, j] * lift**power)[:, None].astype(vectors.dtype)
            sums.add(f"inner {power} {j}", np.asarray(weighted.T @ vectors, dtype=np.float64))
    influence = (scores - predicted) * (predicted + lifted)
    return {f"{INFLUENCE}{order}": influence[:, j] for j, order in enumerate(ORDERS)}


def _read(version: ProjectedVersion, vectors: Array) -> dict[str, Array]:
    """The local reading of a tile's rows from U there, (rows, k)."""
    known = version.smoothing
    dtype = vectors.dtype
    smoothed = (vectors @ known.coefficients.astype(dtype)).astype(np.float64)
    spread = np.sqrt(_quadratic(vectors, known.weights))
    ratio = np.divide(smoothed, spread[:, None], out=np.zeros_like(smoothed), where=spread[:, None] > 0.0)
    local = known.means + (vectors @ known.local.astype(dtype)).astype(np.float64)
    squares = [1.0 / known.n + _quadratic(vectors, one) for one in known.inner]
    errors = np.sqrt(np.mean(squares, axis=0))
    found = faults(local, errors, mixing=known.mixing)
    evidence = np.sum(local**2 - found.unexplained**2, axis=1) / errors**2
    scores = {f"{PREFIX}{order}": ratio[:, j] for j, order in enumerate(ORDERS)}
    return {
        **scores,
        f"{PREFIX}p_value": combined_p_values(2.0 * ndtr(-np.abs(ratio))),
        f"{PREFIX}named": np.where(evidence >= EVIDENCE, found.dominant, -1).astype(np.float64),
        f"{PREFIX}shift": found.shift,
        f"{PREFIX}factor": found.factor,
    }


def _quadratic(vectors: Array, inner: Array) -> Array:
    """v'Mv of every row, (rows,); 0 where rounding leaves less."""
    if not inner.any():
        return np.zeros(len(vectors))
    products = np.einsum("ij,ij->i", vectors @ inner.astype(vectors.dtype), vectors)
    return np.asarray(np.maximum(products.astype(np.float64), 0.0))


def version_test(prepared: PreparedBlocks, version: ProjectedVersion, sums: BlockSums) -> ConditionalCalibrationTest:
    """The test with its effects."""
    n, added = prepared.told.n, sums.added
    _, weights, _ = version.plan.reference
    effects: dict[str, Effect] = {}
    for j, order in enumerate(ORDERS):
        inner = [weights[:, None] * added[f"inner {power} {j}"] for power in range(3)]
        sums_of_order = EffectSums(
            rows=n,
            signal=float(added["signal"][j]),
            products=float(added["products"][j]),
            variance=float(added["variance"][j]),
            diagonal=float(added["diagonal"][j]),
            diagonal_squares=float(added["diagonal squares"][j]),
            inner=inner,
        )
        effects[order] = sums_of_order.effect(0.95)
    means = dict(zip(ORDERS, version.means.tolist(), strict=True))
    return judged(version.names, version.observed, version.null, "gaussian", effects, means)


@dataclass(frozen=True)
class BlockReading:
    """What is wrong around every row, of a split in blocks.

    Attributes:
        written: columns of all rows by name, (n,) each: those of ``COLUMNS`` and the four smoothed scores.
        mixing: variance of the local spread scores over the rows, see ``faults``.
    """

    written: Mapping[str, Array] = field(repr=False)
    mixing: float

    def columns(self, level: float = 0.05) -> dict[str, Array]:
        """See ``LocalReading``."""
        q_values = benjamini_hochberg(self.written[f"{PREFIX}p_value"])
        numbers = self.written[f"{PREFIX}named"].astype(np.intp)
        names = np.array([*ORDERS, ""])  # -1 is the last
        names_kept = (*ORDERS, "shift", "factor", *(f"influence_{order}" for order in ORDERS))
        kept = {f"{PREFIX}{name}": self.written[f"{PREFIX}{name}"] for name in names_kept}
        named = np.where(q_values <= level, names[numbers], "")
        return {**kept, f"{PREFIX}q_value": q_values, f"{PREFIX}fault": named}
