"""Evaluations of tests draw the null of the calibration test less often: p < 0.001 is still within reach.

Most of the time of a small evaluation are its 9,999 draws. How many a split of some size has, and that level and power
are right, is the matter of the tests of the kernels; commands in processes of their own have all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from congruence.kernels.conditional_calibration import null

DRAWS = 1_999


def draw_less(patch: pytest.MonkeyPatch) -> None:
    """In this process, until ``patch`` is undone."""
    patch.setattr(null, "_STEPS", (DRAWS, null._STEPS[-1]))


@pytest.fixture(autouse=True, scope="module")
def fewer_draws() -> Iterator[None]:
    """For the tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        draw_less(patch)
        yield
