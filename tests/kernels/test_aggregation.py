"""Mergeable means: the same in any sharding, with intervals that cover, and infinities that stay visible."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from congruence.kernels.distributions import Normal, Poisson
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_values
from congruence.kernels.resampling import ScoreStatistics, sliced_statistics

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
    estimates = ScoreStatistics.of(SCORES).estimates(functions)
    standard_error = SCORES["crps"].std() / np.sqrt(5000)
    assert estimates["crps"].high - estimates["crps"].low == pytest.approx(2 * 1.96 * standard_error, rel=0.08)
    assert estimates["rmse"].value == pytest.approx(np.sqrt(SCORES["squared_error"].mean()))
    assert estimates["rmse"].low < estimates["rmse"].value < estimates["rmse"].high
    assert estimates == ScoreStatistics.of(SCORES).estimates(functions)


def test_slices_are_the_statistics_of_their_rows() -> None:
    labels = np.where(KEYS % 3 == 0, "rural", "urban")
    shards = [
        sliced_statistics({n: v[rows] for n, v in SCORES.items()}, labels[rows], keys=KEYS[rows])
        for rows in (slice(0, 2000), slice(2000, 5000))
    ]
    merged = {label: shards[0][label] + shards[1][label] for label in shards[0]}
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


LEVELS = np.linspace(1e-5, 1.0 - 1e-5, 20)
CENTERS = {f"pit_{j}": float(level) for j, level in enumerate(LEVELS)}


def _calibration_statistics(pit: np.ndarray) -> ScoreStatistics:
    return ScoreStatistics.of({name: pit <= level for name, level in CENTERS.items()})


@pytest.mark.parametrize("law", ["normal", "poisson", "overconfident"])
def test_intervals_of_a_calibration_error_cover_that_of_the_population(law: str) -> None:
    """Percentiles of the bootstrap cover a calibrated model's error, 0, in no sample at all."""
    covered, repetitions = 0, 300
    truth = float(np.mean(np.abs(LEVELS - ndtr(ndtri(LEVELS) / 1.5)))) if law == "overconfident" else 0.0
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        if law == "poisson":
            pit = pit_values(rng.poisson(0.5, 500), Poisson(np.full(500, 0.5)), seed=seed)
        else:
            pit = ndtr(rng.normal(0.0, 1.5 if law == "overconfident" else 1.0, 500))
        found = _calibration_statistics(pit).mean_absolute_deviation(CENTERS, resamples=300)
        assert 0.0 <= found.low < found.value < found.high
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / repetitions <= 0.99
    assert law != "overconfident" or found.low > 0.03


def test_a_mean_absolute_deviation_is_that_of_the_means_and_merges() -> None:
    pit = np.random.default_rng(4).uniform(size=3000) ** 1.1
    whole = _calibration_statistics(pit).mean_absolute_deviation(CENTERS)
    assert whole.value == pytest.approx(np.mean([abs(np.mean(pit <= level) - level) for level in LEVELS]), rel=1e-12)
    keys = np.arange(3000)
    parts = [
        ScoreStatistics.of({name: pit[rows] <= level for name, level in CENTERS.items()}, keys=keys[rows])
        for rows in (slice(1000, 3000), slice(0, 1000))
    ]
    merged = (parts[0] + parts[1]).mean_absolute_deviation(CENTERS)
    assert (merged.low, merged.high) == pytest.approx((whole.low, whole.high), rel=1e-9)


def test_a_deviation_that_is_not_defined_is_refused() -> None:
    statistics = ScoreStatistics.of({"x": [1.0, np.inf]})
    for centers, message in (({}, "none"), ({"z": 0.0}, "'z'"), ({"x": 0.0}, "infinite values")):
        with pytest.raises(InvalidInputError, match=message):
            statistics.mean_absolute_deviation(centers)
    with pytest.raises(InvalidInputError, match="level"):
        statistics.mean_absolute_deviation({"x": 0.0}, level=1.0)


def test_intervals_of_mean_scores_cover_at_five_hundred_rows() -> None:
    """NLL and CRPS of a normal model: of a normal target, and of one with heavy tails (Student t, 5 degrees)."""
    model, n, repetitions = Normal(np.zeros(500), 1.0), 500, 200
    rng = np.random.default_rng(8)
    for draw in (lambda: rng.normal(size=n), lambda: rng.standard_t(5, n)):
        many = np.concatenate([draw() for _ in range(2000)])
        law = Normal(np.zeros(len(many)), 1.0)
        truth = {"nll": -law.log_prob(many).mean(), "crps": law.crps(many).mean()}
        covered = dict.fromkeys(truth, 0)
        for _ in range(repetitions):
            y = draw()
            found = ScoreStatistics.of({"nll": -model.log_prob(y), "crps": model.crps(y)}).estimates()
            for name, value in truth.items():
                covered[name] += found[name].low <= value <= found[name].high
        assert all(0.88 <= count / repetitions <= 0.99 for count in covered.values()), covered
