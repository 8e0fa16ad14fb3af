"""Scores taken apart: into calibration and discrimination, and their differences into honesty and knowledge."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels import Normal, Poisson, Quantiles, Samples
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions.recalibrated import recalibrated, score_intervals
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.recalibration.recalibration_map import Design, Form, NormalScores, fit_parts, normal_score_map
from congruence.kernels.score_parts import (
    QUANTILE_LEVELS,
    _log_mass,
    _own_features,
    crps_decomposition,
    marginal_crps,
    may_be_best,
    quantile_decomposition,
    recalibration_gains,
    score_parts,
)
from congruence.kernels.scores import crps
from congruence.kernels.scores import negative_log_likelihood as nll

N = 1000
RNG = np.random.default_rng(0)
KNOWN, UNKNOWN = RNG.standard_normal((2, N))
Y = KNOWN + UNKNOWN + RNG.standard_normal(N)
TRUE, IGNORANT = Normal(KNOWN + UNKNOWN, 1.0), Normal(KNOWN, np.sqrt(2.0))
NARROW = Normal(KNOWN + UNKNOWN, 0.6)


def parts(first, second, score=crps, **design):
    columns = []
    for law in (first, second):
        gains = dict(zip((crps, nll), recalibration_gains(Y, law), strict=True))
        columns += [score(Y, law), score(Y, law) - gains[score]]
    return score_parts(*columns, **design)


def test_the_parts_sum_to_the_difference_and_lie_in_their_intervals():
    found = parts(NARROW, IGNORANT)
    assert found.total.value == pytest.approx(np.mean(crps(Y, NARROW) - crps(Y, IGNORANT)), abs=1e-14)
    assert found.honesty.value + found.knowledge.value == pytest.approx(found.total.value, abs=1e-14)
    assert found.gains[0].value - found.gains[1].value == pytest.approx(found.honesty.value, abs=1e-14)
    assert found.corrected.value == pytest.approx(found.total.value - found.gains[0].value, abs=1e-14)
    for part in (found.total, found.honesty, found.knowledge, found.corrected):
        assert part.low < part.value < part.high


def test_who_knows_less_is_not_called_dishonest_and_who_lies_is_not_called_ignorant():
    ignorant = parts(IGNORANT, TRUE)
    assert ignorant.knowledge.low > 0.0
    assert ignorant.honesty.low < 0.0 < ignorant.honesty.high
    lying = parts(NARROW, TRUE)
    assert lying.honesty.low > 0.0
    assert abs(lying.knowledge.value) < 0.02 * lying.honesty.value
    assert lying.gains[0].value == pytest.approx(np.mean(crps(Y, NARROW) - crps(Y, TRUE)), rel=0.1)


def test_the_log_score_has_the_same_parts_and_gains_what_the_true_law_says():
    """A spread of .6 in the place of 1 costs log .6 - 1/2 + 1 / (2 * .6 ** 2) nats."""
    found = parts(NARROW, TRUE, nll)
    assert found.honesty.value + found.knowledge.value == pytest.approx(found.total.value, abs=1e-12)
    assert found.gains[0].value == pytest.approx(np.log(0.6) - 0.5 + 0.5 / 0.36, rel=0.1)
    assert found.honesty.low > 0.0
    ignorant = parts(IGNORANT, TRUE, nll)
    assert ignorant.knowledge.low > 0.0
    assert ignorant.honesty.low < 0.0 < ignorant.honesty.high


@pytest.mark.parametrize("factor", [0.6, 1.7])
def test_what_the_log_score_of_counts_gains_is_that_of_their_recalibrated_masses(factor):
    rate = np.exp(RNG.standard_normal(N))
    y, law = RNG.poisson(rate).astype(float), Poisson(factor * rate)
    gains = recalibration_gains(y, law)[1]
    again = score_map_of_all(y, law)
    assert np.mean(gains) == pytest.approx(np.mean(nll(y, law) - nll(y, again)), rel=0.1)


def score_map_of_all(y, law):
    """The recalibrated law by a map that was fitted on all rows."""
    features, form = _own_features(law), Form(1.0, 1.0)
    scores = NormalScores(*score_intervals(law, y), RNG.random(len(y)))
    return recalibrated(law, normal_score_map(fit_parts(Design(features), scores, form).at(features), form))


def test_far_out_and_beyond_the_support_the_log_score_keeps_its_digits():
    low, high = np.array([30.0, -31.0, np.inf, 2.0]), np.array([31.0, -30.0, np.inf, 2.0])
    found = _log_mass(low, high, 1.0)
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert found[0] == pytest.approx(-454.3, abs=0.1)
    assert found[2:].tolist() == [0.0, -2.0]


def test_the_same_version_twice_is_no_difference():
    found = parts(TRUE, TRUE)
    assert (found.total.value, found.knowledge.p_value, found.honesty.high) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("law", [Poisson(np.full(N, 2.0)), Samples(RNG.standard_normal((N, 100)))])
def test_counts_and_members_are_recalibrated_without_a_gain_that_is_not_there(law):
    y = law.sample(1, seed=3)[:, 0] if law.draws is None else RNG.standard_normal(N)
    for gain in recalibration_gains(y, law)[: 2 if law.draws is None else 1]:
        assert abs(np.mean(gain)) < 3.0 * np.std(gain) / np.sqrt(N)


def test_rows_that_are_counted_and_rows_that_go_together_widen_what_they_should():
    groups = DependentBlocks(np.arange(N) // 10, N // 10, "groups")
    alone, together = parts(IGNORANT, TRUE), parts(IGNORANT, TRUE, blocks=groups)
    assert together.total.value == alone.total.value
    weights = np.where(KNOWN > 0.0, 2.0, 0.0)
    counted = parts(IGNORANT, TRUE, weights=weights)
    kept = KNOWN > 0.0
    assert counted.total.value == pytest.approx(np.mean((crps(Y, IGNORANT) - crps(Y, TRUE))[kept]), abs=1e-12)


def test_what_cannot_be_recalibrated_is_refused_with_the_reason():
    with pytest.raises(InvalidInputError, match="at least 100 rows of one target"):
        recalibration_gains(Y[:50], TRUE[np.arange(50)])
    with pytest.raises(InvalidInputError, match="have a spread"):
        recalibration_gains(Y, Samples(KNOWN[:, None]))


def test_the_best_version_is_in_its_set_and_the_worst_is_not():
    found = may_be_best({"true": crps(Y, TRUE), "narrow": crps(Y, NARROW), "ignorant": crps(Y, IGNORANT)})
    assert found["true"] == 1.0
    assert max(found["narrow"], found["ignorant"]) < 0.05
    assert may_be_best({"a": crps(Y, TRUE), "b": crps(Y, TRUE)}) == {"a": 1.0, "b": 1.0}
    assert may_be_best({"alone": crps(Y, TRUE)}) == {"alone": 1.0}
    with pytest.raises(InvalidInputError, match="same rows"):
        may_be_best({"a": np.zeros(5), "b": np.zeros(4)})


def test_the_best_of_equals_is_left_out_in_one_of_twenty_sets():
    inside = 0
    for split in range(100):
        losses = np.random.default_rng([split, 1]).gamma(2.0, size=(200, 4))
        found = may_be_best({str(k): losses[:, k] for k in range(4)}, seed=split)
        inside += found["0"] > 0.05
    assert inside >= 90


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
    of_three = marginal_crps(y, levels=np.array([0.05, 0.5, 0.95]))
    values = np.quantile(y, [0.05, 0.5, 0.95], method="inverted_cdf")
    stated = Quantiles(np.array([0.05, 0.5, 0.95]), np.tile(values, (len(y), 1)))
    np.testing.assert_allclose(of_three, crps(y, stated), rtol=1e-12)
    assert true.crps("uncertainty") == pytest.approx(float(np.mean(marginal_crps(y))), rel=0.02)
    assert true.crps("miscalibration") < 0.03 * true.crps()
    assert shifted.crps("miscalibration") > 1.0
    # A shift of every prediction is undone by recalibration: it discriminates as well as the truth.
    assert shifted.crps("discrimination") == pytest.approx(true.crps("discrimination"), rel=1e-9)
    assert useless.crps("discrimination") == pytest.approx(0.0, abs=1e-12)
    assert useless.skill == pytest.approx(0.0, abs=0.01)
    assert true.skill > 0.5
    assert list(true.to_frame().columns) == ["levels", "score", "miscalibration", "discrimination", "uncertainty"]


def test_quantiles_are_taken_apart_at_their_levels():
    """At others a part of the miscalibration is that of our interpolation."""
    x, levels = np.random.default_rng(3).standard_normal(4000), np.array([0.05, 0.5, 0.95])
    y = x + np.random.default_rng(4).standard_t(3, len(x))
    law = Quantiles(levels, x[:, None] + scipy.stats.t(3).ppf(levels))
    found = crps_decomposition(y, law)
    np.testing.assert_array_equal(found.levels, levels)
    assert found.crps() == pytest.approx(float(np.mean(law.crps(y))), rel=1e-12)
    assert found.crps("miscalibration") < 0.02 * found.crps()
    drawn = crps_decomposition(y, law, levels=QUANTILE_LEVELS)
    assert drawn.crps("miscalibration") > 0.05 * drawn.crps()


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


@pytest.mark.parametrize("impossible", [1, 10])
def test_a_few_impossible_targets_leave_the_parts_as_they_are(impossible):
    """Their normal scores of 40 moved the maps of all rows: the version that is too wide was called the more honest."""
    x, rng = np.random.default_rng(5).standard_normal(1200), np.random.default_rng(6)
    y = x + rng.standard_normal(1200)
    y[:impossible] += 100.0
    columns = []
    for law in (Normal(x, 1.5), Normal(x, 1.0)):
        scores = crps(y, law)
        columns += [scores, scores - recalibration_gains(y, law)[0]]
    found = score_parts(*columns)
    assert found.honesty.value == pytest.approx(found.total.value, rel=0.2)
    assert abs(found.knowledge.value) < 0.2 * found.total.value
    assert found.gains[1].value > -0.005
