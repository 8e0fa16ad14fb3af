"""The score test of some versions of a split: what sums over all rows say of each, against draws of the null.

The passes are over the rows of the split wherever these are: in memory, where they are one block, or anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import OWN, BasisKernel, InputBases, OwnDirections
from congruence.kernels.conditional_calibration.effects import (
    ConditionalCalibrationTest,
    Effect,
    LeaveOneOut,
    NullKind,
    effects_by_blocks,
    largest_noise,
)
from congruence.kernels.conditional_calibration.local_reading import LEVELS, LocalDistribution, smoothed_shares
from congruence.kernels.conditional_calibration.null import (
    Null,
    basis_hypotheses,
    draw_blocks,
    evidence_of_draws,
    own_null_draws,
    summed_null,
)
from congruence.kernels.conditional_calibration.passes import (
    JUMPS,
    SHARED,
    RunPass,
    Sums,
    VersionPlan,
    VersionSmoothing,
    directions,
    null_pass,
    own_null_pass,
    reading_pass,
    scores_pass,
    whole_blocks_pass,
)
from congruence.kernels.dependence.blocks import DependentBlocks, enlargements
from congruence.kernels.engine.blocks import BlockSums


@dataclass(frozen=True)
class SharedNull:
    """Draws of the null along the directions that all versions share.

    Attributes:
        draws: B.
        evidence: (bases, 5, B): each order, then all.
    """

    draws: int
    evidence: Array = field(repr=False)

    @classmethod
    def of(cls, bases: InputBases, coefficients: Null) -> SharedNull:
        """The evidence of every draw."""
        draws = bases.plan.settings.draws_for(bases.plan.n)
        return cls(draws, evidence_of_draws(coefficients, draws, lambda c: evidence(bases, c)))


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
            return cls(names, observed, shared.evidence, "exact")
        hypotheses = basis_hypotheses(own.eigenvalues, bases.plan.settings)
        drawn = evidence_of_draws(own_null, shared.draws, hypotheses.evidence)
        mine = hypotheses.evidence((own.coordinates.T @ sums.added["own projected"])[:, :, None])
        null = np.concatenate([shared.evidence, drawn[None]])
        return cls((*names, OWN), np.concatenate([observed, mine[None]]), null, "exact")

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
class TestedVersion:
    """What the passes said of a version, beside the columns of its rows.

    Attributes:
        test: with its effects.
        sums: of its scores over all rows.
        smoothing: of its scores.
    """

    __test__ = False  # no test, whatever pytest takes it for

    test: ConditionalCalibrationTest
    sums: BlockSums = field(repr=False)
    smoothing: VersionSmoothing = field(repr=False)

    @property
    def mixing(self) -> float:
        """See ``LocalReading``."""
        assert self.smoothing.smoothing is not None
        return self.smoothing.smoothing.mixing

    def curves(self, bases: InputBases, vectors: Array) -> LocalDistribution:
        """The local P-P plot where the directions U of all bases are ``vectors``, (m, k)."""
        found, added = directions(bases), self.sums.added
        assert found is not None
        place, inside = found
        return smoothed_shares(inside, added["below"], added["shares"] / bases.plan.n, vectors[:, place], LEVELS)


@dataclass(frozen=True)
class VersionTests:
    """The passes over the scores of some versions, in their order.

    Attributes:
        run: over the rows of the split.
        bases: of the inputs.
        plans: of the versions.
        dependent: blocks of rows that depend on each other, by version.
        known: the null that versions share, where the split is in memory: then one block holds all rows.
    """

    run: RunPass
    bases: InputBases
    plans: Sequence[VersionPlan]
    dependent: Mapping[str, DependentBlocks | None]
    known: Callable[[], SharedNull] | None = None

    def tested(self, *, read: bool) -> dict[str, TestedVersion]:
        """Test them; every row is read if asked."""
        bases, plans = self.bases, self.plans
        sums = self.run("calibration scores", scores_pass, bases, plans)
        own = {plan.name: own_directions(bases, plan.own, sums[plan.name]) for plan in plans}
        by_blocks = {plan.name for plan in plans if self.dependent.get(plan.name) is not None}
        alone = [plan for plan in plans if plan.name in by_blocks or JUMPS in sums[plan.name].largest]
        drawn = {plan.name: self._drawn(plan, own[plan.name]) for plan in alone}
        sharing = [plan for plan in plans if plan.name not in drawn]
        shared = self._evidence_of_shared(sums, sharing, own) if sharing else {}
        if bases.smoother is not None:
            for name in by_blocks:
                sums[name].added |= self._moments_of_blocks(name, drawn[name])
        smoothing = {plan.name: VersionSmoothing.of(bases, sums[plan.name]) for plan in plans}
        effects = self.run("calibration reading", reading_pass, plans, smoothing, self.dependent, read)
        tested = {}
        for plan in plans:
            name, dependent = plan.name, self.dependent.get(plan.name)
            evidence = shared.get(name) or self._own_evidence(sums[name], own[name], drawn[name])
            shares = smoothing[name].regression.effects(effects[name])
            if dependent is not None:
                shares = effects_by_blocks(shares, *self._noise_of_blocks(effects[name], drawn[name], dependent))
            count = None if dependent is None else dependent.count
            means = (sums[name].added["scores"] / bases.plan.n).tolist()
            test = evidence.test(shares, dict(zip(ORDERS, means, strict=True)), count)
            tested[name] = TestedVersion(test, sums[name], smoothing[name])
        return tested

    @property
    def _draws(self) -> int:
        """Of a null that is one version's alone."""
        return own_null_draws(self.bases.plan.settings.draws, self.bases.plan.n)

    def _drawn(self, plan: VersionPlan, own: OwnDirections | None) -> BlockSums:
        """See ``own_null_pass``."""
        given = self.bases, plan, own, self._draws, self.bases.plan.seed, self.dependent.get(plan.name)
        return self.run("calibration draws", own_null_pass, *given)[""]

    def _own_evidence(self, sums: BlockSums, own: OwnDirections | None, drawn: BlockSums) -> VersionEvidence:
        """By a null that is the version's alone."""
        parts = [drawn.added[f"draws from {block}"] for block in draw_blocks(self._draws)]
        kind: NullKind = "exact"
        if "scores of blocks" in drawn.added:
            kind, apart = "blocks", enlargements(drawn.added["scores of blocks"])[:, None]
            parts = [apart * part for part in parts]
        return VersionEvidence.of_own_null(self.bases, sums, own, summed_null(parts), self._draws, kind)

    def _evidence_of_shared(
        self, sums: Sums, plans: Sequence[VersionPlan], own: Mapping[str, OwnDirections | None]
    ) -> dict[str, VersionEvidence]:
        """By the null that these versions share, with its draws along their own directions."""
        shared = None if self.known is None else self.known()
        nulls = drawn_null_of_split(self.run, self.bases, plans, own, with_shared=shared is None)
        shared = shared or SharedNull.of(self.bases, nulls[SHARED])
        names = [each.name for each in plans]
        return {name: VersionEvidence.of(self.bases, shared, sums[name], own[name], nulls.get(name)) for name in names}

    def _moments_of_blocks(self, name: str, drawn: BlockSums) -> dict[str, Array]:
        """See ``block_moments``: exact where all rows are at hand, else means under signs."""
        (plan,) = (plan for plan in self.plans if plan.name == name)
        if self.known is not None:
            return self.run("calibration blocks", whole_blocks_pass, self.bases, plan, self.dependent[name])[""].added
        assert self.bases.smoother is not None
        inside = self._signed_coefficients(drawn)[self.bases.smoother[0]]
        weighted = np.einsum("kjd,ljd->jkl", inside, inside, optimize=True) / inside.shape[2]
        return {"weighted": weighted, "variance": np.sum(drawn.added["scores of blocks"] ** 2, axis=0)}

    def _noise_of_blocks(
        self, effects: BlockSums, drawn: BlockSums, blocks: DependentBlocks
    ) -> tuple[Array, Array, Array]:
        """See ``effects_by_blocks``."""
        n, sums = self.bases.plan.n, effects.added["influence of blocks"]
        sums = sums - np.bincount(blocks.labels, minlength=blocks.count)[:, None] * (np.sum(sums, axis=0) / n)
        regression = LeaveOneOut.of_bases(self.bases)
        if "in blocks" in drawn.added:
            return sums / n, regression.within(drawn, n), regression.noise(drawn, n)
        signed = self._signed_coefficients(drawn)[regression.place].transpose(2, 0, 1)
        forms = np.einsum("k,dkj->j", regression.weights, signed**2) / self._draws
        noise = largest_noise(regression.weights, signed / np.sqrt(self._draws), n)
        return sums / n, (forms - effects.added["diagonal"]) / n, noise

    def _signed_coefficients(self, drawn: BlockSums) -> Array:
        """Of all bases, (k, 4, B)."""
        parts = [drawn.added[f"draws from {block}"] for block in draw_blocks(self._draws)]
        return np.concatenate([part[: self.bases.directions] for part in parts], axis=2)


def drawn_null_of_split(
    run: RunPass,
    bases: InputBases,
    plans: Sequence[VersionPlan] = (),
    own: Mapping[str, OwnDirections | None] | None = None,
    *,
    with_shared: bool = True,
) -> dict[str, Null]:
    """The exact null of the directions of all bases, under ``SHARED`` if asked, and of versions' own by their names."""
    beside = {plan.name: mine for plan in plans if own and (mine := own[plan.name]) is not None}
    if not beside and not with_shared:
        return {}
    draws, seed = bases.plan.settings.draws_for(bases.plan.n), bases.plan.seed
    asked = [plan for plan in plans if plan.name in beside]
    drawn = run("calibration null", null_pass, asked, beside, draws, seed, with_shared)[""]
    parts = [drawn.added[f"draws from {block}"] for block in draw_blocks(draws)]
    widths = {SHARED: bases.directions} if with_shared else {}
    widths |= {name: len(mine.eigenvalues) for name, mine in beside.items()}
    found, start = {}, 0
    for name, columns in widths.items():
        found[name] = summed_null([part[start : start + columns] for part in parts])
        start += columns
    return found
