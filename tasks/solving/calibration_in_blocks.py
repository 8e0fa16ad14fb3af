"""Calibration given the input by blocks of rows: passes on the workers, of whose sums the tests are made.

sample     5,000 rows of the inputs            -> landmarks, median distance, regions
bases      products of the kernels' columns    -> bases, once for all versions
quantiles  what versions say of these rows     -> each version's own basis
scores     products of directions and scores   -> evidence, local smoothing, P-P curves
null       products with drawn scores          -> the null, where it is not its gaussian limit
reading    effects, and every row's reading    -> the test
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.conditional_calibration.bases import BasisPlan, InputBases, basis_sums, sample_positions
from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalReading
from congruence.kernels.conditional_calibration.null import (
    GaussianNull,
    Null,
    draw_blocks,
    needs_limit,
    null_kind,
    own_null_draws,
    summed_null,
)
from congruence.kernels.conditional_calibration.own_basis import OwnDirections, own_quantiles
from congruence.kernels.conditional_calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.regions import RegionCenters, Regions, number_of_regions
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.version_sums import (
    SHARED,
    VersionPlan,
    VersionRows,
    count_null_sums,
    null_sums,
    places_in_null,
    planned_version,
    quantile_sums,
    score_sums,
)
from congruence.kernels.conditional_calibration.version_test import (
    INFLUENCE,
    SharedNull,
    VersionEvidence,
    VersionSmoothing,
    curves,
    effect_sums,
    gaussian_own_null,
    own_directions,
)
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.tasks.solving.block_passes import (
    Pass,
    RowBlocks,
    SampledRows,
    Write,
    inputs_of,
    sample,
    targets_of,
    whole_rows,
)
from congruence.tasks.solving.calibration import (
    FEWEST_ROWS,
    VectorCalibration,
    VersionCalibration,
    prepared_vectors,
    vector_rows,
)


class RunPass(Protocol):
    """Runs a function of every block on the workers and merges what they add."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """``function(blocks, block, first row, *context)`` of every block that has rows."""


class KeyedBlocks(RowBlocks, Protocol):
    """Blocks of rows that have keys, by which randomised PIT values are drawn."""

    def keys(self, block: int) -> Array:
        """One number or text per valid row of a block, (rows,)."""


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


@dataclass(frozen=True)
class _Inputs:
    """What every block is told of the others' inputs: the protocol, which brings embeddings to the kernels' inputs.

    Attributes:
        protocol: of the measurement.
        dtype: of the arithmetic inside a tile.
        plan: of the bases.
        places: centres of the regions.
    """

    protocol: EvaluationProtocol
    dtype: Any
    plan: BasisPlan
    places: RegionCenters

    def of(self, blocks: RowBlocks, block: int, first: int) -> Array:
        """x of a block."""
        return protocol_inputs(self.protocol, inputs_of(blocks, block, first), first, self.dtype)


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
    """
    if n < FEWEST_ROWS or not versions:
        return {}
    settings = CalibrationSettings() if settings is None else settings
    positions = sample_positions(n, seed)
    x = run("calibration sample", sample, protocol, dtype, positions)[""].rows("inputs")
    plan = BasisPlan.of(
        x, n, settings, input_kernel=protocol.input_kernel, regularization=protocol.regularization, seed=seed
    )
    told = _Inputs(protocol, dtype, plan, RegionCenters.of(x, positions, number_of_regions(n), seed))
    bases = InputBases.of(plan, run("calibration bases", _bases, told)[""])
    found = run("calibration quantiles", _quantiles, settings, list(versions), positions)
    plans = [planned_version(bases, name, found[name].rows("quantiles"), dtype) for name in versions]
    return _Calibrated(run, told, bases, plans).versions(write)


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
    told: _Inputs
    bases: InputBases
    plans: list[VersionPlan]

    def versions(self, write: Write) -> dict[str, CalibrationInBlocks]:
        """Test and read them."""
        bases, told = self.bases, self.told
        sums = self.run("calibration scores", _scores, told, bases, self.plans)
        null, own_nulls = self._null(sums)
        smoothing = {plan.name: VersionSmoothing.of(bases, sums[plan.name]) for plan in self.plans}
        effects = self.run("calibration reading", _reading, told, bases, self.plans, smoothing, write)
        ((_, medoids),) = bases.tiles(told.places.points)
        found = {}
        for plan in self.plans:
            own = own_directions(bases, plan.own, sums[plan.name])
            if "weighted" in sums[plan.name].added:
                evidence = self._evidence_of_counts(plan, sums[plan.name], own)
            else:
                evidence = VersionEvidence.of(bases, null, sums[plan.name], own, own_nulls(plan.name))
            version = smoothing[plan.name]
            assert version.smoothing is not None
            means = sums[plan.name].added["scores"] / told.plan.n
            found[plan.name] = CalibrationInBlocks(
                evidence.test(version.regression.effects(effects[plan.name]), means),
                version.smoothing.mixing,
                told.places.medoids,
                curves(bases, sums[plan.name], medoids),
            )
        return found

    def _evidence_of_counts(self, plan: VersionPlan, sums: BlockSums, own: OwnDirections | None) -> VersionEvidence:
        """Against counts drawn from the version itself."""
        bases, told = self.bases, self.told
        draws, shared = own_null_draws(told.plan.settings.draws, told.plan.n), len(bases.total)
        drawn = self.run("calibration counts", _count_null, told, bases, plan, draws)[""]

        def null(block: int) -> Array:
            part = drawn.added[f"draws from {block}"]
            if own is None:
                return np.asarray(part[:shared])
            return np.concatenate([part[:shared], _turned(own.coordinates, lambda _: part[shared:], block)])

        return VersionEvidence.of_own_null(bases, sums, own, null, draws, "exact")

    def _null(self, sums: Pass) -> tuple[SharedNull, Callable[[str], Callable[[OwnDirections], Null]]]:
        """The null of all versions, and by version that of its own directions."""
        bases, plan = self.bases, self.told.plan
        draws = plan.settings.draws_for(plan.n)
        largest = sums[SHARED].largest["dominance"] if SHARED in sums else 0.0
        kind = null_kind(plan.settings.null, plan.n, largest)
        if kind == "gaussian":
            gaussian = GaussianNull.of(sums[SHARED].added["moment"], draws, plan.seed)
            shared = SharedNull.of(bases, kind, gaussian)
            return shared, lambda name: lambda own: gaussian_own_null(gaussian, own, sums[name])
        drawn = self.run("calibration null", _null, self.told, bases, self.plans, draws)[""]
        parts = [drawn.added[f"draws from {block}"] for block in draw_blocks(draws)]
        places = places_in_null(bases, self.plans)

        def own_null(name: str) -> Callable[[OwnDirections], Null]:
            mine = summed_null([part[places[name]] for part in parts]) if name in places else None
            return lambda own: lambda block: _turned(own.coordinates, mine, block)

        return SharedNull.of(bases, kind, summed_null([part[places[SHARED]] for part in parts])), own_null


def _turned(coordinates: Array, columns: Null | None, block: int) -> Array:
    """Coefficients of directions from those of their columns."""
    assert columns is not None
    return np.asarray(np.einsum("mk,mjd->kjd", coordinates, columns(block), optimize=True))


def _bases(blocks: RowBlocks, block: int, first: int, told: _Inputs) -> Pass:
    return {"": basis_sums(told.plan, told.of(blocks, block, first))}


def _quantiles(
    blocks: RowBlocks, block: int, first: int, settings: CalibrationSettings, versions: list[str], positions: Array
) -> Pass:
    targets = targets_of(blocks, block, first)
    return {
        name: quantile_sums(settings, targets, blocks.predictive(block, name), positions, first) for name in versions
    }


def _scores(
    blocks: KeyedBlocks, block: int, first: int, told: _Inputs, bases: InputBases, plans: list[VersionPlan]
) -> Pass:
    rows, is_guarded = _rows(blocks, block, first, told, plans), needs_limit(told.plan.settings.null, told.plan.n)
    return score_sums(bases, bases.tiles(told.of(blocks, block, first)), rows, is_guarded=is_guarded)


def _null(
    blocks: KeyedBlocks, block: int, first: int, told: _Inputs, bases: InputBases, plans: list[VersionPlan], draws: int
) -> Pass:
    rows = _rows(blocks, block, first, told, plans)
    return {"": null_sums(bases.tiles(told.of(blocks, block, first)), rows, first, draws, told.plan.seed)}


def _count_null(
    blocks: KeyedBlocks, block: int, first: int, told: _Inputs, bases: InputBases, plan: VersionPlan, draws: int
) -> Pass:
    version = _rows(blocks, block, first, told, [plan])[plan.name]
    return {"": count_null_sums(bases.tiles(told.of(blocks, block, first)), version, first, draws, told.plan.seed)}


def _reading(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: _Inputs,
    bases: InputBases,
    plans: list[VersionPlan],
    versions: dict[str, VersionSmoothing],
    write: Write,
) -> Pass:
    x = told.of(blocks, block, first)
    rows = _rows(blocks, block, first, told, [VersionPlan(plan.name) for plan in plans])
    scores = {name: version.scores for name, version in rows.items()}
    sums, columns = effect_sums(bases.tiles(x), scores, versions, read=True)
    regions = told.places.labels(x).astype(np.float64)
    for name, written in columns.items():
        write(block, name, written | {f"{PREFIX}region": regions})
    return sums


def _rows(
    blocks: KeyedBlocks, block: int, first: int, told: _Inputs, plans: list[VersionPlan]
) -> dict[str, VersionRows]:
    targets, keys, levels = targets_of(blocks, block, first), blocks.keys(block), told.plan.settings.levels
    found = {}
    for plan in plans:
        law = blocks.predictive(block, plan.name)
        quantiles = None if plan.own is None else own_quantiles(targets, law, levels)
        found[plan.name] = VersionRows.of(plan, targets, law, quantiles, keys=keys, seed=told.plan.seed)
    return found
