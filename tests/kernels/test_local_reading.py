"""What is wrong and where: smoothed scores against their definition, known faults against their names."""

import re

import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr
from unit_splits import CUBIC, embedded

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.faults import faults, shift_and_factor
from congruence.kernels.conditional_calibration.local_reading import (
    Directions,
    ScoreSmoothing,
    local_distribution,
    local_reading,
    sidak,
)
from congruence.kernels.conditional_calibration.reading import group_reading, group_readings
from congruence.kernels.conditional_calibration.regions import number_of_regions, read_regions, regions
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.system import relative_eigenvalues
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, pit_scores
from congruence.kernels.split import prepare
from congruence.tasks.sentences.calibration import fault_clause, no_fault, place_in_words, short_name

N = 1500


@pytest.fixture(scope="module")
def inputs() -> Array:
    return np.random.default_rng(0).normal(size=(N, 3))


@pytest.fixture(scope="module")
def smoother(inputs: Array) -> SpectralSmoother:
    return prepare(embedded(inputs), input_kernel=CUBIC, regularization=0.01).smoother


@pytest.fixture(scope="module")
def few(inputs: Array) -> SpectralSmoother:
    return prepare(embedded(inputs[:120]), input_kernel=CUBIC, regularization=0.01).smoother


def _weights(smoother: SpectralSmoother) -> Array:
    return np.asarray(smoother(np.eye(len(smoother.analysis), dtype=np.float32)), dtype=np.float64)


def test_scores_and_their_spread_are_the_definition(few: SpectralSmoother) -> None:
    pit = np.random.default_rng(3).random(120)
    a = _weights(few)
    reading = local_reading(few, pit)
    np.testing.assert_allclose(reading.scores, a @ pit_scores(pit), atol=2e-5)
    np.testing.assert_allclose(reading.null_std, np.tile(np.sqrt(np.sum(a**2, axis=1))[:, None], 4), rtol=1e-4)
    np.testing.assert_allclose(reading.p_values, 2 * ndtr(-np.abs(reading.scores) / reading.null_std))
    np.testing.assert_allclose(
        reading.q_values, scipy.stats.false_discovery_control(sidak(reading.p_values.min(axis=1), 4))
    )


def test_the_spread_is_that_of_simulated_true_models(few: SpectralSmoother) -> None:
    rng = np.random.default_rng(4)
    drawn = np.stack([few(pit_scores(rng.random(120)).astype(np.float32)) for _ in range(1500)])
    spread = local_reading(few, rng.random(120)).null_std
    np.testing.assert_allclose(drawn.std(axis=0) / spread, 1.0, atol=0.12)


def test_points_without_labels_are_read_too(inputs: Array) -> None:
    prepared = prepare(embedded(inputs[:600]), input_kernel=CUBIC, regularization=0.01)
    far = prepared.spectrum.smoother(prepared.x, embedded(inputs[600:800]))
    z = np.random.default_rng(5).normal(size=600) + 0.5
    reading = local_reading(far, ndtr(z))
    assert reading.scores.shape == (200, 4)
    assert np.mean(reading.significant()) > 0.6
    assert set(reading.names[reading.significant()]) == {"bias"}


@pytest.mark.parametrize("rows", [120, 300])
def test_false_discoveries_of_true_models_stay_below_the_level(inputs: Array, rows: int) -> None:
    smoother = prepare(embedded(inputs[:rows]), input_kernel=CUBIC, regularization=0.01).smoother
    rng = np.random.default_rng(6)
    found = [local_reading(smoother, rng.random(rows)) for _ in range(100)]
    assert np.mean([np.any(reading.q_values <= 0.05) for reading in found]) <= 0.07
    assert np.mean([np.any(reading.significant()) for reading in found]) <= 0.05


def _faulty(inputs: Array, fault: str) -> Array:
    rng = np.random.default_rng(7)
    normal, half = rng.normal(size=N), inputs[:, 0] > 0
    skewed = (rng.gamma(2.0, size=N) - 2.0) / np.sqrt(2.0)
    heavy = rng.standard_t(3, size=N) / np.sqrt(3.0)
    return {
        "above": normal + 0.4,
        "below": normal - 0.4,
        "above by half": normal + 0.7 / (1.0 + np.exp(-3.0 * inputs[:, 0])),
        "narrow": normal * 1.6,
        "wide": normal / 1.6,
        "narrow here, wide there": normal * np.exp(0.5 * np.sin(1.5 * inputs[:, 0])),
        "narrow by half": normal * 1.8**half,
        "right": skewed,
        "left": -skewed,
        "right by half": np.where(half, skewed, normal),
        "heavy": heavy,
        "light": (rng.random(N) - 0.5) * np.sqrt(12.0),
    }[fault]


@pytest.mark.parametrize(
    ("fault", "kind", "sign"),
    [
        ("above", "bias", 1),
        ("below", "bias", -1),
        ("above by half", "bias", 1),
        ("narrow", "spread", 1),
        ("wide", "spread", -1),
        ("narrow by half", "spread", 1),
        ("right", "skew", 1),
        ("left", "skew", -1),
        ("right by half", "skew", 1),
        ("heavy", "tails", 1),
        ("light", "tails", -1),
    ],
)
def test_known_faults_are_named_where_they_are_significant(
    inputs: Array, smoother: SpectralSmoother, fault: str, kind: str, sign: int
) -> None:
    reading = local_reading(smoother, ndtr(_faulty(inputs, fault)))
    found = reading.significant()
    named = (reading.dominant == ORDERS.index(kind)) & (np.sign(reading.strength) == sign)
    assert np.mean(found) > 0.2
    assert np.mean(named[found]) >= 0.95
    assert set(reading.columns()["calibration_fault"][found & named]) == {kind}
    assert set(reading.columns()["calibration_fault"][~found]) <= {""}
    assert len({id(text) for text in reading.columns()["calibration_fault"]}) <= 1 + len(ORDERS)


def test_an_average_of_too_narrow_and_too_wide_is_not_taken_for_heavy_tails(
    inputs: Array, smoother: SpectralSmoother
) -> None:
    reading = local_reading(smoother, ndtr(_faulty(inputs, "narrow here, wide there")))
    found = reading.significant()
    assert np.mean(found) > 0.3
    assert np.mean(reading.dominant[found] == ORDERS.index("spread")) >= 0.95


def test_sizes_of_shift_and_spread(inputs: Array, smoother: SpectralSmoother) -> None:
    shifted = local_reading(smoother, ndtr(_faulty(inputs, "above"))).shift
    np.testing.assert_allclose(shifted, 0.4, atol=0.12)
    factor = local_reading(smoother, ndtr(_faulty(inputs, "narrow"))).factor
    np.testing.assert_allclose(factor, 1.6, rtol=0.15)


def test_shift_and_factor_are_those_of_the_normal_law_whose_expectations_the_scores_are() -> None:
    shift = np.array([0.0, 0.4, -1.5, 0.0, 0.3, 2.0, -0.7, 0.2])
    factor = np.array([1.0, 1.0, 2.0, 0.3, 4.0, 0.5, 1.6, 0.5])
    nodes = np.linspace(-12.0, 12.0, 4001)
    weights = scipy.stats.norm.pdf(nodes) * (nodes[1] - nodes[0])
    scores = [weights @ pit_scores(ndtr(one + by * nodes))[:, :2] for one, by in zip(shift, factor, strict=True)]
    back = shift_and_factor(*np.transpose(scores))
    np.testing.assert_allclose(back[0], shift, atol=1e-8)
    np.testing.assert_allclose(back[1], factor, rtol=1e-8)


def test_impossible_scores_stay_inside_the_range() -> None:
    shift, factor = shift_and_factor([0.0, 0.0, 1.7320], [-5.0, 5.0, -2.0])
    assert np.all(np.isfinite(shift))
    assert np.all((factor >= 0.0499) & (factor <= 20.001))


@pytest.mark.parametrize(
    ("law", "name", "positive"),
    [
        (scipy.stats.norm(0.3, 1.0), "bias", True),
        (scipy.stats.norm(0.0, 0.6), "spread", False),
        (scipy.stats.norm(0.0, 3.0), "spread", True),
        (scipy.stats.gamma(4.0, -2.0, 0.5), "skew", True),
        (scipy.stats.t(5, 0.0, np.sqrt(0.6)), "tails", True),
        (scipy.stats.laplace(0.0, np.sqrt(0.5)), "tails", True),
        (scipy.stats.uniform(-np.sqrt(3), 2 * np.sqrt(3)), "tails", False),
    ],
)
def test_the_nearest_single_fault_of_exact_scores(law: object, name: str, positive: bool) -> None:
    levels = (np.arange(20_000) + 0.5) / 20_000
    found = faults(pit_scores(ndtr(law.ppf(levels))).mean(axis=0)[None, :])  # type: ignore[attr-defined]
    assert found.names == [name]
    assert bool(found.strength[0] > 0) is positive
    assert np.linalg.norm(found.unexplained) < 0.6 * np.linalg.norm(found.scores)


def test_local_means_have_weights_that_sum_to_one(few: SpectralSmoother) -> None:
    directions, U = Directions.of_smoother(few), few.analysis.astype(np.float64)
    relative = relative_eigenvalues(few.filters)
    filters = relative / (relative + 3.0)
    weights = 1 / 120 + U @ (filters[:, None] * directions.centred(U.T, np.full(120, 1 / 120)))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    squared = directions.squared_weights(U, directions.spread(filters))
    np.testing.assert_allclose(squared, np.sum(weights**2, axis=1), rtol=2e-3)
    constant = directions.squared_weights(U, directions.spread(0.0 * filters))
    np.testing.assert_allclose(constant, 1 / 120)


def test_the_ridge_follows_the_data(inputs: Array, smoother: SpectralSmoother) -> None:
    noise = np.random.default_rng(8).normal(size=N)
    wave = 2.0 * np.sin(inputs[:, 0])
    scores = np.column_stack([noise, noise + wave, noise, noise])
    directions = Directions.of_smoother(smoother)
    projected = np.asarray(smoother.analysis.T @ scores, dtype=np.float64)
    found = ScoreSmoothing.of(directions, projected, scores.mean(axis=0), np.sum(scores**2, axis=0))
    assert not found.local[:, 0].any()
    assert found.local[:, 1].any()
    local, _ = found.local_means(smoother.analysis)
    np.testing.assert_allclose(local[:, 0], noise.mean())
    assert np.mean((local[:, 1] - wave) ** 2) < 0.1


def test_local_distribution_and_its_band(few: SpectralSmoother) -> None:
    rng = np.random.default_rng(9)
    levels = np.linspace(0.0, 1.0, 11)
    drawn = [local_distribution(few, rng.random(120), levels) for _ in range(600)]
    shares = np.stack([one.shares for one in drawn])
    inside = (shares >= drawn[0].lower) & (shares <= drawn[0].upper)
    np.testing.assert_allclose(shares.mean(axis=0), np.tile(levels, (120, 1)), atol=0.05)
    assert np.mean(inside[:, :, 3:8]) == pytest.approx(0.95, abs=0.02)
    curve = drawn[0].rearranged()
    assert np.all(np.diff(curve, axis=1) >= 0)
    narrow = local_distribution(few, ndtr(3.0 * rng.normal(size=120)), levels)
    assert np.mean(narrow.shares[:, 2] > narrow.upper[:, 2]) > 0.3


def test_a_group_is_read_by_its_own_rows_with_intervals_that_cover() -> None:
    rng = np.random.default_rng(10)
    covered = []
    for _ in range(300):
        reading = group_reading(ndtr(0.3 + 1.6 * rng.normal(size=200)))
        (low, high), (least, most) = reading.shift_interval, reading.factor_interval
        covered.append([low <= 0.3 <= high, least <= 1.6 <= most])
    assert np.all(np.abs(np.mean(covered, axis=0) - 0.95) < 0.03)


def test_p_values_of_groups_have_their_level() -> None:
    rng = np.random.default_rng(11)
    p_values = [group_reading(rng.random(60)).p_value for _ in range(600)]
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=0.02)
    readings, q_values = group_readings(rng.random(60), {"a": np.arange(20), "b": np.arange(60) < 1, "c": [3, 4, 5]})
    assert set(readings) == set(q_values) == {"a", "c"}
    assert readings["c"].rows == 3


def test_a_second_fault_is_told() -> None:
    reading = group_reading(ndtr(np.random.default_rng(12).standard_t(3, size=4000)))
    assert (reading.dominant, reading.second()) == ("spread", "tails")
    assert group_reading(ndtr(1.6 * np.random.default_rng(12).normal(size=4000))).second() is None


def test_the_range_of_a_feature_over_all_rows_is_read_once(inputs: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    quantiles = np.nanquantile

    def counted(values: Array, at: object) -> Array:
        read.append(len(values))
        return np.asarray(quantiles(values, at))

    monkeypatch.setattr(np, "nanquantile", counted)
    found = regions(embedded(inputs), features={"age": 50 + 10 * inputs[:, 0], "height": inputs[:, 1]})
    assert read.count(N) == 2
    assert len(read) == 2 + 2 * len(found)


def test_regions_partition_the_rows_by_inputs_alone(inputs: Array) -> None:
    x = embedded(inputs)
    found = regions(x, features={"age": 50 + 10 * inputs[:, 0], "city": np.array(["a"] * N)})
    again = regions(x, features={"age": 50 + 10 * inputs[:, 0]})
    np.testing.assert_array_equal(found.labels, again.labels)
    assert len(found) == number_of_regions(N) == 12
    assert np.all(found.labels[found.medoids] == np.arange(len(found)))
    assert np.all(np.diff(np.bincount(found.labels)) <= 0)
    assert len(set(found.names)) == len(found)
    shares = []
    for name, rows in found.rows().items():
        if between := re.match(r"age mostly ([-\d.]+) to ([-\d.]+)", name):
            low, high = np.mean(50 + 10 * inputs[rows, :1] < np.array(between.groups(), dtype=float), axis=0)
            shares.append(high - low)
    assert len(shares) >= 3
    assert shares == pytest.approx([0.8] * len(shares), abs=0.05), "a region is no box"
    assert sum(len(rows) for rows in found.rows().values()) == N


def test_the_wrong_region_is_read_first(inputs: Array) -> None:
    x = np.concatenate([inputs[:300] + 10.0, inputs[300:600], inputs[600:900] - 10.0])
    z = np.random.default_rng(13).normal(size=900)
    z[:300] *= 2.0
    found = regions(x, number=3)
    first, *rest = read_regions(found, ndtr(z))
    assert found.medoids[found.names.index(first.name)] < 300
    assert first.reading.dominant == "spread"
    assert first.reading.factor == pytest.approx(2.0, rel=0.15)
    assert first.q_value < 1e-6 < min(region.q_value for region in rest)


def test_faults_in_plain_words() -> None:
    assert fault_clause("bias", 0.4, 0.41, 1.0) == "the targets lie 0.41 predicted spreads above the predictions"
    assert fault_clause("bias", -0.4, -0.41, 1.0) == "the targets lie 0.41 predicted spreads below the predictions"
    assert (
        fault_clause("bias", -1.7, -140.0, 20.0) == "the targets lie 5 or more predicted spreads below the predictions"
    )
    assert fault_clause("spread", 0.7, 0.0, 1.62) == "the predicted spread is too small by a factor of 1.62"
    assert fault_clause("spread", -0.7, 0.0, 0.5) == "the predicted spread is too large by a factor of 2"
    assert "skewed to the right" in fault_clause("skew", 0.3, 0.0, 1.0)
    assert "lighter tails" in fault_clause("tails", -0.3, 0.0, 1.0)
    assert short_name("spread", -1.0) == "predicted spread too large"


def test_a_true_version_is_told_in_one_sentence() -> None:
    sentence = no_fault(1200, 0.41)
    assert sentence.startswith("No fault found in 1,200 rows: predictions agree with the targets")
    assert sentence.endswith("(p = 0.41).")


def test_places_in_words() -> None:
    assert place_in_words("age up to 30, income from 3") == "where age is up to 30 and income is 3 or more"
    assert place_in_words("wind 2.5 to 1e+03") == "where wind is between 2.5 and 1e+03"
    assert place_in_words("site is not b") == "where site is not b"
    assert place_in_words("region 3") == "in region 3"
    mostly = "in the region where wind is mostly 2.5 or more and age is mostly between 30 and 40"
    assert place_in_words("wind mostly from 2.5, age mostly 30 to 40") == mostly
    assert place_in_words("age is mostly 3, wind is always missing") == (
        "in the region where age is mostly 3 and wind is always missing"
    )
    assert place_in_words("age up to 30 (region 2)") == "where age is up to 30 (region 2)"


def test_bad_input_is_named(few: SpectralSmoother) -> None:
    with pytest.raises(InvalidInputError, match="7 values for 120"):
        local_reading(few, np.full(7, 0.5))
    with pytest.raises(InvalidInputError, match="7 values for 120"):
        local_distribution(few, np.full(7, 0.5))
    with pytest.raises(InvalidInputError, match=r"row 1 is 1\.5"):
        group_reading([0.5, 1.5])
    with pytest.raises(InvalidInputError, match="at least 2"):
        group_reading([0.5, 0.5], [1])
    with pytest.raises(InvalidInputError, match="4 columns"):
        faults(np.zeros((3, 2)))
    with pytest.raises(InvalidInputError, match="5 regions of 3"):
        regions(np.zeros((3, 2)), number=5)
    with pytest.raises(InvalidInputError, match="'age' has 2 rows"):
        regions(np.eye(3), number=2, features={"age": [1, 2]})


def test_a_region_is_named_by_a_feature_that_all_its_rows_lack() -> None:
    x = np.random.default_rng(0).normal(size=(400, 2))
    x[:150, 0] += 40.0
    lacking = np.where(np.arange(400) < 150, np.nan, x[:, 1])
    found = regions(x, number=2, features={"income": lacking, "nothing": np.full(400, np.nan)})
    assert "income is always missing" in found.names[found.labels[0]]
    assert "missing" not in found.names[found.labels[-1]]


def test_a_region_of_years_or_incomes_is_named_by_all_their_digits() -> None:
    """It was "mostly 2.02e+03 to 2.02e+03"."""
    x = np.random.default_rng(0).normal(size=(400, 2))
    x[:150, 0] += 40.0
    late = np.arange(400) < 150
    year = np.where(late, 2016 + np.arange(400) % 4, 2004 + np.arange(400) % 9)
    for values, said in (
        (year, "year mostly from 2016"),
        (np.where(late, 70123.0, 30612.3) + year, "year mostly from 72100"),
    ):
        found = regions(x, number=2, features={"year": values})
        assert found.names[found.labels[0]] == said


def test_a_region_is_named_by_words_and_as_all_rows_of_a_word_only_where_it_is_all_of_them() -> None:
    rng = np.random.default_rng(1)
    cluster = np.repeat([0, 1, 2], [300, 200, 100])
    x = 20.0 * np.eye(3)[cluster] + rng.normal(size=(600, 3))
    city = np.array(["Paris", "Rome", "Oslo"])[cluster].astype(object)
    city[500:520] = "Rome"  # among those of Oslo
    found = regions(x, number=3, features={"city": city, "is_new": np.arange(600) % 2 == 0})
    assert found.names == ("city is Paris", "city is always Rome", "city is mostly Oslo")
    assert [place_in_words(name).split(" city ")[0] for name in found.names] == ["where", *["in the region where"] * 2]
    codes = regions(x, number=3, features={"code": cluster, "mixed": np.where(city == "Rome", 7, cluster)})
    assert codes.names == ("code is 0", "code is 1", "code is 2")
    mixed = regions(x, number=3, features={"mixed": np.where(city == "Rome", 7, cluster), "x2": x[:, 2]})
    assert mixed.names[1].startswith("mixed is mostly 7, x2 mostly up to"), "one value, and no whole region"
    commas = regions(x, number=3, features={"city": np.char.add(city.astype(str), ", the city")})
    assert commas.names == ("region 1", "region 2", "region 3"), "a name's parts are told apart by commas"


def test_the_interval_of_a_gross_bias_in_few_rows_holds_it() -> None:
    """The bias score is near its end there, and the shift no linear function of it."""
    held = 0
    for seed in range(40):
        reading = group_reading(ndtr(4.0 + np.random.default_rng(seed).normal(size=20)))
        assert reading.shift_interval[0] < reading.shift < reading.shift_interval[1]
        held += reading.shift_interval[0] <= 4.0 <= reading.shift_interval[1]
    assert held >= 36
