"""The null: the law of projected scores, and the same draws whatever the cuts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from congruence.kernels import Poisson
from congruence.kernels.conditional_calibration import null as null_module
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.null import (
    draw_blocks,
    null_pit_values,
    projected_draws,
)
from congruence.kernels.pit import mean_scores


@pytest.fixture(scope="module")
def directions() -> tuple[np.ndarray, np.ndarray]:
    """Shared directions that partly repeat each other, and own ones that partly lie in their span."""
    rng = np.random.default_rng(0)
    shared = np.linalg.qr(rng.standard_normal((3000, 6)))[0]
    shared = np.column_stack([shared, shared[:, 0] * 0.6 + shared[:, 1] * 0.8]).astype(np.float32)
    own = np.column_stack([shared[:, 2], np.linalg.qr(rng.standard_normal((3000, 2)))[0]]).astype(np.float32)
    return shared, own


def drawn(vectors: np.ndarray, draws: int, seed: int) -> Callable[[int], np.ndarray]:
    return lambda block: projected_draws(vectors, 0, block, draws, seed)


def test_coefficients_have_the_covariance_of_the_directions(directions) -> None:
    everything = np.column_stack(directions)
    values = np.concatenate([drawn(everything, 2000, 1)(block) for block in draw_blocks(2000)], axis=2)
    assert values.shape[2] == 2000
    covariance = np.einsum("kjd,ljd->jkl", values, values) / 2000
    exact = everything.astype(np.float64)
    np.testing.assert_allclose(covariance, np.tile(exact.T @ exact, (4, 1, 1)), atol=0.13)
    np.testing.assert_allclose(values.mean(axis=2), 0.0, atol=0.1)


def test_few_draws_are_the_first_of_many(directions) -> None:
    few, many = (drawn(directions[0], draws, 1) for draws in (199, 999))
    np.testing.assert_allclose(few(0), many(0)[:, :, :199], atol=1e-4)


def test_draws_of_jumps_are_the_means_of_the_scores_over_them(directions) -> None:
    """Of one split of PIT values, those of a version with jumps are the others' means given the jump."""
    shared, law = directions[0][:400], Poisson(np.full(400, 0.7))
    scores = JumpScores.of(np.zeros(400), law)
    assert scores is not None
    u = null_pit_values(0, 400, 0, 3)[:, :20]
    counts = law.quantile(u.astype(np.float64))
    expected = mean_scores(law.cdf(counts - 1.0), law.cdf(counts)).transpose(0, 2, 1)
    np.testing.assert_allclose(scores.drawn(u), expected, atol=1e-5)
    found = projected_draws(shared, 0, 0, 20, 3, scores)
    np.testing.assert_allclose(found, np.einsum("nk,njd->kjd", shared, expected), atol=1e-3)
    split = projected_draws(shared[:150], 0, 0, 20, 3, scores[:150])
    split = split + projected_draws(shared[150:], 150, 0, 20, 3, scores[150:])
    np.testing.assert_allclose(split, found, atol=1e-3)


def test_a_row_has_the_draws_of_its_position(directions, monkeypatch) -> None:
    shared, _ = directions
    np.testing.assert_array_equal(null_pit_values(0, 40, 256, 5)[33:], null_pit_values(33, 7, 256, 5))
    whole = drawn(shared, 20, 5)(0)
    parts = [projected_draws(shared[start : start + 700], start, 0, 20, 5) for start in range(0, 3000, 700)]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, atol=1e-4)
    monkeypatch.setattr(null_module, "ROWS_AT_ONCE", 700)
    np.testing.assert_allclose(drawn(shared, 20, 5)(0), whole, atol=1e-4)
