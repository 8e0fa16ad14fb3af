"""Looks over time: what the guarantees promise, by simulation with a known answer; the best version stays."""

from itertools import combinations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.monitoring.best import BestOverLooks, LookDifference, best_over_looks
from congruence.kernels.monitoring.evidence import (
    POWERS,
    Look,
    Monitor,
    ScoreSums,
    detector,
    e_values,
    likeliest_start,
    martingale,
    players,
    score_bet,
    spending,
)
from congruence.kernels.pit import pit_scores


def test_e_values_have_mean_one_at_every_power() -> None:
    for number, power in enumerate(POWERS):
        assert float(np.exp(e_values(0.03)[number])) == pytest.approx(power * 0.03 ** (power - 1.0))
        mean = quad(lambda p, number=number: np.exp(e_values(p)[number]), 0.0, 1.0, points=[1e-6, 1e-3])[0]
        assert mean <= 1.0 + 1e-6
    draws = (1.0 + np.arange(1000)) / 1000.0  # what a test with 999 draws can answer
    assert (np.exp(e_values(draws)).mean(axis=1) <= 1.0).all()
    assert np.isfinite(e_values(1e-300)).all()


def test_a_look_without_a_second_test_or_a_bet_stakes_on_what_it_has() -> None:
    one, two, both, shared, alone = np.split(players([0.2], [0.6], [np.log(3.0)]), [7, 14, 21, 28])
    np.testing.assert_allclose(np.exp(both), (np.exp(one) + np.exp(two)) / 2.0)
    np.testing.assert_allclose(np.exp(shared), (np.exp(both) + 3.0) / 2.0)
    np.testing.assert_allclose(np.exp(alone), 3.0)
    one, two, both, shared, alone = np.split(players([0.2], [0.2], [np.nan]), [7, 14, 21, 28])
    for others in (two, both, shared):
        np.testing.assert_allclose(others, one)
    np.testing.assert_array_equal(alone, 0.0)
    assert martingale(Monitor(looks=(Look("a", 0.2),))._log_e)[0] == pytest.approx(
        np.log((28 * np.exp(one).mean() + 4) / 32)
    )


def test_true_versions_are_hardly_ever_called_wrong_over_a_thousand_looks() -> None:
    p = np.random.default_rng(0).uniform(size=(2, 500, 1000))
    log_e = players(*p, np.nan)
    half = np.logaddexp(martingale(log_e), spending(np.minimum(1.0, 2.0 * p.min(axis=0)), 0.025)) - np.log(2.0)
    assert np.mean((half >= np.log(20.0)).any(axis=1)) <= 0.05
    sums = detector(log_e)
    alarms = (sums >= np.log(100.0)).any(axis=1)
    first = np.where(alarms, (sums >= np.log(100.0)).argmax(axis=1) + 1, 1000)
    assert first.mean() >= 100.0  # cut at 1,000 looks: the true average is larger


def test_the_detector_is_the_sum_over_starts_and_names_the_largest() -> None:
    log_e = np.random.default_rng(1).normal(size=(3, 12))
    sums = detector(log_e)
    for k in range(12):
        parts = np.array([np.exp(log_e[:, j : k + 1].sum(axis=1)).mean() for j in range(k + 1)])
        assert np.exp(sums[k]) == pytest.approx(parts.sum())
        assert likeliest_start(log_e[:, : k + 1]) == parts.argmax()


def test_a_small_persistent_fault_is_found_and_a_change_is_dated() -> None:
    rng = np.random.default_rng(2)
    found, delays, dates = [], [], []
    for _ in range(60):
        p = ndtr(-(rng.normal(size=60) + 1.0))
        monitor = Monitor(looks=tuple(Look(f"day {k}", float(v)) for k, v in enumerate(p)))
        found.append(monitor.wrong_at is not None)
        p = ndtr(-(rng.normal(size=60) + 2.0 * (np.arange(60) >= 25)))
        changed = Monitor(looks=tuple(Look(f"day {k}", float(v), when=f"day {k}") for k, v in enumerate(p)))
        if changed.alarm_at is not None and changed.alarm_at >= 25:
            delays.append(changed.alarm_at - 24)
            dates.append(changed.began_at)
    assert np.mean(found) > 0.9
    assert len(delays) >= 57
    assert np.median(delays) <= 6
    assert abs(float(np.median([d for d in dates if d is not None])) - 25) <= 1


def test_what_one_look_shows_is_said_at_once_and_stays_said() -> None:
    monitor = Monitor().with_look(Look("a", 1e-4, "Monday"))
    assert monitor.sentence() == "wrong, first shown on Monday (1 look)"
    for day in range(30):
        monitor = monitor.with_look(Look(f"{day}", 0.9))
    assert monitor.verdict == "wrong"
    assert monitor.with_look(Look("a", 0.5)) is monitor  # the same rows again are the same look
    assert Monitor().sentence() == "not looked at yet"
    with pytest.raises(InvalidInputError, match="expected a probability"):
        Look("b", 0.5, tests=(0.5, 0.0))


def test_bets_on_scores_have_mean_one_when_true_and_find_a_small_bias_soon() -> None:
    rng = np.random.default_rng(3)
    finals, crossings = [], []
    for _ in range(400):
        sums, total = ScoreSums(), 0.0
        for _ in range(10):
            log_e, sums = score_bet(pit_scores(rng.uniform(size=200)), sums)
            total += log_e
            finals.append(total)
    assert np.mean(np.array(finals).reshape(400, 10).max(axis=1) >= np.log(20.0)) <= 0.05
    for _ in range(40):
        sums, total = ScoreSums(), 0.0
        for look in range(10):  # noqa: B007
            log_e, sums = score_bet(pit_scores(ndtr(rng.normal(0.15, 1.0, size=500))), sums)
            total += log_e
            if total >= np.log(20.0):
                break
        crossings.append(look)
    assert np.median(crossings) <= 2


def test_every_factor_of_a_bet_has_mean_one_and_is_positive() -> None:
    sums = score_bet(pit_scores(np.random.default_rng(5).uniform(size=400) ** 0.5), ScoreSums())[1]
    nodes, weights = np.polynomial.legendre.leggauss(20)
    factors = 1.0 + pit_scores((nodes + 1.0) / 2.0) @ sums.bets().T
    assert (factors > 0.0).all()
    np.testing.assert_allclose(weights @ factors / 2.0, 1.0, atol=1e-12)


def test_a_block_is_one_observation() -> None:
    rng = np.random.default_rng(4)
    before = score_bet(pit_scores(rng.uniform(size=300) ** 0.8), ScoreSums())[1]
    scores, blocks = pit_scores(rng.uniform(size=40)), np.repeat(np.arange(10), 4)
    means = scores.reshape(10, 4, 4).mean(axis=1)
    assert score_bet(scores, before, blocks)[0] == pytest.approx(score_bet(means, before)[0])
    with pytest.raises(InvalidInputError, match="row 0, order 1"):
        score_bet(np.full((2, 4), 9.0), before)


NAMES = ("a", "b", "c")


def look(rng, means, n=200, names=NAMES):
    scores = {name: mean + rng.gamma(2.0, size=n) for name, mean in zip(NAMES, means, strict=True)}
    return {(a, b): LookDifference.of(scores[a], scores[b]) for a, b in combinations(names, 2)}


def test_what_one_look_says_is_the_paired_test():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 300))
    found, other = LookDifference.of(first, second), LookDifference.of(second, first)
    apart = first - second
    assert found.score == pytest.approx(np.mean(apart) / np.std(apart) * np.sqrt(300), rel=0.02)
    assert other.score == pytest.approx(-found.score, rel=1e-9)
    assert found.variance == pytest.approx(300 * np.var(apart), rel=0.01)
    assert LookDifference.of(first, first) == LookDifference(0.0, 0.0)
    groups = DependentBlocks(np.arange(300) // 10, 30, "groups")
    shared = np.repeat(rng.standard_normal(30), 10)
    assert LookDifference.of(shared, 0.0 * shared, blocks=groups).variance > 5.0 * np.sum(shared**2)
    far = LookDifference.of(first + 100.0, second)
    assert 30.0 < far.score < 40.0


def test_the_evidence_is_the_mean_over_the_strength_of_bets():
    told = [{("a", "b"): LookDifference(z, 4.0)} for z in (1.0, 2.0, 2.5)]
    total, variance, prior = 2.0 * 5.5, 12.0, 4.0

    def bet(strength):
        return 2.0 * norm.pdf(strength, scale=prior**-0.5) * np.exp(strength * total - strength**2 * variance / 2.0)

    assert best_over_looks(told).evidence["a"] == pytest.approx(quad(bet, 0.0, 5.0)[0], rel=1e-6)
    assert best_over_looks(told).evidence["b"] == 1.0


def test_worse_versions_leave_for_ever_and_equal_ones_stay():
    rng = np.random.default_rng(1)
    told = [look(rng, (0.0, 0.0, 0.2)) for _ in range(20)]
    found = best_over_looks(told)
    assert found.may_be_best == ["a", "b"]
    assert 0 < found.left["c"] < 20
    assert found.looks == 20
    back = best_over_looks([*told, *(look(rng, (0.5, 0.5, 0.0)) for _ in range(60))])
    assert "c" in back.left, "who left does not come back"
    assert best_over_looks([]) == BestOverLooks()


def test_who_comes_later_stakes_no_new_money():
    """The capital against a version is the same before and after a newcomer, and the newcomer can send it away."""
    rng = np.random.default_rng(2)
    told = [look(rng, (0.0, 0.03, 9.9), names=NAMES[:2]) for _ in range(6)]
    before = best_over_looks(told)
    assert "c" not in before.evidence
    nothing = {("b", "c"): LookDifference(0.0, 0.0)}
    assert best_over_looks([*told, nothing]).evidence == before.evidence | {"c": 1.0}
    after = best_over_looks([*told, *(look(rng, (0.3, 0.3, 0.0)) for _ in range(10))])
    assert after.may_be_best == ["c"]


def test_the_best_of_equals_is_lost_in_one_of_twenty_series_at_most():
    lost = 0
    for number in range(100):
        rng = np.random.default_rng([number, 5])
        lost += "a" in best_over_looks(look(rng, (0.0, 0.0, 0.0), n=50) for _ in range(20)).left
    assert lost <= 5
