"""The map of a split's rows has two finite coordinates for every valid row, however few features there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from congruence.tasks.scores.picture import principal_axes


@pytest.mark.parametrize("d", [1, 2, 9])
def test_valid_rows_have_a_place_whatever_the_number_of_features(d: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, d)) * np.arange(1, d + 1)
    valid = np.array([True] * 4 + [False] + [True] * 3)
    blocks: Any = [x[:4], x[4:]]
    rows: Any = SimpleNamespace(
        store=SimpleNamespace(dimension=d), blocks=blocks, valid=valid, inputs=lambda block: blocks[block]
    )
    picture = principal_axes(rows)
    assert picture.shape == (8, max(2, min(8, d)))
    assert np.isfinite(picture[valid]).all()
    assert np.isnan(picture[~valid]).all()
    _, scales, axes = np.linalg.svd(x - x.mean(axis=0))
    expected = np.abs((x - x.mean(axis=0)) @ axes[0])
    np.testing.assert_allclose(np.abs(picture[valid, 0]), expected, atol=1e-9 * scales[0])
