"""Honesty and knowledge sum to the difference, mean what they say, and the best version is in its set."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels import Normal, Poisson, Samples
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions.recalibrated import recalibrated, score_intervals
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.recalibration.recalibration_map import (
    Design,
    Form,
    NormalScores,
    fit_parts,
    normal_score_map,
)
from congruence.kernels.score_parts import (
    _log_mass,
    _own_features,
    may_be_best,
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
