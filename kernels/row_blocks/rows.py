"""The rows of a split by blocks: an address of them all, and one block as passes read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError

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


Blocks = TypeVar("Blocks", bound=RowBlocks, covariant=True)


@dataclass(frozen=True)
class BlockRows(Generic[Blocks]):
    """One block of a split, read where it is asked for: what every pass is a function of.

    Attributes:
        blocks: of the split.
        block: the number of this one.
        first: position of its first row in the split.
    """

    blocks: Blocks
    block: int
    first: int

    def __len__(self) -> int:
        return int(self.blocks.sizes[self.block])

    def inputs(self) -> Array:
        """Embeddings, (rows, d).

        Raises:
            InvalidInputError: not one for each valid row.
        """
        inputs = self.blocks.inputs(self.block)
        if np.ndim(inputs) != 2 or len(inputs) != len(self):
            raise InvalidInputError(
                f"embeddings: shape {np.shape(inputs)} in block {self.block} (from row {self.first} on), which has "
                f"{len(self)} valid rows; embed the split again"
            )
        return inputs

    def targets(self) -> Array:
        """(rows,) or (rows, q).

        Raises:
            InvalidInputError: not numbers, another number of rows, or not finite; rows count from the block's first.
        """
        try:
            return require_targets(self.blocks.targets(self.block), "targets", len(self))
        except InvalidInputError as error:
            raise InvalidInputError(f"{error} (in the block that begins at row {self.first} of the split)") from error

    def predictive(self, version: str) -> Distribution:
        """What a version predicts."""
        return self.blocks.predictive(self.block, version)

    def weights(self) -> Array | None:
        """What each row counts in means; None for equal ones."""
        return self.blocks.weights(self.block)


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
