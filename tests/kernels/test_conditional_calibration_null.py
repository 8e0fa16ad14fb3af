"""The null in blocks: the law of projected scores, and its gaussian limit in step with a version's own directions."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels.conditional_calibration import null as null_module
from congruence.kernels.conditional_calibration.null import DrawnNull, GaussianNull
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings


@pytest.fixture(scope="module")
def directions() -> tuple[np.ndarray, np.ndarray]:
    """Shared directions that partly repeat each other, and own ones that partly lie in their span."""
    rng = np.random.default_rng(0)
    shared = np.linalg.qr(rng.standard_normal((3000, 6)))[0]
    shared = np.column_stack([shared, shared[:, 0] * 0.6 + shared[:, 1] * 0.8]).astype(np.float32)
    own = np.column_stack([shared[:, 2], np.linalg.qr(rng.standard_normal((3000, 2)))[0]]).astype(np.float32)
    return shared, own


def moments(coefficients: list[np.ndarray]) -> np.ndarray:
    """Covariance of all coefficients, by order: (4, k, k)."""
    values = np.concatenate(coefficients, axis=2)
    return np.einsum("kjd,ljd->jkl", values, values) / values.shape[2]


@pytest.mark.parametrize("limit", [False, True])
def test_coefficients_have_the_covariance_of_the_directions(directions, limit: bool) -> None:
    shared, own = directions
    null = GaussianNull.of(shared, 2000, 1) if limit else DrawnNull(shared, 2000, 1)
    draw = null.with_own(own)
    both = [np.concatenate([null.shared(block), draw(block)]) for block in null.blocks()]
    assert sum(part.shape[2] for part in both) == 2000
    everything = np.column_stack([shared, own]).astype(np.float64)
    np.testing.assert_allclose(moments(both), np.tile(everything.T @ everything, (4, 1, 1)), atol=0.13)
    np.testing.assert_allclose(np.concatenate(both, axis=2).mean(axis=2), 0.0, atol=0.1)


def test_own_directions_that_are_shared_ones_have_their_coefficients(directions) -> None:
    shared, own = directions
    for null in (DrawnNull(shared, 50, 1), GaussianNull.of(shared, 50, 1)):
        np.testing.assert_allclose(null.with_own(own)(0)[0], null.shared(0)[2], atol=0.02)


def test_blocks_of_rows_make_no_difference(directions, monkeypatch) -> None:
    shared, _ = directions
    whole = DrawnNull(shared, 20, 5).shared(0)
    monkeypatch.setattr(null_module, "ROWS_AT_ONCE", 700)
    np.testing.assert_allclose(DrawnNull(shared, 20, 5).shared(0), whole, atol=1e-4)


def test_the_limit_is_labelled_and_near_the_exact_test() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100_001, 2)).astype(np.float32)
    pit = rng.uniform(size=len(x)) ** (1.0 + 0.02 * x[:, 0])
    few = {"directions": 8, "distances": (1.0,), "draws": 199}
    exact, limit = (
        prepare_calibration(x, settings=CalibrationSettings(null=kind, **few)).test(pit)
        for kind in ("exact", "gaussian")
    )
    assert (exact.null, limit.null) == ("exact", "gaussian")
    assert limit.statistic == exact.statistic
    assert limit.p_value == pytest.approx(exact.p_value, abs=0.05)
    assert np.median(limit.null_statistics) == pytest.approx(np.median(exact.null_statistics), abs=0.3)
