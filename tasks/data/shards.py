"""Shards of a split, and what a split says of its rows beside inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass

from congruence.kernels.arrays import Array


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of a split. ``digest`` covers the content of their encoder inputs, nothing else.

    So the embeddings of a shard are found again under its digest after rows were appended to the split, after a target
    was corrected, or when the split was moved. (A row whose target is not a number counts as one without an input.)
    """

    index: int
    start: int
    rows: int
    digest: str

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.start + self.rows


@dataclass(frozen=True)
class SampleDesign:
    """Columns of some rows, (n,) each, None where the split names none.

    Attributes:
        groups: int64 codes, equal where rows belong together, in every part of the split alike.
        time: int64 (microseconds, or the whole numbers of the column) or float64: rows are ordered by it.
        weight: float64, at least 0.
        exposure: float64, above 0.
    """

    groups: Array | None = None
    time: Array | None = None
    weight: Array | None = None
    exposure: Array | None = None

    def rows(self, chosen: Array | slice) -> SampleDesign:
        """Of some of the rows, by a mask, their numbers or a slice."""
        return SampleDesign(**{role: None if values is None else values[chosen] for role, values in vars(self).items()})
