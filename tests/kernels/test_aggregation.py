"""Mergeable means: the same in any sharding, with intervals that cover, and infinities that stay visible."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels.aggregation import ScoreStatistics, merge_slices, sliced_statistics
from congruence.kernels.errors import InvalidInputError

RNG = np.random.default_rng(3)
SCORES = {"crps": RNG.gamma(2, 1, 5000), "squared_error": RNG.gamma(1, 4, 5000)}
KEYS = np.arange(5000)


def _shard(rows: np.ndarray) -> ScoreStatistics:
    return ScoreStatistics.of({name: values[rows] for name, values in SCORES.items()}, keys=KEYS[rows])


def test_shards_merge_to_the_whole_in_any_order() -> None:
    whole = ScoreStatistics.of(SCORES, keys=KEYS)
    parts = [_shard(rows) for rows in np.array_split(RNG.permutation(5000), 7)]
    merged = sum(parts[1:], start=parts[0])
    assert merged.rows == 5000
    assert merged.means() == pytest.approx({name: values.mean() for name, values in SCORES.items()})
    for name, estimate in merged.estimates().items():
        reference = whole.estimates()[name]
        assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high))


def test_intervals_have_the_width_of_the_standard_error() -> None:
    functions = {"rmse": lambda mean: np.sqrt(mean["squared_error"]), "crps": lambda mean: mean["crps"]}
    estimates = ScoreStatistics.of(SCORES).estimates(functions, resamples=4000)
    standard_error = SCORES["crps"].std() / np.sqrt(5000)
    assert estimates["crps"].high - estimates["crps"].low == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    assert estimates["rmse"].value == pytest.approx(np.sqrt(SCORES["squared_error"].mean()))
    assert estimates["rmse"].low < estimates["rmse"].value < estimates["rmse"].high
    assert estimates == ScoreStatistics.of(SCORES).estimates(functions, resamples=4000)


@pytest.mark.parametrize("rows", [60, 2000])
def test_intervals_cover_the_truth_as_often_as_they_say(rows: int) -> None:
    rng = np.random.default_rng(rows)
    hits = 0
    for _ in range(120):
        estimate = ScoreStatistics.of({"x": rng.normal(1.0, 2.0, rows)}).estimates(resamples=300)["x"]
        hits += estimate.low <= 1.0 <= estimate.high
    assert 0.88 <= hits / 120 <= 0.99


def test_slices_are_the_statistics_of_their_rows() -> None:
    labels = np.where(KEYS % 3 == 0, "rural", "urban")
    shards = [
        sliced_statistics({n: v[rows] for n, v in SCORES.items()}, labels[rows], keys=KEYS[rows])
        for rows in (slice(0, 2000), slice(2000, 5000))
    ]
    merged = merge_slices(*shards)
    assert merged["rural"].means()["crps"] == pytest.approx(SCORES["crps"][KEYS % 3 == 0].mean())
    assert merged["rural"].rows + merged["urban"].rows == 5000


def test_an_infinite_score_makes_its_mean_infinite_and_no_other() -> None:
    estimates = ScoreStatistics.of({"nll": [1.0, np.inf, 2.0], "crps": [1.0, 2.0, 3.0]}).estimates()
    assert estimates["nll"].value == estimates["nll"].low == np.inf
    assert np.isfinite(estimates["crps"].high)


def test_what_cannot_be_aggregated_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="NaN in row 1"):
        ScoreStatistics.of({"x": [1.0, np.nan]})
    with pytest.raises(InvalidInputError, match="expected \\(2,\\)"):
        ScoreStatistics.of({"x": [1.0, 2.0], "y": [1.0]})
    with pytest.raises(InvalidInputError, match="cannot merge"):
        ScoreStatistics.of({"x": [1.0]}) + ScoreStatistics.of({"y": [1.0]})
    with pytest.raises(InvalidInputError, match="keys"):
        ScoreStatistics.of({"x": [1.0]}, keys=[1, 2])
