"""Rows in memory as a cluster has them: cut into blocks of any sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congruence.kernels.engine.blocks import HeldRows


@dataclass(frozen=True)
class CutRows(HeldRows):
    """Blocks between ``cuts``, two of which may be the same."""

    cuts: Sequence[int] = (0,)

    @property
    def sizes(self) -> Sequence[int]:
        return [int(size) for size in np.diff(self.cuts)]

    def _of(self, block: int) -> slice:
        return slice(self.cuts[block], self.cuts[block + 1])
