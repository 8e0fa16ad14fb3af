"""The score test of some versions of a split: what sums over all rows say of each, against draws of the null.

The passes are over blocks of rows wherever these are (``engine.blocks.Passes``); in memory one block holds all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import Bases, Basis
from congruence.kernels.conditional_calibration.effects import (
    ConditionalCalibrationTest,
    Effect,
    LeaveOneOut,
    outcome_of_evidence,
)
from congruence.kernels.conditional_calibration.local_reading import (
    LEVELS,
    PREFIX,
    LocalDistribution,
    LocalReading,
    ScoreSmoothing,
    smoothed_shares,
)
from congruence.kernels.conditional_calibration.null import (
    DRAWS_AT_ONCE,
    draw_blocks,
    evidence_by_others,
    evidence_of,
    forms,
    most,
    weights_of,
)
from congruence.kernels.conditional_calibration.passes import (
    INFLUENCE,
    Version,
    null_pass,
)
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions
from congruence.kernels.dependence.blocks import enlargements
from congruence.kernels.engine.blocks import BlockSums, Passes
from congruence.kernels.pit import ORDERS
from congruence.kernels.threads import map_on_threads


@dataclass(frozen=True)
class VersionCalibration:
    """Whether a version is calibrated given the input, and where it is not.

    Attributes:
        test: over the whole split, with effects by order; of vector targets over ``rows`` of it, without effects.
        mixing: see ``LocalReading``.
        medoids: the row nearest to the centre of each region of the inputs, among the sampled ones; the same for all
            versions. None without a reading, of vector targets, which have no PIT.
        curves: the local P-P plot at each of them.
        rows: that were tested, where these are not all.
        by_row: columns of every row, named ``calibration_...``; none where they lie block by block.
    """

    test: ConditionalCalibrationTest
    mixing: float = 0.0
    medoids: Array | None = None
    curves: LocalDistribution | None = field(default=None, repr=False)
    rows: int | None = None
    by_row: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def whole(self, columns: Mapping[str, Array]) -> VersionCalibration:
        """Returns it with those of some columns of all rows that are its own."""
        return replace(self, by_row={name: each for name, each in columns.items() if name.startswith(PREFIX)})

    def at_rows(self, chosen: Array) -> VersionCalibration:
        """Returns it with the columns of some rows alone."""
        return replace(self, by_row={name: each[chosen] for name, each in self.by_row.items()})

    @cached_property
    def reading(self) -> LocalReading | None:
        """What is wrong around every row; None of vector targets."""
        return LocalReading.of_rows(self.by_row, self.mixing) if self.by_row else None

    @property
    def regions(self) -> Regions | None:
        """A partition of the rows, unnamed; None without a reading."""
        if self.medoids is None or not self.by_row:
            return None
        return Regions.of(self.by_row[f"{PREFIX}region"].astype(np.int16), self.medoids)

    def columns(self) -> dict[str, Array]:
        """What is known of every row, by the names of the scores; ``calibration_fault`` is text."""
        found = {} if self.reading is None else self.reading.columns()
        return found | {name: column for name, column in self.by_row.items() if name.startswith(INFLUENCE)}


Evidence = tuple[Array, Array]
"""Of every basis against a version, observed, (bases, 5, 1), and drawn, (bases, 5, B): each order, then all."""


@dataclass(frozen=True)
class ScoredVersion:
    """A version with what its scores sum to over all rows.

    Attributes:
        bases: that all versions share.
        version: with the directions of its own basis, if it has one.
        sums: from ``scores_pass``.
    """

    bases: Bases = field(repr=False)
    version: Version
    sums: BlockSums = field(repr=False)

    @classmethod
    def of(cls, bases: Bases, version: Version, sums: BlockSums) -> ScoredVersion:
        """Returns it; a version whose quantiles are not all finite has no basis of its own."""
        own = None
        if version.own is not None and np.isfinite(products := sums.added["own products"]).all():
            own = version.own.spanned(products, bases.n, bases.settings.own_directions, bases.directions)
        return cls(bases, replace(version, own=own), sums)

    @property
    def all_bases(self) -> tuple[Basis, ...]:
        """Those that all versions share, then its own."""
        return self.bases.all if self.version.own is None else (*self.bases.all, self.version.own)

    def _coefficients(self, shared: str, own: str) -> Array:
        """Sums along the directions of all bases, its own last, (..., k, 4)."""
        found = self.sums.added[shared]
        if self.version.own is None:
            return np.asarray(found)
        return np.concatenate([found, self.version.own.coordinates.T @ self.sums.added[own]], axis=-2)

    @cached_property
    def observed(self) -> Array:
        """U'phi, (k, 4, 1)."""
        return self._coefficients("projected", "own projected")[:, :, None]

    @cached_property
    def in_blocks(self) -> Array:
        """U'phi of each block of dependent rows, (B, k, 4)."""
        return self._coefficients("in blocks", "own in blocks")

    def evidence(self, null: Array) -> Evidence:
        """Against draws whose evidence is known, (bases, 5, B)."""
        of_bases = [evidence_of(weights_of(basis.eigenvalues), self.observed[basis.place]) for basis in self.all_bases]
        return np.stack(of_bases), null

    def evidence_by_own_null(self, run: Passes) -> Evidence:
        """Against draws that are its own, by whose moments every statistic is scaled."""
        dependent, draws = self.version.dependent, self.bases.settings.draws_of_version(self.bases.n)
        if dependent is None:
            found = run("calibration jumps", null_pass, self.bases, [self.version], draws, True)[""]
            drawn = [found.added[f"draws from {block}"] for block in draw_blocks(draws)]
        else:  # sums within blocks under one random sign a block
            flat, shape, drawn = self.in_blocks.reshape(len(self.in_blocks), -1).T, self.in_blocks.shape[1:], []
            constant = self.in_blocks[:, 0]  # sums of scores over the root of n: the first direction is the constant
            apart = enlargements(constant)
            if "stated" in self.sums.added:  # where by chance no rare outcome falls, scores hardly vary
                seen = np.maximum(np.sum(constant**2, axis=0), np.finfo(float).tiny)
                apart *= np.sqrt(np.maximum(self.sums.added["stated"] / self.bases.n / seen, 1.0))
            for block in draw_blocks(draws):
                signs = dependent.signs(min(DRAWS_AT_ONCE, draws - block), self.bases.seed, block)
                drawn.append(apart[:, None] * (flat @ signs).reshape(*shape, -1))
        of_bases = []
        for basis in self.all_bases:
            weights = weights_of(basis.eigenvalues)
            of_parts = [forms(weights, coefficients[basis.place]) for coefficients in (self.observed, *drawn)]
            of_bases.append(most(evidence_by_others(np.concatenate(of_parts, axis=2))))
        evidence = np.stack(of_bases)
        return evidence[:, :, :1], evidence[:, :, 1:]

    @cached_property
    def smoothing(self) -> ScoreSmoothing | None:
        """Of its scores, in the directions of the protocol's kernel; None without it."""
        if self.bases.smoothing is None:
            return None
        place, directions = self.bases.smoothing
        added, n = self.sums.added, self.bases.n
        weighted, variance = added.get("weighted"), added.get("variance")
        if self.version.dependent is not None:
            # What stands for U' diag(v) U and sum v: the same of blocks of rows, whose sums are independent.
            weighted = np.stack([part.T @ part for part in np.moveaxis(self.in_blocks[:, place], 2, 0)])
            variance = n * np.sum(self.in_blocks[:, 0] ** 2, axis=0)
        return ScoreSmoothing.of(
            directions,
            added["projected"][place],
            added["scores"] / n,
            added["squares"],
            weighted=weighted,
            variance=None if variance is None else variance / n,
            members=int(self.sums.largest["members"]) or None,
        )

    @property
    def regression(self) -> BlockSums:
        """What the second pass of ``LeaveOneOut`` needs of the first: little beside the sums by block."""
        return BlockSums({name: self.sums.added[name] for name in ("regression", "lifted")})

    def effects(self, found: BlockSums) -> Mapping[str, Effect]:
        """Of each order, from what ``reading_pass`` added up."""
        regression, n, dependent = LeaveOneOut.of_bases(self.bases), self.bases.n, self.version.dependent
        effects = regression.effects(found)
        if dependent is None:
            return effects
        sums, inside = found.added["influence of blocks"], self.in_blocks[:, regression.place]
        sums = sums - np.bincount(dependent.labels, minlength=dependent.count)[:, None] * (np.sum(sums, axis=0) / n)
        return regression.by_blocks(effects, sums / n, self.sums, inside, n)

    def calibration(
        self, evidence: Evidence, found: BlockSums, places: RegionCenters | None, medoids: Array | None
    ) -> VersionCalibration:
        """The outcome by its evidence, with effects from what ``reading_pass`` found.

        ``medoids``: the directions U of all bases at those of ``places``, (m, k); None both where nothing is read.
        """
        added, n, dependent = self.sums.added, self.bases.n, self.version.dependent
        test = outcome_of_evidence(
            [basis.name for basis in self.all_bases],
            *evidence,
            effects=self.effects(found),
            means=dict(zip(ORDERS, (added["scores"] / n).tolist(), strict=True)),
            blocks=None if dependent is None else dependent.count,
        )
        if places is None or medoids is None or self.bases.smoothing is None or self.smoothing is None:
            return VersionCalibration(test)
        place, directions = self.bases.smoothing
        curves = smoothed_shares(directions, added["below"], added["shares"] / n, medoids[:, place], LEVELS)
        return VersionCalibration(test, self.smoothing.mixing, places.medoids, curves)


def evidence_by_shared_null(
    run: Passes, bases: Bases, scored: Mapping[str, ScoredVersion], known: dict[int, Array]
) -> dict[str, Evidence]:
    """By the exact null of independent rows, drawn along the directions that versions share and along their own.

    ``known``: the null that versions share, by the number of draws, where it was drawn before; it is kept there.
    """
    sharing = {
        name: each for name, each in scored.items() if not each.version.by_jumps and each.version.dependent is None
    }
    if not sharing:
        return {}
    draws = bases.settings.draws_for(bases.n)
    own = {name: each.version for name, each in sharing.items() if each.version.own is not None}
    drawn: list[Array] = []
    is_new = draws not in known
    if own or is_new:
        found = run("calibration null", null_pass, bases, list(own.values()), draws, is_new)[""]
        parts, start = [found.added[f"draws from {block}"] for block in draw_blocks(draws)], 0
        for basis in [*(bases.all if is_new else ()), *(version.own for version in own.values())]:
            assert basis is not None
            stop = start + len(basis.eigenvalues)
            of_basis = partial(evidence_of, weights_of(basis.eigenvalues))
            of_draws = map_on_threads(of_basis, [part[start:stop] for part in parts])
            drawn.append(np.concatenate(of_draws, axis=-1))
            start = stop
    if is_new:
        known[draws], drawn = np.stack(drawn[: len(bases.all)]), drawn[len(bases.all) :]
    nulls = {name: np.concatenate([known[draws], each[None]]) for name, each in zip(own, drawn, strict=True)}
    return {name: each.evidence(nulls.get(name, known[draws])) for name, each in sharing.items()}
