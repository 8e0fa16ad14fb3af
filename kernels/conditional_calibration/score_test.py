"""The score test of some versions of a split: what sums over all rows say of each, against draws of the null.

The passes are over blocks of rows wherever these are (``engine.blocks.Passes``); in memory one block holds all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.bases import Basis, InputBases
from congruence.kernels.conditional_calibration.effects import (
    ConditionalCalibrationTest,
    Effect,
    LeaveOneOut,
    NullKind,
    effects_by_blocks,
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
    BasisHypotheses,
    CalibrationSettings,
    basis_hypotheses,
    draw_blocks,
)
from congruence.kernels.conditional_calibration.passes import (
    INFLUENCE,
    VersionPlan,
    jumps_pass,
    null_pass,
    reading_pass,
    scores_pass,
)
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions
from congruence.kernels.dependence.blocks import DependentBlocks, enlargements
from congruence.kernels.engine.blocks import BlockSums, Pass, Passes, Write
from congruence.kernels.pit import ORDERS
from congruence.kernels.threads import map_on_threads

SharedNull = dict[int, Array]
"""Evidence of the draws that all versions of a split share, (bases, 5, B), by B: made when it is first asked for."""


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
        names = tuple(f"region {k + 1}" for k in range(len(self.medoids)))
        return Regions(self.by_row[f"{PREFIX}region"].astype(np.int16), self.medoids, names)

    @property
    def influence(self) -> Array | None:
        """Of every row on the effects, (n, 4), see ``effects``; None without a reading."""
        return np.column_stack([self.by_row[f"{INFLUENCE}{order}"] for order in ORDERS]) if self.by_row else None

    def columns(self) -> dict[str, Array]:
        """What is known of every row, by the names of the scores; ``calibration_fault`` is text."""
        found = {} if self.reading is None else self.reading.columns()
        return found | {name: column for name, column in self.by_row.items() if name.startswith(INFLUENCE)}


@dataclass(frozen=True)
class ScoredVersion:
    """A version with what its scores sum to over all rows.

    Attributes:
        bases: that all versions share.
        plan: of the version.
        sums: from ``scores_pass``.
    """

    bases: InputBases = field(repr=False)
    plan: VersionPlan
    sums: BlockSums = field(repr=False)

    @cached_property
    def own(self) -> Basis | None:
        """Its own basis; None where its quantiles are not all finite, or do not depend on the input."""
        if self.plan.own is None or self.sums.added["unbounded"] > 0:
            return None
        products, plan = self.sums.added["own products"], self.bases.plan
        return Basis.of(self.plan.own, products, plan.n, plan.settings.own_directions, self.bases.directions)

    @property
    def all_bases(self) -> tuple[Basis, ...]:
        """Those that all versions share, then its own."""
        return self.bases.bases if self.own is None else (*self.bases.bases, self.own)

    @cached_property
    def hypotheses(self) -> list[BasisHypotheses]:
        """Of each of these."""
        return [basis_hypotheses(basis.eigenvalues, self.bases.plan.settings) for basis in self.all_bases]

    @property
    def names(self) -> tuple[str, ...]:
        """Of these."""
        return tuple(basis.name for basis in self.all_bases)

    def _coefficients(self, shared: str, own: str) -> Array:
        """Sums along the directions of all bases, its own last, (..., k, 4)."""
        found = self.sums.added[shared]
        if self.own is None:
            return np.asarray(found)
        return np.concatenate([found, self.own.coordinates.T @ self.sums.added[own]], axis=-2)

    @cached_property
    def observed(self) -> Array:
        """U'phi, (k, 4, 1)."""
        return self._coefficients("projected", "own projected")[:, :, None]

    @cached_property
    def in_blocks(self) -> Array:
        """U'phi of each block of dependent rows, (B, k, 4)."""
        return self._coefficients("in blocks", "own in blocks")

    def evidence(self, null: Array) -> VersionEvidence:
        """Against draws whose evidence is known, (bases, 5, B)."""
        found = [each.evidence(part) for each, part in zip(self.hypotheses, self._by_basis(self.observed), strict=True)]
        return VersionEvidence(self.names, np.stack(found), null, "exact")

    def evidence_by_own_null(self, run: Passes) -> VersionEvidence:
        """Against draws that are its own, by whose moments every statistic is scaled."""
        plan, dependent = self.bases.plan, self.plan.dependent
        draws = plan.settings.draws_of_version(plan.n)
        if dependent is None:
            found = run("calibration jumps", jumps_pass, self.bases, self.plan, self.own, draws)[""]
            drawn = [found.added[f"draws from {block}"] for block in draw_blocks(draws)]
        else:
            drawn = self._signed(dependent, draws)
        forms = []
        for coefficients in (self.observed, *drawn):
            parts = self._by_basis(coefficients)
            forms.append([each.forms(part) for each, part in zip(self.hypotheses, parts, strict=True)])
        evidence = np.stack(
            [
                each.evidence_by_moments(np.concatenate(some, axis=2))
                for each, some in zip(self.hypotheses, zip(*forms, strict=True), strict=True)
            ]
        )
        kind: NullKind = "exact" if dependent is None else "blocks"
        return VersionEvidence(self.names, evidence[:, :, :1], evidence[:, :, 1:], kind)

    def _by_basis(self, coefficients: Array) -> list[Array]:
        return [coefficients[basis.place] for basis in self.all_bases]

    def _signed(self, dependent: DependentBlocks, draws: int) -> list[Array]:
        """Sums within blocks under one random sign a block, (k, 4, D) by blocks of draws."""
        flat = self.in_blocks.reshape(len(self.in_blocks), -1).T
        apart = enlargements(self.in_blocks[:, 0])  # of the sums of scores: the first direction is the constant
        found = []
        for block in draw_blocks(draws):
            signs = dependent.signs(min(DRAWS_AT_ONCE, draws - block), self.bases.plan.seed, block)
            found.append(apart[:, None] * (flat @ signs).reshape(*self.in_blocks.shape[1:], -1))
        return found

    @cached_property
    def smoothing(self) -> ScoreSmoothing | None:
        """Of its scores, in the directions of the protocol's kernel; None without it."""
        if self.bases.smoothing is None:
            return None
        place, directions = self.bases.smoothing
        added, n = self.sums.added, self.bases.plan.n
        weighted, variance = added.get("weighted"), added.get("variance")
        if self.plan.dependent is not None:
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
        regression, n = LeaveOneOut.of_bases(self.bases), self.bases.plan.n
        effects, dependent = regression.effects(found), self.plan.dependent
        if dependent is None:
            return effects
        sums, inside = found.added["influence of blocks"], self.in_blocks[:, regression.place]
        sums = sums - np.bincount(dependent.labels, minlength=dependent.count)[:, None] * (np.sum(sums, axis=0) / n)
        within = regression.within(self.sums, inside, n)
        return effects_by_blocks(effects, sums / n, within, regression.noise(inside, n))

    def calibration(
        self, evidence: VersionEvidence, found: BlockSums, places: RegionCenters | None, medoids: Array | None
    ) -> VersionCalibration:
        """The outcome, with effects from what ``reading_pass`` added up.

        Args:
            evidence: of the version.
            found: by ``reading_pass``.
            places: centres of the regions; None where nothing is read.
            medoids: the directions U of all bases at their medoids, (m, k).
        """
        added, n = self.sums.added, self.bases.plan.n
        blocks = None if self.plan.dependent is None else self.plan.dependent.count
        test = evidence.test(
            self.effects(found), dict(zip(ORDERS, (added["scores"] / n).tolist(), strict=True)), blocks
        )
        if places is None or medoids is None or self.bases.smoothing is None or self.smoothing is None:
            return VersionCalibration(test)
        place, directions = self.bases.smoothing
        curves = smoothed_shares(directions, added["below"], added["shares"] / n, medoids[:, place], LEVELS)
        return VersionCalibration(test, self.smoothing.mixing, places.medoids, curves)


def tested_versions(
    run: Passes,
    bases: InputBases,
    plans: Sequence[VersionPlan],
    known: SharedNull,
    places: RegionCenters | None,
    write: Write | None,
) -> dict[str, VersionCalibration]:
    """Test some versions; every row is read, and written, where there are ``places``.

    Args:
        run: over the rows of the split.
        bases: of the inputs.
        plans: of the versions.
        known: the null that versions share, where it was drawn before; it is kept there.
        places: centres of the regions.
        write: takes columns of every row.
    """
    alone = [[plan] for plan in plans if plan.dependent is not None]  # sums by block are large
    sums: Pass = {}
    for some in [[plan for plan in plans if plan.dependent is None], *alone]:
        sums |= run("calibration scores", scores_pass, bases, some) if some else {}
    versions = {plan.name: ScoredVersion(bases, plan, sums[plan.name]) for plan in plans}
    evidence = _evidence_by_shared_null(run, bases, versions, known)
    smoothings = {name: version.smoothing for name, version in versions.items()}
    regressions = {name: version.regression for name, version in versions.items()}
    effects = run("calibration reading", reading_pass, bases, plans, regressions, smoothings, places, write)
    medoids, tested = None if places is None else bases.vectors(places.points), {}
    for name, version in versions.items():
        found = evidence.get(name) or version.evidence_by_own_null(run)
        tested[name] = version.calibration(found, effects[name], places, medoids)
    return tested


def _evidence_by_shared_null(
    run: Passes, bases: InputBases, versions: Mapping[str, ScoredVersion], known: SharedNull
) -> dict[str, VersionEvidence]:
    """By the exact null of independent rows, drawn along the directions that versions share and along their own."""
    sharing = {
        name: version
        for name, version in versions.items()
        if not version.plan.by_jumps and version.plan.dependent is None
    }
    if not sharing:
        return {}
    draws = bases.plan.settings.draws_for(bases.plan.n)
    own = {name: each.own for name, each in sharing.items() if each.own is not None}
    is_new = draws not in known
    drawn: list[Array] = []
    if own or is_new:
        asked = [versions[name].plan for name in own]
        found = run("calibration null", null_pass, bases, asked, own, draws, is_new)[""]
        parts = [found.added[f"draws from {block}"] for block in draw_blocks(draws)]
        drawn = _evidence_of_draws(parts, [*(bases.bases if is_new else ()), *own.values()], bases.plan.settings)
    if is_new:
        known[draws], drawn = np.stack(drawn[: len(bases.bases)]), drawn[len(bases.bases) :]
    nulls = {name: np.concatenate([known[draws], each[None]]) for name, each in zip(own, drawn, strict=True)}
    return {name: version.evidence(nulls.get(name, known[draws])) for name, version in sharing.items()}


def _evidence_of_draws(parts: Sequence[Array], bases: Sequence[Basis], settings: CalibrationSettings) -> list[Array]:
    """Of bases whose coefficients lie one after the other in every block of draws, (5, B) each."""
    found, start = [], 0
    for basis in bases:
        stop = start + len(basis.eigenvalues)
        own = [part[start:stop] for part in parts]
        hypotheses = basis_hypotheses(basis.eigenvalues, settings)
        found.append(np.concatenate(map_on_threads(hypotheses.evidence, own), axis=-1))
        start = stop
    return found
