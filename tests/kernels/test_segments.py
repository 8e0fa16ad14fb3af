"""The search of segments: its forms are the definition's, of all ranges; what is missing or constant is in none."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from congruence.kernels import Poisson
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.searched_ranges import FEWEST, Feature, Search, SearchedRows, Sums
from congruence.kernels.conditional_calibration.segments import faulty_segments
from congruence.kernels.dependence.blocks import blocks_of_groups
from congruence.kernels.pit import pit_values

RNG = np.random.default_rng(0)
N = 300
X = np.where(RNG.uniform(size=N) < 0.1, np.nan, RNG.normal(size=N))
WORDS = RNG.choice(["a", "b", "seldom"], N, p=[0.6, 0.37, 0.03])
RATE = np.exp(RNG.normal(size=N) - 1.0)


def counted() -> SearchedRows:
    law, y = Poisson(RATE), RNG.poisson(RATE).astype(float)
    return SearchedRows.of(pit_values(y, law), JumpScores.of(y, law))


def test_forms_are_squared_sums_over_the_rows_of_a_range_in_their_standard_errors() -> None:
    rows = counted()
    search = Search([Feature("x", X), Feature("word", WORDS)], rows.variance)
    centred = rows.scores - rows.scores.mean(axis=0)
    ratio = np.sum(centred**2, axis=0) / rows.variance.sum(axis=0)
    for number, feature in enumerate(search.features):
        forms = search.forms(number, Sums(rows.scores[:, :, None], rows.variance))[:, :, 0]
        usable = search._parts[number][0]
        assert len(usable) >= 2
        for part, found in zip(usable, forms, strict=True):
            inside = feature.holds(feature.range_of(int(part), complement=False))
            assert FEWEST <= inside.sum() <= (N / 2 if feature.is_ordered else N - FEWEST)
            share = rows.variance[inside].sum(axis=0) / rows.variance.sum(axis=0)
            spread = ratio * rows.variance[inside].sum(axis=0) * (1.0 - share)
            direct = centred[inside].sum(axis=0) ** 2 / spread
            np.testing.assert_allclose(found, [*direct, direct.sum()], rtol=1e-9)


def test_a_trend_is_the_squared_sum_of_scores_by_the_ranks_of_a_feature_in_its_standard_errors() -> None:
    rows = counted()
    search = Search([Feature("word", WORDS), Feature("x", X)], rows.variance)
    (found,) = search.trends(Sums(rows.scores[:, :, None], rows.variance))[:, :, 0]
    centred, ranks = rows.scores - rows.scores.mean(axis=0), pd.Series(X).rank()
    u = ((ranks - ranks.mean()).fillna(0.0)).to_numpy()[:, None]
    ratio = np.sum(centred**2, axis=0) / rows.variance.sum(axis=0)
    direct = np.sum(u * centred, axis=0) ** 2 / (ratio * np.sum(u**2 * rows.variance, axis=0))
    np.testing.assert_allclose(found, [*direct, direct.sum()], rtol=1e-5)


def test_a_slope_that_is_missed_is_found_as_one_range_with_one_end() -> None:
    """Of 6 standard errors; 5.1 of them lie in the best range alone."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2000, 6))
    pit = ndtr(rng.normal(size=2000) + 6.0 / np.sqrt(2000) * x[:, 3])
    found = faulty_segments([Feature(f"x{k}", column) for k, column in enumerate(x.T)], SearchedRows.of(pit))
    ((only,),) = [each.ranges for each in found]
    assert only.feature == "x3"
    assert np.isinf(only.above) != np.isinf(only.up_to)


def test_the_rows_of_a_range_are_those_that_a_reader_takes_from_its_ends() -> None:
    """Of "where temp is between 0.3 and 0.7 (10 rows)", of numbers in steps, those of 0.3 were not among the 10."""
    rng = np.random.default_rng(3)
    hour, temp = rng.integers(0, 4, 600).astype(float), rng.integers(0, 51, 600) / 50.0
    pit = ndtr(rng.normal(size=600) + 1.5 * ((hour == 2) & (temp > 0.3) & (temp <= 0.7)))
    features = {"hour": hour, "temp": temp}
    (first, *_) = faulty_segments([Feature(*each) for each in features.items()], SearchedRows.of(pit))
    read = [(features[each.feature] >= each.above) & (features[each.feature] <= each.up_to) for each in first.ranges]
    assert len(read) == 2
    np.testing.assert_array_equal(first.rows, np.flatnonzero(np.logical_and.reduce(read)))
    fine = Feature("x", np.array([*[1.0] * 40, *[np.nextafter(1.0, 2.0)] * 40, *[2.0] * 40]))
    for part in range(len(fine.parts[0])):
        first_cell, last_cell = (each[part] for each in fine.parts)
        codes = fine.cells[0]
        inside = (codes >= first_cell) & (codes <= last_cell)
        np.testing.assert_array_equal(fine.holds(fine.range_of(part, complement=False)), inside)


def test_ranges_beside_each_other_hold_all_rows_but_those_that_are_missing() -> None:
    feature = Feature("x", X)
    for part in range(len(feature.parts[0])):
        one, other = (feature.range_of(part, complement=complement) for complement in (False, True))
        if one != other:
            np.testing.assert_array_equal(feature.holds(one) ^ feature.holds(other), ~np.isnan(X))
    assert not feature.holds(feature.range_of(0, complement=False))[np.isnan(X)].any()


def test_a_word_in_which_counts_are_wrong_is_found_and_constant_features_are_no_place() -> None:
    wrong = WORDS == "b"
    law, y = Poisson(RATE), RNG.poisson(np.where(wrong, 4.0, 1.0) * RATE).astype(float)
    rows = SearchedRows.of(pit_values(y, law), JumpScores.of(y, law))
    features = [Feature("one", np.ones(N)), Feature("nothing", np.full(N, np.nan)), Feature("word", WORDS)]
    (first, *_) = faulty_segments(features, rows)
    assert first.ranges[0].feature == "word"
    np.testing.assert_array_equal(first.rows, np.flatnonzero(wrong))
    assert first.p_value == 0.005
    assert faulty_segments(features[:2], rows) == []


def test_one_group_that_is_off_is_no_segment_since_a_group_says_as_much_as_one_row() -> None:
    groups = np.arange(N) // 10
    z = RNG.normal(size=N) + 3.0 * (groups == 7)
    features = [Feature("x", np.arange(N, dtype=float))]
    pit = ndtr(z)
    assert faulty_segments(features, SearchedRows.of(pit))
    assert faulty_segments(features, SearchedRows.of(pit, blocks=blocks_of_groups(groups, N))) == []


def test_a_slice_that_is_wrong_is_named_alone_and_its_size_is_not_that_of_chosen_rows() -> None:
    """A second range is named where the fault is there alone; ends that are drawn where most is seen see too much."""
    alone, both, sizes = 0, 0, []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x, words = rng.normal(size=(600, 3)), rng.choice(list("abcd"), 600)
        features = [*(Feature(f"x{k}", column) for k, column in enumerate(x.T)), Feature("word", words)]
        # A slice by a shift that is less where the spread is larger, the lower part of a slice, and a range.
        spread, is_b = np.exp(0.3 * x[:, 1]), words == "b"
        for where in (is_b, is_b & (x[:, 2] < 0.2)):
            pit = ndtr(rng.normal(size=600) - 1.2 * where / spread)
            (first, *_) = faulty_segments(features, SearchedRows.of(pit), draws=39, most=1)
            names = [part.feature for part in first.ranges]
            alone += names == ["word"] and where is is_b
            both += names == ["word", "x2"] and where is not is_b
        z = rng.normal(size=600) - (x[:, 0] > 1.0)
        (first, *_) = faulty_segments(features, SearchedRows.of(ndtr(z)), draws=39, most=1)
        true = np.mean(x[first.rows, 0] > 1.0)
        sizes.append([-np.mean(z[rows]) / true for rows in (first.rows, first.judged_by)])
    assert alone == 10
    assert both >= 8
    chosen, judged = np.mean(sizes, axis=0)
    assert judged < chosen
    assert judged == pytest.approx(1.0, abs=0.06)


def test_what_is_not_one_of_two_words_is_the_other() -> None:
    two = Feature("is_new", np.array(["False", "True", "True"]))
    assert two.range_of(0, complement=True).word == "True"
    assert not two.range_of(0, complement=True).is_not
    three = Feature("word", WORDS).range_of(0, complement=True)
    assert three.is_not
    assert three.word == "a"
