"""What a worker does with a block of rows in each pass of the calibration test, see ``calibration_in_blocks``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.calibration.pit_scores import ORDERS
from congruence.kernels.conditional_calibration.bases import BasisPlan, InputBases, basis_sums
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.null import (
    needs_limit,
)
from congruence.kernels.conditional_calibration.own_basis import own_quantiles
from congruence.kernels.conditional_calibration.regions import RegionCenters
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.version_sums import (
    VersionPlan,
    VersionRows,
    count_null_sums,
    null_sums,
    quantile_sums,
    score_sums,
    sign_null_sums,
)
from congruence.kernels.conditional_calibration.version_test import (
    INFLUENCE,
    VersionSmoothing,
    effect_sums,
)
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.tasks.solving.block_passes import (
    Pass,
    RowBlocks,
    Write,
    inputs_of,
    targets_of,
)


class KeyedBlocks(RowBlocks, Protocol):
    """Blocks of rows that have keys, by which randomised PIT values are drawn."""

    def keys(self, block: int) -> Array:
        """One number or text per valid row of a block, (rows,)."""


@dataclass(frozen=True)
class CalibrationInputs:
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


def bases_pass(blocks: RowBlocks, block: int, first: int, told: CalibrationInputs) -> Pass:
    """Products of the columns of the kernels of all bases."""
    return {"": basis_sums(told.plan, told.of(blocks, block, first))}


def quantiles_pass(
    blocks: RowBlocks, block: int, first: int, settings: CalibrationSettings, versions: list[str], positions: Array
) -> Pass:
    """What versions say of the sampled rows."""
    targets = targets_of(blocks, block, first)
    return {
        name: quantile_sums(settings, targets, blocks.predictive(block, name), positions, first) for name in versions
    }


def scores_pass(
    blocks: KeyedBlocks, block: int, first: int, told: CalibrationInputs, bases: InputBases, plans: list[VersionPlan]
) -> Pass:
    """Products of the directions of all bases with the scores of versions."""
    rows, is_guarded = (
        rows_of_versions(blocks, block, first, told, plans),
        needs_limit(told.plan.settings.null, told.plan.n),
    )
    return score_sums(bases, bases.tiles(told.of(blocks, block, first)), rows, is_guarded=is_guarded)


def null_pass(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: CalibrationInputs,
    bases: InputBases,
    plans: list[VersionPlan],
    draws: int,
) -> Pass:
    """Products of the directions with drawn scores."""
    rows = rows_of_versions(blocks, block, first, told, plans)
    return {"": null_sums(bases.tiles(told.of(blocks, block, first)), rows, first, draws, told.plan.seed)}


def sign_null_pass(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: CalibrationInputs,
    bases: InputBases,
    plan: VersionPlan,
    draws: int,
    dependent: DependentBlocks,
) -> Pass:
    """Products of the directions with a version's scores under one sign a block of rows that depend on each other."""
    version = rows_of_versions(blocks, block, first, told, [plan])[plan.name]
    labels = dependent.labels[first : first + len(version.scores)]
    here = DependentBlocks(labels, dependent.count, dependent.kind)
    found = sign_null_sums(bases.tiles(told.of(blocks, block, first)), version, here, draws, told.plan.seed)
    found.add("scores of blocks", here.sums(version.scores))
    return {"": found}


def count_null_pass(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: CalibrationInputs,
    bases: InputBases,
    plan: VersionPlan,
    draws: int,
) -> Pass:
    """Products of the directions with the scores of counts drawn from a version."""
    version = rows_of_versions(blocks, block, first, told, [plan])[plan.name]
    return {"": count_null_sums(bases.tiles(told.of(blocks, block, first)), version, first, draws, told.plan.seed)}


def reading_pass(
    blocks: KeyedBlocks,
    block: int,
    first: int,
    told: CalibrationInputs,
    bases: InputBases,
    plans: list[VersionPlan],
    versions: dict[str, VersionSmoothing],
    write: Write,
    dependent: Mapping[str, DependentBlocks | None],
) -> Pass:
    """What the effects of versions need, and every row's reading, which is written."""
    x = told.of(blocks, block, first)
    rows = rows_of_versions(blocks, block, first, told, [VersionPlan(plan.name) for plan in plans])
    scores = {name: version.scores for name, version in rows.items()}
    sums, columns = effect_sums(bases.tiles(x), scores, versions, read=True)
    regions = told.places.labels(x).astype(np.float64)
    for name, written in columns.items():
        write(block, name, written | {f"{PREFIX}region": regions})
        if (known := dependent.get(name)) is not None:
            here = DependentBlocks(known.labels[first : first + len(x)], known.count, known.kind)
            influence = np.column_stack([written[f"{INFLUENCE}{order}"] for order in ORDERS])
            sums[name].add("influence of blocks", here.sums(influence))
    return sums


def rows_of_versions(
    blocks: KeyedBlocks, block: int, first: int, told: CalibrationInputs, plans: list[VersionPlan]
) -> dict[str, VersionRows]:
    """PIT values and scores of the rows of a block, by version."""
    targets, keys, levels = targets_of(blocks, block, first), blocks.keys(block), told.plan.settings.levels
    found = {}
    for plan in plans:
        law = blocks.predictive(block, plan.name)
        quantiles = None if plan.own is None else own_quantiles(targets, law, levels)
        found[plan.name] = VersionRows.of(plan, targets, law, quantiles, keys=keys, seed=told.plan.seed)
    return found
