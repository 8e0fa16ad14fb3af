"""Blocks of rows of a split whose rows depend on each other, or why there are too few of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import dependence_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, RowBlocks


@dataclass(frozen=True)
class BlocksInference:
    """By what blocks of rows a version is judged.

    Attributes:
        kind: "groups" or "time", as the split names the column.
        blocks: how many are taken as independent; None where every row is one of its own, or there are too few.
        refused: why there is no p-value and no interval; "" where there are.
    """

    kind: str
    blocks: int | None
    refused: str = ""


@dataclass(frozen=True)
class FoundBlocks:
    """The blocks themselves; ``inference`` is None where rows are independent."""

    blocks: DependentBlocks | None = field(default=None, repr=False)
    inference: BlocksInference | None = None

    @property
    def refused(self) -> bool:
        """Whether there are too few of them."""
        return self.inference is not None and self.inference.refused != ""

    @classmethod
    def of_repeats(cls, dependence: RowDependence | None) -> FoundBlocks:
        """Of a protocol whose repeats choose rows at random: no blocks."""
        if dependence is None:
            return cls()
        reason = "a protocol with samples, bootstraps or downsampling takes rows as independent; use protocol 'exact'"
        return cls(None, BlocksInference("time" if dependence.groups is None else "groups", None, reason))


class DesignedBlocks(RowBlocks, Protocol):
    """Blocks of rows of which it is known which may depend on each other."""

    def row_dependence(self, block: int) -> RowDependence | None:
        """Of the valid rows of a block; None where they are independent."""


def dependent_rows(rows: BlockRows, versions: list[str]) -> Pass:
    """Groups and times of a block's rows, and their scores by every version, by which runs of time are cut."""
    sums = BlockSums()
    dependence = rows.blocks.row_dependence(rows.block)
    if dependence is None:
        return {"": sums}
    targets = rows.targets()
    for name, column in (("groups", dependence.groups), ("time", dependence.time)):
        if column is not None:
            sums.keep(name, column)
    laws = {version: rows.predictive(version) for version in versions}
    if any(law.is_discrete for law in laws.values()):
        sums.keep("targets", targets)
    for version, law in laws.items():
        sums.raise_to(f"noise {version}", float(law.is_discrete))
        if dependence.groups is None:
            sums.keep(f"scores {version}", dependence_scores(targets, law).astype(np.float32))
    return {"": sums}


def blocks_of_versions(found: BlockSums, n: int, versions: Sequence[str]) -> dict[str, FoundBlocks]:
    """The blocks of every version, from ``dependent_rows`` of all n rows."""
    columns = {name: found.rows(name) for name in ("groups", "time") if name in found.kept}
    dependence = RowDependence.of(n, **columns)
    made: dict[str, FoundBlocks] = {}
    for version in versions:
        scores = partial(found.rows, f"scores {version}")
        counted = found.largest.get(f"noise {version}", 0.0) > 0.0
        made[version] = found_blocks(dependence, scores, found.rows("targets") if counted else None)
    return made


def found_blocks(
    dependence: RowDependence | None, scores: Callable[[], Array], counts: Array | None, *, noisy: bool = False
) -> FoundBlocks:
    """The blocks by the scores of all rows (n, r), and by their targets (n,) that are counts; see ``RowDependence``.

    Scores of counts are ``noisy`` anyway.
    """
    if dependence is None:
        return FoundBlocks()
    kind = "time" if dependence.groups is None else "groups"
    try:
        blocks = dependence.blocks(scores, noisy=noisy or counts is not None, counts=counts)
    except TooFewBlocksError as error:
        return FoundBlocks(None, BlocksInference(kind, None, str(error)))
    return FoundBlocks(blocks, BlocksInference(kind, None if blocks is None else blocks.count))


def blocks_of_version(dependence: RowDependence | None, targets: Array, predictive: Distribution) -> FoundBlocks:
    """The blocks of one version's rows."""
    counts = targets if predictive.is_discrete else None
    return found_blocks(dependence, lambda: dependence_scores(targets, predictive), counts)
