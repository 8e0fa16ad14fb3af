"""Calibration given the input by blocks of rows: passes on the workers, of whose sums the tests are made.

sample     5,000 rows of the inputs            -> landmarks, median distance, regions
bases      products of the kernels' columns    -> bases, once for all versions
quantiles  what versions say of these rows     -> each version's own basis
scores     products of directions and scores   -> evidence, local smoothing, P-P curves
null       products with drawn scores          -> the null, where it is not its gaussian limit
reading    effects, and every row's reading    -> the test
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import BasisPlan, InputBases, sample_positions
from congruence.kernels.conditional_calibration.effects import Effect, effects_by_blocks
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalReading
from congruence.kernels.conditional_calibration.null import (
    GaussianNull,
    Null,
    draw_blocks,
    null_kind,
    own_null_draws,
    summed_null,
)
from congruence.kernels.conditional_calibration.own_basis import OwnDirections
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions, number_of_regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest, NullKind
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.version_sums import (
    SHARED,
    VersionPlan,
    places_in_null,
    planned_version,
)
from congruence.kernels.conditional_calibration.version_test import (
    INFLUENCE,
    SharedNull,
    VersionEvidence,
    VersionSmoothing,
    curves,
    gaussian_own_null,
    own_directions,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.tasks.solving.block_passes import (
    Pass,
    SampledRows,
    Write,
    sample,
    whole_rows,
)
from congruence.tasks.solving.calibration import (
    FEWEST_ROWS,
    VectorCalibration,
    VersionCalibration,
    prepared_vectors,
    vector_rows,
)
from congruence.tasks.solving.calibration_passes import (
    CalibrationInputs,
    bases_pass,
    count_null_pass,
    null_pass,
    quantiles_pass,
    reading_pass,
    scores_pass,
    sign_null_pass,
)


class RunPass(Protocol):
    """Runs a function of every block on the workers and merges what they add."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """``function(blocks, block, first row, *context)`` of every block that has rows."""


@dataclass(frozen=True)
class CalibrationInBlocks:
    """Whether a version is calibrated given the input, but for the columns that lie block by block.

    Attributes:
        test: over the whole split, with effects by order.
        mixing: see ``LocalReading``.
        medoids: the row nearest to the centre of each region, among the sampled ones.
        curves: the local P-P plot there.
    """

    test: ConditionalCalibrationTest
    mixing: float
    medoids: Array
    curves: LocalDistribution = field(repr=False)

    def whole(self, columns: dict[str, Array]) -> VersionCalibration:
        """With the columns of all rows, those named ``calibration_...``."""
        labels = columns[f"{PREFIX}region"].astype(np.intp)
        names = tuple(f"region {k + 1}" for k in range(len(self.medoids)))
        influence = np.column_stack([columns[f"{INFLUENCE}{order}"] for order in ORDERS])
        reading = LocalReading.of_rows(columns, self.mixing)
        return VersionCalibration(
            self.test, reading, Regions(labels, self.medoids, names), self.curves, influence=influence
        )


def calibrate_blocks(
    run: RunPass,
    n: int,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    seed: int,
    dtype: Any,
    settings: CalibrationSettings | None = None,
    dependent: Mapping[str, DependentBlocks | None] | None = None,
) -> dict[str, CalibrationInBlocks]:
    """Test and read every version of a split in blocks; none of fewer than ``FEWEST_ROWS`` rows.

    Args:
        run: passes over the blocks, which are ``KeyedBlocks`` of scalar targets.
        n: valid rows.
        protocol: its kernel and lambda.
        versions: a group whose sums fit a worker together.
        write: called on the workers with block, version and columns.
        seed: of landmarks, draws, regions and the randomisation of PIT values.
        dtype: of the arithmetic inside a tile.
        settings: of the test.
        dependent: blocks of rows that depend on each other, by version.
    """
    if n < FEWEST_ROWS or not versions:
        return {}
    settings = CalibrationSettings() if settings is None else settings
    positions = sample_positions(n, seed)
    x = run("calibration sample", sample, protocol, dtype, positions)[""].rows("inputs")
    plan = BasisPlan.of(
        x, n, settings, input_kernel=protocol.input_kernel, regularization=protocol.regularization, seed=seed
    )
    told = CalibrationInputs(protocol, dtype, plan, RegionCenters.of(x, positions, number_of_regions(n), seed))
    bases = InputBases.of(plan, run("calibration bases", bases_pass, told)[""])
    found = run("calibration quantiles", quantiles_pass, settings, list(versions), positions)
    plans = [planned_version(bases, name, found[name].rows("quantiles"), dtype) for name in versions]
    return _Calibrated(run, told, bases, plans, dependent or {}).versions(write)


def calibrate_vector_blocks(
    run: RunPass, n: int, protocol: EvaluationProtocol, versions: Sequence[str], *, seed: int, dtype: Any
) -> dict[str, VersionCalibration]:
    """Test every version of a split with vector targets on the rows of ``vector_rows``, fetched from the blocks."""
    if n < FEWEST_ROWS:
        return {}
    rows = vector_rows(n, seed)
    kept = SampledRows.of(run("calibration sample", whole_rows, list(versions), rows), versions)
    x = protocol_inputs(protocol, kept.rows, 0, dtype)
    split = VectorCalibration(prepared_vectors(protocol.input_kernel, x, seed), rows, n)
    return {name: split.of_rows(kept.held_targets, law, seed) for name, law in kept.models.items()}


@dataclass(frozen=True)
class _Calibrated:
    """The passes over the scores of some versions, in their order."""

    run: RunPass
    told: CalibrationInputs
    bases: InputBases
    plans: list[VersionPlan]
    dependent: Mapping[str, DependentBlocks | None]

    def versions(self, write: Write) -> dict[str, CalibrationInBlocks]:
        """Test and read them."""
        bases, told = self.bases, self.told
        sums = self.run("calibration scores", scores_pass, told, bases, self.plans)
        null = self._null(sums, [plan for plan in self.plans if not self._has_own_null(plan.name, sums)])
        signed = {name: self._signed(name, blocks) for name, blocks in self.dependent.items() if blocks is not None}
        for name, (_, moments) in signed.items():
            sums[name].added |= moments
        smoothing = {plan.name: VersionSmoothing.of(bases, sums[plan.name]) for plan in self.plans}
        effects = self.run(
            "calibration reading", reading_pass, told, bases, self.plans, smoothing, write, self.dependent
        )
        ((_, medoids),) = bases.tiles(told.places.points)
        found = {}
        for plan in self.plans:
            own = own_directions(bases, plan.own, sums[plan.name])
            blocks = self.dependent.get(plan.name)
            if blocks is not None:
                evidence = self._evidence_of_own_null(sums[plan.name], own, signed[plan.name][0], "blocks")
            elif self._has_own_null(plan.name, sums):
                evidence = self._evidence_of_counts(plan, sums[plan.name], own)
            else:
                assert null is not None
                shared, own_nulls = null
                evidence = VersionEvidence.of(bases, shared, sums[plan.name], own, own_nulls(plan.name))
            version = smoothing[plan.name]
            assert version.smoothing is not None
            means = sums[plan.name].added["scores"] / told.plan.n
            shares = version.regression.effects(effects[plan.name])
            if blocks is not None:
                shares = self._effects_by_blocks(shares, effects[plan.name], signed[plan.name][0], blocks, version)
            found[plan.name] = CalibrationInBlocks(
                evidence.test(shares, means, None if blocks is None else blocks.count),
                version.smoothing.mixing,
                told.places.medoids,
                curves(bases, sums[plan.name], medoids),
            )
        return found

    def _evidence_of_counts(self, plan: VersionPlan, sums: BlockSums, own: OwnDirections | None) -> VersionEvidence:
        """Against counts drawn from the version itself."""
        drawn = self.run("calibration counts", count_null_pass, self.told, self.bases, plan, self._own_draws)[""]
        return self._evidence_of_own_null(sums, own, drawn, "exact")

    @property
    def _own_draws(self) -> int:
        return own_null_draws(self.told.plan.settings.draws, self.told.plan.n)

    def _evidence_of_own_null(
        self, sums: BlockSums, own: OwnDirections | None, drawn: BlockSums, kind: NullKind
    ) -> VersionEvidence:
        shared = len(self.bases.total)

        def null(block: int) -> Array:
            part = drawn.added[f"draws from {block}"]
            if own is None:
                return np.asarray(part[:shared])
            return np.concatenate([part[:shared], _turned(own.coordinates, lambda _: part[shared:], block)])

        return VersionEvidence.of_own_null(self.bases, sums, own, null, self._own_draws, kind)

    def _signed(self, name: str, blocks: DependentBlocks) -> tuple[BlockSums, dict[str, Array]]:
        """A version's scores under signs of blocks, and the variances of smoothed scores that follow."""
        (plan,) = (plan for plan in self.plans if plan.name == name)
        drawn = self.run("calibration signs", sign_null_pass, self.told, self.bases, plan, self._own_draws, blocks)[""]
        moments: dict[str, Array] = {}
        if self.bases.smoother is not None:
            inside = self._draws_of(drawn)[self.bases.smoother[0]]
            moments["weighted"] = np.einsum("kjd,ljd->jkl", inside, inside, optimize=True) / inside.shape[2]
            moments["variance"] = np.sum(drawn.added["scores of blocks"] ** 2, axis=0)
        return drawn, moments

    def _draws_of(self, drawn: BlockSums) -> Array:
        """Of the shared directions, (k, 4, B)."""
        shared = len(self.bases.total)
        parts = [drawn.added[f"draws from {block}"][:shared] for block in draw_blocks(self._own_draws)]
        return np.concatenate(parts, axis=2)

    def _effects_by_blocks(
        self,
        shares: Mapping[str, Effect],
        effects: BlockSums,
        drawn: BlockSums,
        blocks: DependentBlocks,
        version: VersionSmoothing,
    ) -> Mapping[str, Effect]:
        """Intervals by sums within blocks; what pairs of rows in one block add is the forms' mean under signs."""
        n, regression = self.told.plan.n, version.regression
        forms = (
            np.einsum("k,kjd->j", regression.weights, self._draws_of(drawn)[regression.place] ** 2) / self._own_draws
        )
        within = (forms - effects.added["diagonal"]) / n
        sums = effects.added["influence of blocks"]
        sums = sums - np.bincount(blocks.labels, minlength=blocks.count)[:, None] * (np.sum(sums, axis=0) / n)
        errors = np.sqrt(np.sum(sums**2, axis=0) * blocks.count / (blocks.count - 1.0)) / n
        return effects_by_blocks(shares, errors, within, blocks)

    def _has_own_null(self, name: str, sums: Pass) -> bool:
        """Of dependent rows, and of counts."""
        return self.dependent.get(name) is not None or "weighted" in sums[name].added

    def _null(
        self, sums: Pass, plans: list[VersionPlan]
    ) -> tuple[SharedNull, Callable[[str], Callable[[OwnDirections], Null]]] | None:
        """The null of the versions that share one, and by version that of its own directions; None for no version."""
        if not plans:
            return None
        bases, plan = self.bases, self.told.plan
        draws = plan.settings.draws_for(plan.n)
        largest = sums[SHARED].largest["dominance"] if SHARED in sums else 0.0
        kind = null_kind(plan.settings.null, plan.n, largest)
        if kind == "gaussian":
            gaussian = GaussianNull.of(sums[SHARED].added["moment"], draws, plan.seed)
            shared = SharedNull.of(bases, kind, gaussian)
            return shared, lambda name: lambda own: gaussian_own_null(gaussian, own, sums[name])
        drawn = self.run("calibration null", null_pass, self.told, bases, self.plans, draws)[""]
        parts = [drawn.added[f"draws from {block}"] for block in draw_blocks(draws)]
        places = places_in_null(bases, plans)

        def own_null(name: str) -> Callable[[OwnDirections], Null]:
            mine = summed_null([part[places[name]] for part in parts]) if name in places else None
            return lambda own: lambda block: _turned(own.coordinates, mine, block)

        return SharedNull.of(bases, kind, summed_null([part[places[SHARED]] for part in parts])), own_null


def _turned(coordinates: Array, columns: Null | None, block: int) -> Array:
    """Coefficients of directions from those of their columns."""
    assert columns is not None
    return np.asarray(np.einsum("mk,mjd->kjd", coordinates, columns(block), optimize=True))
