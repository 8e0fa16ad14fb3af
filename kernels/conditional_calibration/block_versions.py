"""One version on a split in blocks of rows: its sums, its test, and what they say of the smoothing around every row.

Three passes: what the version says of the sampled rows (for its own basis), sums of projected scores, and, once these
are known, effects and the local reading of every row (``block_reading``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.bases import (
    LANDMARKS_PER_DIRECTION,
    OWN,
    own_quantiles,
    typical_gamma,
)
from congruence.kernels.conditional_calibration.block_bases import (
    PROTOCOL,
    BlockBases,
    BlockColumns,
    BlockKernel,
    PreparedBlocks,
    with_constant,
)
from congruence.kernels.conditional_calibration.effects import LARGEST_LEVERAGE, kept_weights
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.local_distribution import LEVELS, QUANTILE_95, LocalDistribution
from congruence.kernels.conditional_calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.smoothing import chosen_ridge, ridged
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.landmarks import choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.spectrum import directions_of_sums
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.row_blocks.sums import BlockSums, chosen_in

_RIDGE = 1e-3


@dataclass(frozen=True)
class BlockCalibration:
    """What every block needs to know of a version to add up its scores.

    Attributes:
        name: of the version.
        own: kernel on its own quantiles; None where these do not depend on the input, or are not finite.
        reference: name, weights w (k,) and B (m, k) of the regression of the effects.
        smoother: filters (k,) and B (m, k) of the protocol's kernel.
    """

    name: str
    own: BlockKernel | None = field(repr=False)
    reference: tuple[str, Array, Array] = field(repr=False)
    smoother: tuple[Array, Array] = field(repr=False)


def said_sums(told: BlockBases, targets: Array, predictive: Distribution, positions: Array, first: int) -> BlockSums:
    """A version's own quantiles at the sampled rows of a block."""
    sums = BlockSums()
    rows = chosen_in(positions, first, len(targets))
    if len(rows):
        said = own_quantiles(targets[rows], predictive[rows], told.settings.levels)
        sums.keep("said", np.empty((len(rows), 0)) if said is None else np.asarray(said, dtype=np.float64))
    return sums


def planned_calibration(prepared: PreparedBlocks, name: str, said: BlockSums) -> BlockCalibration:
    """The version's own basis, from the sampled rows."""
    told, settings = prepared.told, prepared.told.settings
    points = said.rows("said")
    own = None
    gamma = typical_gamma(points, told.seed) if points.shape[1] and np.isfinite(points).all() else None
    if gamma is not None:
        # In the precision of the shared columns: what is rounding in products with them must not become a direction.
        points = points.astype(told.dtype)
        kernel, center = RBF(gamma), np.median(points, axis=0)
        operator = RegularizedGram(points - center, kernel, _RIDGE)
        chosen = choose_landmarks(operator, LANDMARKS_PER_DIRECTION * settings.own_directions, seed=told.seed)
        own = BlockKernel.of(OWN, kernel, points[chosen], center)
    eigenvalues, coordinates = prepared.of(prepared.reference)
    weights = kept_weights(eigenvalues, min(settings.ridges))
    reference = prepared.reference, weights, coordinates[:, : len(weights)]
    return BlockCalibration(name, own, reference, prepared.smoother)


@dataclass(frozen=True)
class BlockRows:
    """A version's PIT values and their scores at the rows of a block, and what it says of them.

    Attributes:
        pit: (rows,).
        scores: (rows, 4).
        said: its own quantiles, (rows, q); None without an own basis.
    """

    pit: Array
    scores: Array
    said: Array | None

    @classmethod
    def of(cls, told: BlockBases, targets: Array, predictive: Distribution, keys: Array, *, has_own: bool) -> BlockRows:
        """From targets and predictions."""
        pit = pit_values(targets, predictive, seed=told.seed, keys=keys)
        said = own_quantiles(targets, predictive, told.settings.levels) if has_own else None
        return cls(pit, pit_scores(pit), said)


def regression_at(plan: BlockCalibration, columns: Mapping[str, Array]) -> tuple[Array, Array]:
    """U of the regression of the effects at a tile's rows, (rows, k), and H_ii, (rows,)."""
    name, weights, coordinates = plan.reference
    if name in columns:
        vectors = columns[name] @ coordinates.astype(columns[name].dtype)
    else:
        vectors = np.tile(coordinates[0], (len(next(iter(columns.values()))), 1))
    return vectors, np.minimum(vectors**2 @ weights, LARGEST_LEVERAGE)


def version_sums(
    told: BlockBases,
    x: Array,
    rows_of: Mapping[str, BlockRows],
    plans: Sequence[BlockCalibration],
) -> dict[str, BlockSums]:
    """What a block adds: products of all columns with the scores, and with the version's own columns.

    Args:
        told: the split's bases.
        x: inputs of the block, as the protocol wants them.
        rows_of: by version.
        plans: of the versions.
    """
    sums = {plan.name: BlockSums() for plan in plans}
    own = {plan.name: _own_columns(plan, rows_of[plan.name], sums[plan.name]) for plan in plans}
    for rows, columns in told.tiles(x):
        # float64: coordinates of the smallest directions are a thousand times larger than of the first.
        stacked = with_constant(columns).astype(np.float64)
        for plan in plans:
            added, scores = sums[plan.name], rows_of[plan.name].scores[rows]
            vectors, leverage = regression_at(plan, columns)
            lifted = scores / (1.0 - leverage)[:, None]
            below = rows_of[plan.name].pit[rows, None] <= LEVELS
            added.add("projected", _product(stacked, scores))
            added.add("squares", np.sum(scores**2, axis=0))
            added.add("lifted", _product(vectors, lifted))
            added.add("below", _product(with_constant({PROTOCOL: columns[PROTOCOL]}), below))
            mine = own[plan.name]
            if mine is not None:
                beside = mine.at(rows)[""].astype(np.float64)
                added.add("own projected", _product(beside, scores))
                added.add("own shared", _product(beside, stacked))
                added.add("own products", beside.T @ beside)
    return sums


def _own_columns(plan: BlockCalibration, rows: BlockRows, sums: BlockSums) -> BlockColumns | None:
    if plan.own is None or rows.said is None:
        return None
    said = rows.said
    bad = np.asarray(~np.isfinite(said).all(axis=1))
    sums.add("endless", float(np.count_nonzero(bad)))
    # Rows without quantiles are counted: with any of them the version has no basis of its own.
    assert plan.own.center is not None
    return BlockColumns(np.where(bad[:, None], plan.own.center, said).astype(plan.own.landmarks.dtype), {"": plan.own})


def _product(left: Array, right: Array) -> Array:
    """left'right of a tile, in the precision of the columns, (columns, r)."""
    return np.asarray((right.T.astype(left.dtype) @ left).T, dtype=np.float64)


@dataclass(frozen=True)
class ProjectedVersion:
    """What the sums of a version say, but for its effects.

    Attributes:
        plan: as the blocks know it.
        observed: evidence of every basis, (bases, 5, 1).
        null: of the draws, (bases, 5, B).
        names: of the bases.
        means: of the scores, (4,).
        regression: U'phi of the effects' basis, (k, 4).
        lifted: U'(phi / (1 - H_ii)), (k, 4).
        smoothing: what rows are read with.
        curves: the local P-P plot at each region's medoid.
    """

    plan: BlockCalibration
    observed: Array = field(repr=False)
    null: Array = field(repr=False)
    names: tuple[str, ...]
    means: Array
    regression: Array = field(repr=False)
    lifted: Array = field(repr=False)
    smoothing: BlockSmoothing = field(repr=False)
    curves: LocalDistribution = field(repr=False)


@dataclass(frozen=True)
class BlockSmoothing:
    """Smoothed scores and local means at any row, from U there (``smoothing.LocalMean``, ``local_reading``).

    Attributes:
        n: rows of the split.
        means: of the scores, (4,).
        coefficients: f U'phi, (k, 4).
        weights: f U'U f, (k, k), of the squared weights of the smoothed scores.
        local: f_j U'(phi_j - mean), (k, 4), by the ridge that suits each order; 0 where no smoothing does.
        inner: (k, k) by order: f_j U'U f_j - (f_j U'1)(f_j U'1)'/n.
        mixing: variance of the local spread scores over the rows.
    """

    n: int
    means: Array
    coefficients: Array = field(repr=False)
    weights: Array = field(repr=False)
    local: Array = field(repr=False)
    inner: Array = field(repr=False)
    mixing: float

    @classmethod
    def of(
        cls, prepared: PreparedBlocks, filters: Array, projected: Array, means: Array, squares: Array
    ) -> BlockSmoothing:
        """From U'phi (k, 4), the mean scores and their sums of squares."""
        n, k = prepared.told.n, len(filters)
        between, ones = prepared.between(PROTOCOL)[:k, :k], prepared.total(PROTOCOL)[:k]
        centred = projected - np.outer(ones, means)
        local, inner = np.zeros((k, len(ORDERS))), np.zeros((len(ORDERS), k, k))
        for j in range(len(ORDERS)):
            total = float(squares[j]) - n * float(means[j]) ** 2
            ridge = chosen_ridge(filters, centred[:, j] ** 2, total, n)
            kept = ridged(filters, ridge).astype(np.float64)
            local[:, j] = kept * centred[:, j]
            inner[j] = kept[:, None] * (between - np.outer(ones, ones) / n) * kept
        spread = ORDERS.index("spread")
        a = local[:, spread]
        mixing = float(a @ between @ a) / n - (float(ones @ a) / n) ** 2
        weights = filters[:, None] * between * filters
        return cls(n, means, filters[:, None] * projected, weights, local, inner, max(mixing, 0.0))


def projected_version(prepared: PreparedBlocks, plan: BlockCalibration, sums: BlockSums) -> ProjectedVersion:
    """Evidence of the shared bases and of the version's own, and the smoothing of its scores."""
    settings, n = prepared.told.settings, prepared.told.n
    projected = prepared.coefficients(sums.added["projected"])
    means = sums.added["projected"][0] / n
    found = list(zip(prepared.bases, projected, strict=True))
    names = [basis.name for basis, _ in found]
    evidence = [basis_hypotheses(basis.eigenvalues, settings).evidence(c[:, :, None]) for basis, c in found]
    null = prepared.null_evidence
    if plan.own is not None and not sums.added.get("endless"):
        observed, drawn = _own_evidence(prepared, plan.own, sums)
        evidence.append(observed)
        null = np.concatenate([null, drawn[None]])
        names.append(OWN)
    name, weights, _ = plan.reference
    filters, _ = plan.smoother
    at_reference = projected[names.index(name)][: len(weights)]
    at_protocol = projected[names.index(PROTOCOL)][: len(filters)]
    smoothing = BlockSmoothing.of(prepared, filters.astype(np.float64), at_protocol, means, sums.added["squares"])
    return ProjectedVersion(
        plan,
        np.stack(evidence),
        null,
        tuple(names),
        means,
        at_reference,
        sums.added["lifted"],
        smoothing,
        _curves(prepared, plan, sums.added["below"]),
    )


def _own_evidence(prepared: PreparedBlocks, own: BlockKernel, sums: BlockSums) -> tuple[Array, Array]:
    """Of the observation, (5, 1), and of the draws, (5, B)."""
    told, settings = prepared.told, prepared.told.settings
    products = sums.added["own products"]
    basis, eigenvalues = directions_of_sums(own.kernel, own.landmarks, products, told.n)
    basis, eigenvalues = basis[:, : settings.own_directions], eigenvalues[: settings.own_directions]
    hypotheses = basis_hypotheses(eigenvalues / told.n, settings)
    shared = np.concatenate(prepared.coefficients(sums.added["own shared"].T)).T
    draw = prepared.null.given(basis.T @ shared, basis.T @ products @ basis)
    null = np.concatenate([hypotheses.evidence(draw(block)) for block in prepared.null.blocks()], axis=1)
    return hypotheses.evidence((basis.T @ sums.added["own projected"])[:, :, None]), null


def _curves(prepared: PreparedBlocks, plan: BlockCalibration, below: Array) -> LocalDistribution:
    """``local_distribution`` at the medoids, from sums of [1, K] and of which PIT values lie below each level."""
    told, n = prepared.told, prepared.told.n
    filters, coordinates = plan.smoother
    (columns,) = [tile for _, tile in told.tiles(told.medoids[1], (PROTOCOL,))]
    vectors = columns[PROTOCOL].astype(np.float64) @ coordinates
    ones = prepared.total(PROTOCOL)[: len(filters)]
    mean = below[0] / n
    centred = coordinates.T @ below[1:] - np.outer(ones, mean)
    shares = mean + vectors @ (filters[:, None] * centred)
    between = prepared.between(PROTOCOL)[: len(filters), : len(filters)]
    weighted = vectors * filters
    squared = np.einsum("ij,ij->i", weighted @ (between - np.outer(ones, ones) / n), weighted)
    squares = np.maximum(1.0 / n + squared, 1.0 / n)
    spread = QUANTILE_95 * np.sqrt(np.multiply.outer(squares, LEVELS * (1.0 - LEVELS)))
    return LocalDistribution(LEVELS, shares, np.clip(LEVELS - spread, 0.0, 1.0), np.clip(LEVELS + spread, 0.0, 1.0))
