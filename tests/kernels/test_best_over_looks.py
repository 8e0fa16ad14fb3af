"""Over all looks the best version stays, worse ones leave for ever, and newcomers are judged from their first look."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.monitoring.best import BestOverLooks, LookDifference, best_over_looks

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
