"""The null: the law of projected scores, the same draws whatever the cuts, and its gaussian limit in step with them."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels.conditional_calibration import null as null_module
from congruence.kernels.conditional_calibration.null import (
    GaussianNull,
    Null,
    draw_blocks,
    null_pit_values,
    projected_draws,
)
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Linear


@pytest.fixture(scope="module")
def directions() -> tuple[np.ndarray, np.ndarray]:
    """Shared directions that partly repeat each other, and own ones that partly lie in their span."""
    rng = np.random.default_rng(0)
    shared = np.linalg.qr(rng.standard_normal((3000, 6)))[0]
    shared = np.column_stack([shared, shared[:, 0] * 0.6 + shared[:, 1] * 0.8]).astype(np.float32)
    own = np.column_stack([shared[:, 2], np.linalg.qr(rng.standard_normal((3000, 2)))[0]]).astype(np.float32)
    return shared, own


def drawn(vectors: np.ndarray, draws: int, seed: int) -> Null:
    return lambda block: projected_draws(vectors, 0, block, draws, seed)


def both(shared: np.ndarray, own: np.ndarray, draws: int, *, limit: bool) -> tuple[Null, Null]:
    if not limit:
        return drawn(shared, draws, 1), drawn(own, draws, 1)
    null = GaussianNull.of(shared.T @ shared, draws, 1)
    return null, null.given(own.T @ shared, own.T @ own)


@pytest.mark.parametrize("limit", [False, True])
def test_coefficients_have_the_covariance_of_the_directions(directions, limit: bool) -> None:
    shared, own = directions
    nulls = both(shared, own, 2000, limit=limit)
    values = np.concatenate([np.concatenate([null(b) for null in nulls]) for b in draw_blocks(2000)], axis=2)
    assert values.shape[2] == 2000
    covariance = np.einsum("kjd,ljd->jkl", values, values) / 2000
    everything = np.column_stack([shared, own]).astype(np.float64)
    np.testing.assert_allclose(covariance, np.tile(everything.T @ everything, (4, 1, 1)), atol=0.13)
    np.testing.assert_allclose(values.mean(axis=2), 0.0, atol=0.1)


@pytest.mark.parametrize("limit", [False, True])
def test_own_directions_that_are_shared_ones_have_their_coefficients(directions, limit: bool) -> None:
    null, own = both(*directions, 50, limit=limit)
    np.testing.assert_allclose(own(0)[0], null(0)[2], atol=0.02)


@pytest.mark.parametrize("limit", [False, True])
def test_few_draws_are_the_first_of_many(directions, limit: bool) -> None:
    (few, _), (many, _) = (both(*directions, draws, limit=limit) for draws in (199, 999))
    np.testing.assert_allclose(few(0), many(0)[:, :, :199], atol=1e-4)


def test_a_row_has_the_draws_of_its_position(directions, monkeypatch) -> None:
    shared, _ = directions
    np.testing.assert_array_equal(null_pit_values(0, 40, 256, 5)[33:], null_pit_values(33, 7, 256, 5))
    whole = drawn(shared, 20, 5)(0)
    parts = [projected_draws(shared[start : start + 700], start, 0, 20, 5) for start in range(0, 3000, 700)]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, atol=1e-4)
    monkeypatch.setattr(null_module, "ROWS_AT_ONCE", 700)
    np.testing.assert_allclose(drawn(shared, 20, 5)(0), whole, atol=1e-4)


def test_the_limit_is_labelled_and_near_the_exact_test() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 2)).astype(np.float32)
    pit = rng.uniform(size=len(x)) ** (1.0 + 0.04 * x[:, 0])
    few = {"directions": 8, "distances": (1.0,), "draws": 199}
    exact, limit = (
        prepare_calibration(x, settings=CalibrationSettings(null=kind, **few)).test(pit)
        for kind in ("exact", "gaussian")
    )
    assert (exact.null, limit.null) == ("exact", "gaussian")
    assert limit.statistic == exact.statistic
    assert limit.p_value == pytest.approx(exact.p_value, abs=0.05)
    assert np.median(limit.null_statistics) == pytest.approx(np.median(exact.null_statistics), abs=0.3)


def test_by_default_the_limit_begins_above_so_many_rows(monkeypatch) -> None:
    x = np.random.default_rng(0).standard_normal((4000, 2))
    few = CalibrationSettings(directions=8, distances=(1.0,), draws=19)
    assert prepare_calibration(x, settings=few).null.kind == "exact"
    monkeypatch.setattr(null_module, "EXACT_ROWS", 3999)
    assert prepare_calibration(x, settings=few).null.kind == "gaussian"


def test_a_row_that_dominates_a_hypothesis_refuses_the_limit_and_draws_take_its_place(monkeypatch) -> None:
    x = np.random.default_rng(0).standard_normal((4000, 2))
    x[1234] *= 1e4
    few = {"directions": 8, "distances": (1.0,), "draws": 19}
    monkeypatch.setattr(null_module, "EXACT_ROWS", 3999)
    given = {"input_kernel": Linear()}
    assert prepare_calibration(x, settings=CalibrationSettings(**few), **given).null.kind == "exact"
    with pytest.raises(InvalidInputError, match=r"one of the 4,000 rows makes .* of a hypothesis"):
        prepare_calibration(x, settings=CalibrationSettings(null="gaussian", **few), **given)
