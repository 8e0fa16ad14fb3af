"""What is held out depends on nothing that a fit has seen: groups are whole, and cuts of time have room beside them."""

import numpy as np
import pytest

from congruence.kernels import RBF, Normal, prepare
from congruence.kernels.dependence.blocks import FEWEST_BLOCKS, DependentBlocks, RowDependence, blocks_of_groups
from congruence.kernels.dependence.correlation import folds, hold_out, sample
from congruence.kernels.recalibration.fit import fit_recalibration
from congruence.kernels.recalibration.recalibration_map import input_features

N = 1000
SHOP = np.arange(N) % 73
MIXED = np.random.default_rng(0).permutation(N)


def distance(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first[:, None] - second).min())


def test_a_group_is_fitted_on_or_held_out_as_a_whole_wherever_it_stands() -> None:
    by_shop = RowDependence.of(N, groups=SHOP)
    parts = hold_out(np.arange(N), by_shop)
    assert np.all(parts.fitting ^ parts.held_out)
    assert 0.3 < parts.fitting.mean() < 0.7
    assert not set(SHOP[parts.fitting]) & set(SHOP[parts.held_out])
    moved = hold_out(np.arange(N), RowDependence.of(N, groups=SHOP[MIXED]))
    np.testing.assert_array_equal(moved.fitting, parts.fitting[MIXED])


def test_the_later_rows_are_held_out_with_more_than_the_longest_run_of_time_between() -> None:
    hours = MIXED // 3  # three rows an hour, in the file in any order
    parts = hold_out(np.arange(N), RowDependence.of(N, time=hours))
    assert hours[parts.fitting].max() < hours[parts.held_out].min()
    between = ~(parts.fitting | parts.held_out)
    assert not set(hours[between]) & set(hours[~between])
    assert between.sum() >= N // FEWEST_BLOCKS - 3
    assert min(parts.fitting.sum(), parts.held_out.sum()) >= 0.44 * N


def test_folds_divide_no_group_and_their_cuts_of_time_have_a_run_beside_them() -> None:
    found = folds(np.arange(N), 5, 0, "folds", blocks_of_groups(SHOP, N))
    assert all(len(np.unique(found.numbers[shop == SHOP])) == 1 for shop in range(73))
    assert not found.beside_cuts.any()
    blocks = DependentBlocks(np.arange(N) // 40, 25, "time")
    found = folds(np.arange(N), 5, 0, "folds", blocks)
    assert np.bincount(found.numbers).tolist() == [200] * 5
    for k in range(5):
        outside = np.flatnonzero((found.numbers == k) & ~found.beside_cuts)
        inside = np.flatnonzero((found.numbers != k) & ~found.beside_cuts)
        assert distance(outside, inside) > 40


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_is_of_whole_groups_or_of_stretches_of_time(seed: int) -> None:
    rows = sample(RowDependence(groups=SHOP), 200, seed, "sample")
    taken = np.unique(SHOP[rows])
    assert len(rows) == np.isin(SHOP, taken).sum()
    assert 180 <= len(rows) <= 200
    large = sample(RowDependence(groups=np.arange(N) // 50), 200, seed, "sample")
    assert len(large) == 10 * 50  # fewer groups give no p-value
    in_time = sample(RowDependence(time=MIXED), 200, seed, "sample")
    assert np.all(np.diff(in_time) > 0)
    assert len(in_time) == 200
    assert np.count_nonzero(np.diff(np.sort(MIXED[in_time])) > 1) <= 3


def test_a_correction_that_only_its_own_groups_ask_for_is_not_made() -> None:
    """Thirty shops of twenty rows, each with its own level: rows seem to say that laws must move, shops do not."""
    rng = np.random.default_rng(5)
    shop = np.repeat(np.arange(30), 20)
    x = np.repeat(rng.standard_normal((30, 2)), 20, axis=0)
    features = input_features(prepare(x, input_kernel=RBF(1.0)).spectrum, x)
    law = Normal(np.zeros(600), 1.0)
    moved = by_shop = 0
    for seed in range(6):
        draw = np.random.default_rng(seed)
        y = np.sqrt(0.5) * (np.repeat(draw.standard_normal(30), 20) + draw.standard_normal(600))
        blocks = blocks_of_groups(shop, 600)
        moved += fit_recalibration(features, y, law).form.shift is not None
        by_shop += fit_recalibration(features, y, law, blocks=blocks).form.shift is not None
    assert by_shop <= 1 < 5 <= moved
