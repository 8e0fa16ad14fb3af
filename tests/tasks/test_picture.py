"""The map of a split's rows has two finite coordinates for every valid row, however few features there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from congruence.tasks.report.sample import shown_rows
from congruence.tasks.scores.split_rows import principal_axes, rows_looked_at


@pytest.mark.parametrize("d", [1, 2, 9])
def test_valid_rows_have_a_place_whatever_the_number_of_features(d: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, d)) * np.arange(1, d + 1)
    valid = np.array([True] * 4 + [False] + [True] * 3)
    rows: Any = SimpleNamespace(valid=valid, embeddings_of=lambda chosen: x[chosen])
    picture = principal_axes(rows, np.arange(7), np.arange(7))
    assert picture.shape == (7, max(2, min(8, d)))
    assert picture.index.tolist() == np.flatnonzero(valid).tolist()
    assert np.isfinite(picture.to_numpy()).all()
    _, scales, axes = np.linalg.svd(x - x.mean(axis=0))
    expected = np.abs((x - x.mean(axis=0)) @ axes[0])
    np.testing.assert_allclose(np.abs(picture[0]), expected, atol=1e-9 * scales[0])
    others = principal_axes(rows, np.arange(5), np.array([0, 1, 2, 3, 4, 6]))
    alone = principal_axes(rows, np.arange(5), np.arange(5))
    np.testing.assert_allclose(np.abs(others.iloc[:5]), np.abs(alone), atol=1e-9 * scales[0])


@pytest.mark.parametrize("digits", [2, 9, 17])
def test_every_row_that_a_long_report_shows_is_looked_at(digits: int) -> None:
    cce = np.random.default_rng(0).random(60_000).round(digits)
    searched, looked_at = rows_looked_at(cce, 0)
    assert len(searched) == 40_000
    assert set(searched) < set(looked_at)
    assert set(shown_rows(pd.DataFrame({"cce": cce.astype(np.float32)}), looked_at)) <= set(looked_at)
