"""What a worker does with a block of rows in each pass: read it by address, add up, write what belongs to a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import input_sums, protocol_inputs, sampled_rows
from congruence.kernels.row_blocks.right_hand_sides import right_hand_side_sums
from congruence.kernels.row_blocks.scores import CheckedInputs, VersionAnswer, influence_sums, score_sums
from congruence.kernels.row_blocks.versions import BlockVersion, block_targets, prediction_sums, target_sums

Write = Callable[[int, str, dict[str, Array]], None]
Pass = dict[str, BlockSums]


class RowBlocks(Protocol):
    """The rows of a split by blocks, read where they are asked for; picklable, and an address rather than data."""

    @property
    def sizes(self) -> Sequence[int]:
        """Valid rows of each block, in the order of the split."""

    def inputs(self, block: int) -> Array:
        """Embeddings of the block's valid rows, (rows, d), as the encoder gave them."""

    def targets(self, block: int) -> Array:
        """(rows,) or (rows, q)."""

    def predictive(self, block: int, version: str) -> Distribution:
        """What a version predicts for the block's rows."""

    def weights(self, block: int) -> Array | None:
        """What each of the block's rows counts in means, (rows,), of mean 1 over the split; None for equal ones."""


def targets_of(blocks: RowBlocks, block: int, first: int) -> Array:
    """The targets of a block, checked."""
    return block_targets(blocks.targets(block), int(blocks.sizes[block]), first)


def look(
    blocks: RowBlocks, block: int, first: int, versions: list[str], n: int, tails: tuple[float, ...], ends_only: bool
) -> Pass:
    """Ends and moments of targets and predictions."""
    targets = targets_of(blocks, block, first)
    found = {"": target_sums(targets, first, n)}
    for name in versions:
        predictive = blocks.predictive(block, name)
        found[f"version {name}"] = prediction_sums(targets, predictive, first, n, tails, ends_only=ends_only)
    return found


def sample(
    blocks: RowBlocks, block: int, first: int, protocol: EvaluationProtocol, dtype: Any, positions: Array
) -> Pass:
    """The rows of the split that all blocks are judged by: landmarks, checked points."""
    return {
        "": sampled_rows(protocol_inputs(protocol, inputs_of(blocks, block, first), first, dtype), first, positions)
    }


@dataclass(frozen=True)
class SampledRows(RowBlocks):
    """Some rows of a split, held: one block."""

    rows: Array = field(repr=False)
    held_targets: Array = field(repr=False)
    models: dict[str, Distribution] = field(repr=False)

    @classmethod
    def of(cls, found: Pass, versions: Sequence[str]) -> SampledRows:
        """What ``whole_rows`` found."""
        models = {name: found[f"version {name}"].rows("predictive") for name in versions}
        return cls(found[""].rows("inputs"), found[""].rows("targets"), models)

    @property
    def sizes(self) -> Sequence[int]:
        return [len(self.rows)]

    def inputs(self, block: int) -> Array:  # noqa: ARG002
        return self.rows

    def targets(self, block: int) -> Array:  # noqa: ARG002
        return self.held_targets

    def predictive(self, block: int, version: str) -> Distribution:  # noqa: ARG002
        return self.models[version]

    def weights(self, block: int) -> None:
        """See RowBlocks: what is tried on some rows needs none."""


def whole_rows(blocks: RowBlocks, block: int, first: int, versions: list[str], positions: Array) -> Pass:
    """Some rows of the split with all that is known of them: embeddings as they are, targets, predictions."""
    found = {"": BlockSums()} | {f"version {name}": BlockSums() for name in versions}
    chosen = chosen_in(positions, first, int(blocks.sizes[block]))
    if len(chosen):
        found[""].keep("inputs", inputs_of(blocks, block, first)[chosen])
        found[""].keep("targets", targets_of(blocks, block, first)[chosen])
        for name in versions:
            found[f"version {name}"].keep("predictive", blocks.predictive(block, name)[chosen])
    return found


def inputs_of(blocks: RowBlocks, block: int, first: int) -> Array:
    """The embeddings of a block.

    Raises:
        InvalidInputError: not one for each valid row.
    """
    inputs, rows = blocks.inputs(block), int(blocks.sizes[block])
    if np.ndim(inputs) != 2 or len(inputs) != rows:
        raise InvalidInputError(
            f"embeddings: shape {np.shape(inputs)} in block {block} (from row {first} on), which has {rows} valid "
            "rows; embed the split again"
        )
    return inputs


def inputs(blocks: RowBlocks, block: int, first: int, system: Any) -> Pass:
    """C'C, and what else is of the inputs alone."""
    return {"": input_sums(system, inputs_of(blocks, block, first), targets_of(blocks, block, first), first)}


def right_hand_sides(
    blocks: RowBlocks, block: int, first: int, system: Any, plans: list[BlockVersion], positions: Array
) -> Pass:
    """C'[Delta, probes] and the draws of each version."""
    predictive = {plan.name: blocks.predictive(block, plan.name) for plan in plans}
    inputs, targets = inputs_of(blocks, block, first), targets_of(blocks, block, first)
    return right_hand_side_sums(system, inputs, targets, predictive, plans, first, positions)


def scores(
    blocks: RowBlocks,
    block: int,
    first: int,
    system: Any,
    answers: list[VersionAnswer],
    checked: CheckedInputs | None,
    write: Write,
) -> Pass:
    """What each version scores at the rows of the block, which is written here, and its sums."""
    predictive = {answer.version.name: blocks.predictive(block, answer.version.name) for answer in answers}
    inputs, targets = inputs_of(blocks, block, first), targets_of(blocks, block, first)
    sums, columns = score_sums(system, inputs, targets, predictive, answers, first, checked, blocks.weights(block))
    for name, written in columns.items():
        write(block, name, written)
    return sums


def influence(blocks: RowBlocks, block: int, first: int, system: Any, known: dict[str, Any], write: Write) -> Pass:
    """What each row contributes, which is written here, and its sums."""
    predictive = {name: blocks.predictive(block, name) for name in known}
    inputs, targets = inputs_of(blocks, block, first), targets_of(blocks, block, first)
    sums, columns = influence_sums(system, inputs, targets, predictive, known, first)
    for name, written in columns.items():
        write(block, name, written)
    return sums
