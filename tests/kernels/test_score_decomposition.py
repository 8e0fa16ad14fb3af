"""CRPS and quantile scores = miscalibration - discrimination + uncertainty."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels.distributions import Normal, Poisson, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.score_parts import crps_decomposition, marginal_crps, quantile_decomposition

LEVELS = (0.1, 0.5, 0.8)


def pinball(y: np.ndarray, q: np.ndarray, level: float) -> float:
    return float(np.mean(np.maximum(level * (y - q), (level - 1.0) * (y - q))))


def best_isotonic(y: np.ndarray, q: np.ndarray, level: float) -> float:
    """By trying every non-decreasing assignment of targets' values to the distinct predictions."""
    distinct = np.unique(q)
    assignments = itertools.combinations_with_replacement(np.unique(y), len(distinct))
    return min(pinball(y, np.array(fit)[np.searchsorted(distinct, q)], level) for fit in assignments)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 5)), min_size=1, max_size=7),
    level=st.sampled_from(LEVELS),
)
def test_the_terms_add_up_and_the_fit_is_the_best_of_all(rows: list[tuple[int, int]], level: float) -> None:
    y, q = np.array(rows, dtype=float).T
    found = quantile_decomposition(y, q[:, None], [level])
    terms = found.miscalibration - found.discrimination + found.uncertainty
    assert found.score[0] == pytest.approx(pinball(y, q, level), abs=1e-12)
    assert terms[0] == pytest.approx(found.score[0], abs=1e-12)
    recalibrated = found.score[0] - found.miscalibration[0]
    assert recalibrated == pytest.approx(best_isotonic(y, q, level), abs=1e-12)
    assert found.miscalibration[0] >= -1e-12
    assert found.discrimination[0] >= -1e-12


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_the_marginal_law_is_the_empirical_one(values: list[float]) -> None:
    y = np.array(values)
    gaps = np.abs(y[:, None] - y[None, :])
    np.testing.assert_allclose(marginal_crps(y), gaps.mean(axis=1) - gaps.mean() / 2.0, atol=1e-9)


def test_sharp_and_wrong_is_told_from_calibrated_and_useless() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(4_000)
    y = x + 0.5 * rng.standard_normal(len(x))
    flat = np.ones(len(x))
    true = crps_decomposition(y, Normal(x, 0.5 * flat))
    shifted = crps_decomposition(y, Normal(x + 2.0, 0.5 * flat))
    useless = crps_decomposition(y, Normal(0.0 * x, np.sqrt(1.25) * flat))
    assert true.crps() == pytest.approx(float(np.mean(Normal(x, 0.5 * flat).crps(y))), rel=0.02)
    assert true.crps("uncertainty") == pytest.approx(float(np.mean(marginal_crps(y))), rel=0.02)
    assert true.crps("miscalibration") < 0.03 * true.crps()
    assert shifted.crps("miscalibration") > 1.0
    # A shift of every prediction is undone by recalibration: it discriminates as well as the truth.
    assert shifted.crps("discrimination") == pytest.approx(true.crps("discrimination"), rel=1e-9)
    assert useless.crps("discrimination") == pytest.approx(0.0, abs=1e-12)
    assert useless.skill == pytest.approx(0.0, abs=0.01)
    assert true.skill > 0.5
    assert list(true.to_frame().columns) == ["levels", "score", "miscalibration", "discrimination", "uncertainty"]


@pytest.mark.parametrize("law", [Poisson, lambda rate: Samples(np.column_stack([rate - 1, rate, rate + 1]))])
def test_counts_and_ensembles_are_taken_apart(law: type[Poisson]) -> None:
    rate = np.random.default_rng(2).uniform(0.2, 6.0, 500)
    y = Poisson(rate).sample(1, seed=3)[:, 0]
    found = crps_decomposition(y, law(rate))
    total = found.miscalibration - found.discrimination + found.uncertainty
    np.testing.assert_allclose(total, found.score, atol=1e-12)
    assert found.crps("discrimination") > 0.2


def test_levels_and_shapes_are_checked() -> None:
    with pytest.raises(InvalidInputError, match="increasing probabilities"):
        quantile_decomposition(np.zeros(2), np.zeros((2, 2)), [0.5, 0.2])
    with pytest.raises(InvalidInputError, match="expected"):
        quantile_decomposition(np.zeros(2), np.zeros((2, 1)), [0.2, 0.5])
