"""Some rows of a split by their numbers among the valid ones: no more than a block of them is in memory."""

from types import SimpleNamespace

import numpy as np
import pytest

from congruence.kernels.arrays import Array
from congruence.tasks.models.evaluated_rows import EvaluatedRows

X = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)


class InBlocks(EvaluatedRows):
    """Rows of ``X`` in three blocks; says which are read."""

    sizes = [20, 5, 25]
    store = SimpleNamespace(dimension=3)

    def __init__(self) -> None:
        self.__dict__["asked"] = []

    def inputs(self, block: int) -> Array:
        self.__dict__["asked"].append(block)
        return np.split(X, np.cumsum(self.sizes)[:-1])[block]


@pytest.mark.parametrize(("chosen", "blocks"), [([3, 19, 20, 49], [0, 1, 2]), ([24, 20], [1]), ([], []), ([25], [2])])
def test_some_rows_are_read_from_the_blocks_that_hold_them(chosen: list[int], blocks: list[int]) -> None:
    rows = InBlocks()
    numbers = np.sort(np.array(chosen, dtype=np.intp))
    np.testing.assert_array_equal(rows.embeddings_of(numbers), X[numbers])
    assert rows.__dict__["asked"] == blocks
