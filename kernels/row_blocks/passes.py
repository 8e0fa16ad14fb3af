"""The passes that read rows as they are: where targets and predictions lie, and some rows of the split.

A pass is a function of a block's rows: a worker reads them by address, adds up, and writes what belongs to a row. The
others are where their sums are: ``inputs``, ``right_hand_sides``, ``scores``, ``calibration``, ``dependence``.
"""

from __future__ import annotations

from typing import Any

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.inputs import protocol_inputs
from congruence.kernels.row_blocks.rows import BlockRows, Pass, RowBlocks
from congruence.kernels.row_blocks.versions import prediction_sums, target_sums


def look(rows: BlockRows[RowBlocks], versions: list[str], n: int, tails: tuple[float, ...], ends_only: bool) -> Pass:
    """Ends and moments of targets and predictions."""
    targets = rows.targets()
    found = {"": target_sums(targets, rows.first, n)}
    for name in versions:
        predictive = rows.predictive(name)
        found[f"version {name}"] = prediction_sums(targets, predictive, rows.first, n, tails, ends_only=ends_only)
    return found


def sample(rows: BlockRows[RowBlocks], protocol: EvaluationProtocol, dtype: Any, positions: Array) -> Pass:
    """The rows of the split that all blocks are judged by: landmarks, checked points."""
    x, sums = protocol_inputs(protocol, rows.inputs(), rows.first, dtype), BlockSums()
    sums.keep("inputs", x[chosen_in(positions, rows.first, len(rows))])
    return {"": sums}


def whole_rows(rows: BlockRows[RowBlocks], versions: list[str], positions: Array) -> Pass:
    """Some rows of the split with all that is known of them: embeddings as they are, targets, predictions."""
    found = {"": BlockSums()} | {f"version {name}": BlockSums() for name in versions}
    chosen = chosen_in(positions, rows.first, len(rows))
    if len(chosen):
        found[""].keep("inputs", rows.inputs()[chosen])
        found[""].keep("targets", rows.targets()[chosen])
        for name in versions:
            found[f"version {name}"].keep("predictive", rows.predictive(name)[chosen])
    return found
