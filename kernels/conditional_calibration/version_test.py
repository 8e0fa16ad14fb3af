"""What the sums over all rows say of a version: evidence against draws of the null, smoothing, and the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import PROTOCOL, BasisKernel, InputBases, Tiles
from congruence.kernels.conditional_calibration.effects import Effect, LeaveOneOut
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalReading
from congruence.kernels.conditional_calibration.null import GaussianNull, Null, draw_blocks, evidence_of_draws
from congruence.kernels.conditional_calibration.own_basis import OWN, OwnDirections
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest, NullKind
from congruence.kernels.conditional_calibration.smoothing import Directions, ScoreSmoothing

INFLUENCE = f"{PREFIX}influence_"


@dataclass(frozen=True)
class SharedNull:
    """Draws of the null along the directions that all versions share.

    Attributes:
        kind: what drew them.
        draws: B.
        coefficients: of them.
        evidence: (bases, 5, B): each order, then all.
    """

    kind: NullKind
    draws: int
    coefficients: Null = field(repr=False)
    evidence: Array = field(repr=False)

    @classmethod
    def of(cls, bases: InputBases, kind: NullKind, coefficients: Null) -> SharedNull:
        """The evidence of every draw."""
        draws = bases.plan.settings.draws_for(bases.plan.n)
        return cls(kind, draws, coefficients, evidence_of_draws(coefficients, draws, lambda c: evidence(bases, c)))


def evidence(bases: InputBases, coefficients: Array) -> Array:
    """Of every basis and order, then all orders, (bases, 5, D), for coefficients (k, 4, D)."""
    settings = bases.plan.settings
    return np.stack(
        [
            basis_hypotheses(basis.eigenvalues, settings).evidence(part)
            for basis, part in zip(bases.bases, bases.split(coefficients), strict=True)
        ]
    )


def own_directions(bases: InputBases, kernel: BasisKernel | None, sums: BlockSums) -> OwnDirections | None:
    """Directions of a version's own basis; None where its quantiles are not all finite."""
    if kernel is None or sums.added.get("unbounded", 1.0) > 0:
        return None
    return OwnDirections.of(kernel, sums.added["own products"], bases.plan.n, bases.plan.settings)


def gaussian_own_null(shared: GaussianNull, own: OwnDirections, sums: BlockSums) -> Null:
    """The limit of a version's own coefficients, in step with the shared ones."""
    basis = own.coordinates
    return shared.given(basis.T @ sums.added["own shared"], basis.T @ sums.added["own products"] @ basis)


@dataclass(frozen=True)
class VersionEvidence:
    """Evidence of every basis against a version, observed and drawn.

    Attributes:
        names: of the bases.
        observed: (bases, 5, 1), each order, then all.
        null: of the draws, (bases, 5, B).
        kind: what drew them.
    """

    names: tuple[str, ...]
    observed: Array = field(repr=False)
    null: Array = field(repr=False)
    kind: NullKind

    @classmethod
    def of(
        cls,
        bases: InputBases,
        shared: SharedNull,
        sums: BlockSums,
        own: OwnDirections | None,
        own_null: Null | None,
    ) -> VersionEvidence:
        """From the sums of scores over all rows.

        Args:
            bases: of the split.
            shared: its null.
            sums: of the version, from ``score_sums``.
            own: directions of its own basis, if it has one.
            own_null: draws of its own coefficients, in step with the shared ones.
        """
        names = tuple(basis.name for basis in bases.bases)
        observed = evidence(bases, sums.added["projected"][:, :, None])
        if own is None or own_null is None:
            return cls(names, observed, shared.evidence, shared.kind)
        hypotheses = basis_hypotheses(own.eigenvalues, bases.plan.settings)
        drawn = evidence_of_draws(own_null, shared.draws, hypotheses.evidence)
        mine = hypotheses.evidence((own.coordinates.T @ sums.added["own projected"])[:, :, None])
        null = np.concatenate([shared.evidence, drawn[None]])
        return cls((*names, OWN), np.concatenate([observed, mine[None]]), null, shared.kind)

    @classmethod
    def of_own_null(
        cls, bases: InputBases, sums: BlockSums, own: OwnDirections | None, null: Null, draws: int, kind: NullKind
    ) -> VersionEvidence:
        """Against a null that is the version's alone: every statistic is scaled by its own draws.

        Args:
            bases: of the split.
            sums: of the version, from ``score_sums``.
            own: directions of its own basis, if it has one.
            null: draws of the coefficients of all bases and of its own side by side, (k, 4, D).
            draws: B.
            kind: what drew them.
        """
        named = [(basis.name, basis.eigenvalues) for basis in bases.bases]
        observed = bases.split(sums.added["projected"])
        if own is not None:
            named.append((OWN, own.eigenvalues))
            observed.append(own.coordinates.T @ sums.added["own projected"])
        found = [basis_hypotheses(eigenvalues, bases.plan.settings) for _, eigenvalues in named]
        ends = [basis.place.stop for basis in bases.bases][: len(named) - 1]
        forms: list[list[Array]] = [[each.forms(part[:, :, None])] for each, part in zip(found, observed, strict=True)]
        for block in draw_blocks(draws):
            parts = np.split(null(block), ends)
            for each, part, kept in zip(found, parts, forms, strict=True):
                kept.append(each.forms(part))
        evidence = np.stack(
            [each.evidence_by_moments(np.concatenate(kept, axis=2)) for each, kept in zip(found, forms, strict=True)]
        )
        return cls(tuple(name for name, _ in named), evidence[:, :, :1], evidence[:, :, 1:], kind)

    def test(
        self,
        effects: Mapping[str, Effect],
        means: Mapping[str, float],
        blocks: int | None = None,
        orders: Sequence[str] = ORDERS,
    ) -> ConditionalCalibrationTest:
        """The outcome, with effects and mean scores; ``orders`` are what evidence has between bases and draws."""
        observed, null = self.observed, self.null

        def p_value(axes: Any) -> float:
            """Of the maximum over the bases and orders at ``axes``."""
            reached = np.max(null[axes], axis=(0, 1)) >= np.max(observed[axes])
            return float((1 + np.count_nonzero(reached)) / (null.shape[2] + 1))

        return ConditionalCalibrationTest(
            statistic=float(np.max(observed)),
            p_value=p_value(np.s_[:]),
            by_order={name: p_value(np.s_[:, j : j + 1]) for j, name in enumerate(orders)},
            by_basis={name: p_value(np.s_[b : b + 1]) for b, name in enumerate(self.names)},
            effects=effects,
            means=means,
            draws=null.shape[2],
            null=self.kind,
            null_statistics=np.max(null, axis=(0, 1)),
            blocks=blocks,
        )


@dataclass(frozen=True)
class VersionSmoothing:
    """What the sums of a version say of the rows: how its scores are smoothed, and their regression.

    Attributes:
        known: sums of its scores over all rows.
        regression: of the effects.
        place: of the directions that are smoothed in; None without a protocol's kernel.
        smoothing: of the scores there.
    """

    known: BlockSums = field(repr=False)
    regression: LeaveOneOut
    place: slice | None
    smoothing: ScoreSmoothing | None = field(repr=False)

    @classmethod
    def of(cls, bases: InputBases, sums: BlockSums) -> VersionSmoothing:
        """From the sums of scores over all rows."""
        regression, found = LeaveOneOut.of_bases(bases), directions(bases)
        if found is None:
            return cls(sums, regression, None, None)
        place, inside = found
        projected, means = sums.added["projected"][place], sums.added["scores"] / bases.plan.n
        smoothing = ScoreSmoothing.of(
            inside,
            projected,
            means,
            sums.added["squares"],
            weighted=sums.added.get("weighted"),
            variance=sums.added["variance"] / bases.plan.n if "variance" in sums.added else None,
        )
        return cls(sums, regression, place, smoothing)

    def reading(self, vectors: Array) -> LocalReading:
        """Of rows with directions U, (rows, k)."""
        assert self.smoothing is not None
        return LocalReading.at(self.smoothing, vectors[:, self.place])


def directions(bases: InputBases) -> tuple[slice, Directions] | None:
    """The directions of the protocol's kernel and their place; None where that is no basis."""
    basis = bases.named(PROTOCOL)
    if basis is None or bases.smoother is None:
        return None
    place, filters = bases.smoother
    kept = slice(0, len(filters))
    return place, Directions(bases.plan.n, filters, basis.moment[kept, kept], basis.total[kept])


def effect_sums(
    tiles: Tiles,
    scores: Mapping[str, Array],
    versions: Mapping[str, VersionSmoothing],
    *,
    read: bool,
    weights: Array | None = None,
) -> tuple[dict[str, BlockSums], dict[str, dict[str, Array]]]:
    """What a block adds to the effects of every version, and columns of its rows: influences and, if asked, readings.

    Args:
        tiles: of the block.
        scores: of its rows by version, (rows, 4).
        versions: what their sums said.
        read: whether every row is read.
        weights: what the rows count in the effects, (rows,), of mean 1 over all rows.
    """
    sums = {name: BlockSums() for name in versions}
    parts: dict[str, list[dict[str, Array]]] = {name: [] for name in versions}
    for rows, vectors in tiles:
        for name, version in versions.items():
            counted = None if weights is None else weights[rows]
            influence = version.regression.add_effects(sums[name], version.known, vectors, scores[name][rows], counted)
            columns = {f"{INFLUENCE}{order}": influence[:, j] for j, order in enumerate(ORDERS)}
            parts[name].append(columns | (version.reading(vectors).by_row() if read else {}))
    written = {
        name: {column: np.concatenate([part[column] for part in some]) for column in some[0]}
        for name, some in parts.items()
        if some
    }
    return sums, written
