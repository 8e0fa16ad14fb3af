"""Targets far out, and values that many targets share: what is counted, what is expected, and with what certainty."""

import numpy as np
import pytest
import scipy.stats
from rare_targets import true, with_zeros

from congruence.kernels import Deterministic, Gamma, Normal, Poisson, Quantiles, Samples
from congruence.kernels.conditional_calibration.rare import _at_least, _at_most, extremes, masses
from congruence.kernels.dependence.blocks import blocks_of_groups

N = 2000
RNG = np.random.default_rng(4)
LOCATION, SPREAD = RNG.standard_normal(N), np.exp(0.4 * RNG.standard_normal(N))
NORMAL = Normal(LOCATION, SPREAD)
Y = LOCATION + SPREAD * RNG.standard_normal(N)
HALF = np.where(RNG.random(N) < 0.5, 0.0, RNG.gamma(2.0, size=N))


def test_one_target_in_a_hundred_that_lies_far_out_is_counted_and_named() -> None:
    y = Y.copy()
    y[:20] += 9.0 * SPREAD[:20]
    found = extremes(y, NORMAL)
    assert found.p_value < 1e-50
    assert found.most.observed == 20
    at = {count.level: count for count in found.counts}
    assert at[1e-6].expected == pytest.approx(0.004)
    assert set(found.farthest[:20]) == set(range(20))
    assert found.above >= 20
    assert found.beyond(0.0, 1.0) is not None
    assert found.beyond(0.0, 4.0) is None


def test_true_predictions_of_all_kinds_are_left_alone() -> None:
    for name, y, law, step, blocks in true(N, np.random.default_rng(4)):
        at_values, far = masses(y, law, step, blocks), extremes(y, law, step, blocks)
        assert at_values is None or not at_values.faults(), name
        for found in (at_values, far):
            assert found is None or found.p_value is None or found.p_value > 0.01, name


def test_what_is_not_stated_is_not_asked() -> None:
    few = extremes(Y + 50.0, Samples(LOCATION[:, None] + RNG.standard_normal((N, 50))))
    assert few.p_value is None
    assert not few.counts
    many = extremes(Y[:300], Samples((LOCATION[:, None] + SPREAD[:, None] * RNG.standard_normal((N, 1999)))[:300]))
    assert [count.level for count in many.counts] == [1e-3]
    assert many.counts[0].expected == pytest.approx(300 * 0.002)
    assert extremes(Y, Deterministic(LOCATION)).p_value is None
    outer = Quantiles(np.array([0.0005, 0.5, 0.9995]), np.tile([-3.3, 0.0, 3.3], (N, 1)))
    found = extremes(np.full(N, 4.0), outer)
    assert [(count.level, count.observed) for count in found.counts] == [(1e-3, N)]
    assert found.counts[0].expected == pytest.approx(N * 0.001)


def test_jumps_of_counts_are_part_of_what_is_expected() -> None:
    mean = np.full(N, 0.05)
    found = extremes(RNG.poisson(mean).astype(float), Poisson(mean))
    chance = {level: scipy.stats.poisson.sf(k, 0.05) for level, k in ((1e-3, 2), (1e-4, 2), (1e-6, 3), (1e-9, 5))}
    assert {c.level: c.expected for c in found.counts} == pytest.approx({a: N * p for a, p in chance.items()}, rel=1e-3)


def test_a_value_that_half_of_the_targets_share_is_told_whatever_was_predicted() -> None:
    gamma, levels = Gamma(np.full(N, 2.0), np.ones(N)), np.array([0.05, 0.5, 0.95])
    stated = np.tile(scipy.stats.gamma(2.0).ppf(levels), (N, 1))
    normal, members = Normal(np.ones(N), np.full(N, 1.3)), Samples(RNG.gamma(2.0, size=(N, 10)))
    for law in (gamma, normal, members, Quantiles(levels, stated)):
        found = masses(HALF, law)
        (fault,) = found.faults()
        assert (fault.value, fault.observed) == (0.0, np.count_nonzero(HALF == 0.0))
        assert fault.expected_share < 0.06
        assert found.p_value < 1e-30
    found = masses(np.where(RNG.random(N) < 0.6, 0.0, HALF), with_zeros(np.full(N, 0.4)))
    assert found.faults()[0].expected_share == pytest.approx(0.4)
    far = extremes(HALF, gamma, beside=masses(HALF, gamma).faults())
    assert far.p_value == 1.0


def test_a_bias_on_rounded_targets_is_no_fault_of_single_values() -> None:
    found = masses(np.round(Y, 1), Normal(LOCATION + 0.8, SPREAD), 0.1)
    assert found.p_value < 0.05
    assert not found.faults()


def test_quantiles_that_are_equal_state_a_mass_between_two_levels() -> None:
    levels = np.array([0.05, 0.5, 0.95])
    zeros = Quantiles(levels, np.tile([0.0, 0.0, 3.0], (N, 1)))
    for share, is_right in ((0.3, False), (0.6, True), (0.99, False)):
        found = masses(np.where(np.arange(N) < share * N, 0.0, 1.0 + np.arange(N)), zeros)
        (mass,) = found.at
        assert (found.tried * mass.p_value > 0.05) is is_right


def test_one_of_nineteen_levels_that_is_wrong_is_seen_by_its_cells() -> None:
    levels = np.linspace(0.05, 0.95, 19)
    stated = levels.copy()
    stated[13] -= 0.04
    law = Quantiles(levels, LOCATION[:, None] + SPREAD[:, None] * scipy.stats.norm.ppf(stated))
    found = masses(Y, law)
    assert found.p_value < 1e-3


def test_bounds_hold_for_sums_of_unequal_chances_and_are_exact_for_equal_ones() -> None:
    chances = np.random.default_rng(0).uniform(0.0, 0.4, size=40)
    exact = np.ones(1)
    for chance in chances:
        exact = np.convolve(exact, [1.0 - chance, chance])
    for observed in range(41):
        assert _at_least(observed, 40, chances.mean()) >= exact[observed:].sum() - 1e-12
        assert _at_most(observed, 40, chances.mean()) >= exact[: observed + 1].sum() - 1e-12
    assert _at_least(9, 40, 0.1) == pytest.approx(scipy.stats.binom.sf(8, 40, 0.1))


def test_rows_of_a_group_count_once() -> None:
    groups = np.arange(N) // 20
    y = np.where(groups == 3, LOCATION + 9.0 * SPREAD, Y)
    blocks = blocks_of_groups(groups, N)
    found = extremes(y, NORMAL, blocks=blocks)
    one = next(count for count in found.counts if count.level == 1e-3)
    assert one.observed >= 20
    assert found.blocks == 100
    assert one.p_value > 0.05
    held = masses(np.where(groups < 5, 0.0, Y), NORMAL, blocks=blocks)
    assert 1e-4 < held.at[0].p_value < 0.1
