"""Counts with many zeros are read in their own terms: what is there is named first, and nothing that is not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from congruence.kernels import Normal, Poisson
from congruence.kernels.conditional_calibration.counts import CountRows, Tally, by_group, count_reading
from congruence.kernels.dependence.blocks import blocks_of_groups
from congruence.tasks.sentences.counts import count_finding
from congruence.tasks.sentences.findings import sentences_of

N = 20_000
RNG = np.random.default_rng(5)
RATE = 0.05 * np.exp(0.5 * RNG.normal(size=N))
REGION = RNG.integers(20, size=N)
GROUPS = {f"Region R{number}": np.flatnonzero(number == REGION) for number in range(20)}


def said(y: np.ndarray, law: Poisson) -> list[str]:
    rows = CountRows.of(y, law)
    assert rows is not None
    readings, q_values = by_group(lambda chosen: count_reading(rows, chosen), GROUPS, 1)
    places = [count_finding(found, name) for name, found in readings.items() if q_values[name] <= 0.05 and found.is_off]
    overall = count_reading(rows)
    is_wrong = overall.is_off and overall.p_value <= 0.05
    sentences, _ = sentences_of(count_finding(overall) if is_wrong else None, places, len(GROUPS))
    assert len(sentences) <= 5
    assert not any(word in " ".join(sentences) for word in ("tails", "skew", "spreads above", "spreads below"))
    return sentences


def test_a_mean_that_is_too_large_is_said_first_with_the_ratio_and_the_counts() -> None:
    y = RNG.poisson(RATE).astype(float)
    sentences = said(y, Poisson(1.9 * RATE))
    ratio = y.sum() / (1.9 * RATE.sum())
    assert sentences[0].startswith(f"The predicted mean is {1.0 / ratio:.3g} times too high (")
    assert f"{y.sum():,.0f} observed, {1.9 * RATE.sum():,.0f} expected; is an exposure missing?" in sentences[0]


def test_zeros_that_are_too_few_are_said_before_a_mean_that_is_nearly_right() -> None:
    y = stats.nbinom.rvs(0.3, 0.3 / (0.3 + RATE * 4), random_state=1).astype(float)
    sentences = said(y, Poisson(RATE * 4 * 1.08))
    assert sentences[0].startswith("The counts are more widely spread than predicted: ")
    assert f"{100 * np.mean(y == 0):.3g} % of the targets are 0 where" in sentences[0]


def test_a_slice_without_any_of_the_counts_that_were_expected_is_named() -> None:
    y = RNG.poisson(RATE).astype(float)
    y[GROUPS["Region R7"]] = 0.0
    expected = RATE[GROUPS["Region R7"]].sum()
    text = " ".join(said(y, Poisson(RATE)))
    assert f"the predicted mean is too high: 0 observed, {expected:.3g} expected" in text
    assert "On Region R7 (" in text


def test_no_count_where_each_group_of_rows_expects_as_many_is_off() -> None:
    """Sums of groups that do not vary said that nothing could be known."""
    rows = CountRows.of(np.zeros(1000), Poisson(np.full(1000, 0.1)))
    assert rows is not None
    reading = count_reading(rows, blocks=blocks_of_groups(np.arange(1000) // 10, 1000))
    assert reading.is_off
    assert reading.p_value < 1e-6


def test_a_true_version_is_seldom_blamed_and_its_interval_covers() -> None:
    named, covered = 0, 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        y = rng.poisson(RATE).astype(float)
        named += "in no place by enough" not in said(y, Poisson(RATE))[0]
        rows = CountRows.of(y, Poisson(RATE))
        assert rows is not None
        reading = count_reading(rows, GROUPS["Region R3"])
        covered += reading.low <= 1.0 <= reading.high
    assert named <= 12, "before the verdict of all tests, which closes over it"
    assert covered >= 108


@pytest.mark.parametrize("observed", [0.0, 3.0, 20.0])
def test_the_p_value_of_a_poisson_sum_is_the_exact_one(observed: float) -> None:
    law = stats.poisson(9.3)
    exact = min(1.0, 2.0 * min(law.cdf(observed), law.sf(observed - 1.0)))
    assert Tally(observed, 9.3, 9.3).p_value == pytest.approx(exact, rel=1e-12)


def test_what_are_no_counts_with_many_zeros_are_not_read_so() -> None:
    y = np.arange(10.0, 40.0)
    assert CountRows.of(y, Poisson(y)) is None
    assert CountRows.of(y, Normal(y, np.ones(30))) is None
