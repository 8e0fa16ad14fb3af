"""A reader's test: for simulated faults the first sentence alone says what is wrong, where, and how much.

Of targets far out, values that many targets share, predicted quantiles and sparse counts, too, and of true versions
nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from comparable import as_compared
from first_sentences import FAULTS, Split, named
from readings import SENTENCES, Read, read_versions
from scipy import stats

import congruence
from congruence.kernels import EXACT, Distribution, NegativeBinomial, Normal, Poisson, Quantiles, Samples
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.reading import group_reading, group_readings
from congruence.kernels.pit import pit_values
from congruence.kernels.verdict import NO_FAULT
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.scores.evaluation import (
    PLACES_P_VALUE,
    Evaluation,
    MetricValue,
    SplitSummary,
    WhatIsWrong,
    verdict_of,
)
from congruence.tasks.scores.summary import NOT_STATED
from congruence.tasks.sentences.counts import crossing_finding, power_finding
from congruence.tasks.sentences.findings import group_finding
from congruence.tasks.sentences.target_rows import TargetRows
from congruence.tasks.settings.sections import ModelVersion

ROWS = 800
SPLIT = Split(3)
X, SITE, MEAN, SPREAD, Y, RNG = SPLIT.x, SPLIT.site, SPLIT.mean, SPLIT.spread, SPLIT.y, np.random.default_rng(3)
LEVELS = np.array([0.05, 0.5, 0.95])
CASES = (
    "bias of .8", "bias of 1.2 in a slice", "opposite biases in two slices (N10)", "bias that grows with an input",
    "spread 1.5 times too small", "spread 10 times too large (N9)", "spread 2 times too small in a range",
    "tails lighter (uniform)", "skew (gamma 2)", "unit: 2.54", "unit: 1,000", "unit: .001",
    "1 % of the rows 8 spreads off (N5)", "the last 6 rows 8 spreads off", "half of the targets are 0 (N7)",
    "sparse counts, mean 2 times too high", "3 levels 1.5 times too near", "3 levels 3 times too wide",
    "5 members, spread 2 times too small (N2)",
)  # fmt: skip
"""Of the measurement's faults; made in this order, since they draw from one generator."""

SLICES, FEATURES = pd.DataFrame({"site": SITE}), pd.DataFrame(X, columns=["age", "wind", "load"])


def read(y: np.ndarray, law: Distribution, x: np.ndarray = X, **asked: Any) -> Read:
    """As an evaluation reads a version, by default with a slice column and three features."""
    named = {"slices": SLICES, "features": FEATURES} if x is X else {}
    return read_versions(x, y, {"": law}, **named | asked)[""]


@pytest.fixture(scope="module")
def told() -> Mapping[str, tuple[np.ndarray, Distribution, WhatIsWrong]]:
    made = {name: FAULTS[name].make(SPLIT) for name in CASES}
    laws: dict[int, dict[str, Distribution]] = {}
    for name, (y, law) in made.items():  # versions on the same targets share their null
        laws.setdefault(id(y), {})[name] = Quantiles(*law) if isinstance(law, tuple) else law
    return {
        name: (made[name][0], some[name], found.wrong)
        for some in laws.values()
        for name, found in read_versions(X, made[next(iter(some))][0], some, slices=SLICES, features=FEATURES).items()
    }


@pytest.mark.parametrize("name", CASES)
def test_the_first_sentence_says_what_where_and_how_much(told: Mapping[str, Any], name: str) -> None:
    y, law, wrong = told[name]
    assert named(FAULTS[name], SPLIT, y, law, wrong.sentences[0]) == (True, True), wrong.sentences
    if name.startswith("spread") and "range" not in name:
        assert not any("where the predictions put" in each for each in wrong.sentences)


@pytest.mark.parametrize("y", [Y, np.round(Y, 1)], ids=["exact", "rounded"])
def test_a_true_version_is_told_nothing_of(y: np.ndarray) -> None:
    read_so = read(y, Normal(MEAN, SPREAD))
    found, metrics = read_so.wrong, read_so.metrics
    assert metrics["extremes_p_value"].value > 0.05
    assert metrics.get("masses_p_value", MetricValue(1.0)).value > 0.05
    assert len(found.sentences) == 1
    assert found.sentences[0].startswith("No fault found in 800 rows")
    assert verdict_of({PLACES_P_VALUE: MetricValue(found.p_value)}).state == "no fault found"
    assert set(found.places["fault"]) == {""}
    assert found.segments == ()


def test_every_sentence_is_one_of_a_known_form(told: Mapping[str, Any]) -> None:
    """All that the product says of faults: a place or none, a clause with its size, and what the rest of places are."""
    place = r"(?:(?:Where|In) [^()]+ \([\d,]+ rows, (?:under )?[\d.]+ %\) |Over all rows, |In all other rows, )?"
    forms = (
        r"(?:p|P)redictions are [\d.,]+ too (?:high|low) on average(?: \([\d.,]+ to [\d.,]+\))?",
        r"(?:t|T)he predicted mean is [\d.,]+ times too (?:high|low) \([\d.,]+ to [\d.,]+\)(?:: [\d.,]+ observed, "
        r"[\d.,]+ expected)?",
        r"(?:t|T)he predicted spread is too (?:small|large) by a factor of [\d.,]+ \([\d.,]+ to [\d.,]+\)",
        r"(?:t|T)he targets have (?:heavier|lighter) tails than predicted: .*",
        r"(?:t|T)he targets are skewed to the (?:left|right) of the predictions: .*",
        r"(?:t|T)he targets lie [\d.]+ predicted spreads (?:above|below) the predictions.*",
        r"(?:t|T)he counts are (?:more widely spread|less widely spread|distributed otherwise) than predicted: .*",
        r"[\d.]+ % of the targets are exactly [\d.]+, and the predictions give that [\d.]+ %",
        r"[\d,]+ of [\d,]+ targets lies? where the predictions put less than .* were to be expected.*",
        r"(?:(?:t|T)he [\d.]+ % interval holds|[\d.]+ %) .*of the targets .*",
    )
    tail = r"(?:; the targets (?:are )?also [^;]+)?(?:; is (?:the unit right|an exposure missing)\?|\.)"
    rest = (
        r"(?:All places share the overall fault|1 place shares the overall fault|\d+ of \d+ places share the overall "
        r"fault|1 more place has another fault|\d+ more places have other faults)?(?:; )?.*(?:no fault was found)?\."
    )
    for name, (_, _, wrong) in told.items():
        for sentence in wrong.sentences:
            is_fault = any(re.fullmatch(place + form + tail, sentence) for form in forms)
            assert is_fault or re.fullmatch(rest, sentence), (name, sentence)


def test_rows_far_out_are_named_by_their_keys_and_counted_in_metrics() -> None:
    found = read(np.where(np.arange(ROWS) < 10, MEAN + 9.0 * SPREAD, Y), Normal(MEAN, SPREAD), segments=False)
    assert verdict_of(found.metrics).is_wrong
    assert re.match(
        r"10 of 800 targets .* fewer than 0\.001 were to be expected \(rows patient ", found.wrong.sentences[0]
    )
    assert found.wrong.fault.startswith("10 targets where less than 1e-")
    assert [found.metrics[f"extremes_{name}"].value for name in ("observed", "level")] == [10.0, 1e-9]


def test_half_of_the_targets_at_zero_are_the_first_sentence() -> None:
    law, y = Samples(RNG.gamma(2.0, size=(ROWS, 20))), np.where(RNG.random(ROWS) < 0.5, 0.0, RNG.gamma(2.0, size=ROWS))
    found, share = read(y, law, segments=False), f"{100.0 * np.mean(y == 0.0):.0f} %"
    assert found.wrong.sentences[0] == f"{share} of the targets are exactly 0, and the predictions give that 0 %."
    assert found.wrong.fault == f"{share} are exactly 0, 0 % predicted"
    assert found.wrong.sentences[1].startswith("Over all rows, ")
    assert found.metrics["mass_observed"].value == np.mean(y == 0.0)


def test_few_members_state_no_tails_and_the_method_says_so() -> None:
    found = read(Y, Samples(MEAN[:, None] + SPREAD[:, None] * RNG.standard_normal((ROWS, 10))))
    assert "extremes_p_value" not in found.metrics
    assert found.wrong.method.endswith(NOT_STATED)


def test_a_range_whose_spread_is_wrong_is_no_power_of_the_spread() -> None:
    """Spreads that are halved in a range fall over all rows as the square of what is needed would."""
    inside, none = X[:, 2] > 0.5, np.zeros(ROWS)
    halved, squared = (TargetRows(Y, MEAN, spread, none) for spread in (SPREAD / (1.0 + inside), SPREAD**2))
    assert squared.power == "square"
    assert halved.gain_of_power("square") < halved.gain_of_part(np.flatnonzero(inside))
    assert squared.gain_of_power("square") > squared.gain_of_part(np.flatnonzero(X[:, 1] > 0.5))


def test_slices_that_are_biased_are_no_power_of_the_spread() -> None:
    """A bias adds most where little spread is predicted, as the square of what is needed would."""
    rng = np.random.default_rng([3, ROWS])
    x = rng.normal(size=(ROWS, 3))
    site = rng.choice(list("abcd"), ROWS, p=[0.3, 0.3, 0.25, 0.15])
    mean, spread = 10.0 + 2.0 * x[:, 0], np.exp(0.3 * x[:, 1])
    y, biased = rng.normal(mean, spread), mean + 0.6 * (site == "a") - 0.6 * (site == "b")
    rows = TargetRows(y, biased, spread, np.zeros(ROWS))
    assert rows.power == "square"
    assert rows.gain_of_power("square") < rows.gain_of_part(np.flatnonzero(site == "a"))
    said = read(y, Normal(biased, spread), x, slices=pd.DataFrame({"site": site})).wrong.sentences
    assert said[0].startswith("Where site is a (269 rows, 34 %) predictions are 0.623 too high on average")
    assert not any("square" in each for each in said)


@pytest.mark.parametrize("members", [3, 5, 20])
@pytest.mark.parametrize(("shift", "factor"), [(0.0, 5.0), (3.0, 1.0), (0.0, 0.4), (3.0, 5.0)])
def test_the_factor_of_few_members_is_that_of_the_distribution_behind_them(
    members: int, shift: float, factor: float
) -> None:
    """By each row's own spread it was 1.84 of five right ones that lie 3 spreads off, and 6.7 in place of 5."""
    rng, n = np.random.default_rng(members), 400
    found, held = [], 0
    for _ in range(40):
        spread = np.exp(0.3 * rng.standard_normal(n))
        y = 10.0 + spread * rng.standard_normal(n)
        draws = 10.0 + spread[:, None] * (rng.standard_normal((n, members)) / factor - shift)
        own = TargetRows(y, draws.mean(axis=1), draws.std(axis=1, ddof=1), np.full(n, 0.5), members=members).factor
        if own is not None:
            found.append(own.value)
            held += own.low <= factor <= own.high
    assert np.median(found) == pytest.approx(factor, rel=0.05)
    assert held >= 0.85 * 40


def test_exchanged_levels_that_are_right_once_sorted_are_told_all_the_same() -> None:
    values = MEAN[:, None] + SPREAD[:, None] * stats.norm.ppf(1.0 - LEVELS)
    found = congruence.evaluate(FEATURES, Y, values, levels=LEVELS.tolist(), metrics=SENTENCES, progress=False)
    assert found.sentences[0].endswith("are level and 1 - level exchanged?")
    assert found.sentences[1].startswith(NO_FAULT.capitalize())


def test_slips_of_predictions_are_asked_about() -> None:
    """Levels that were exchanged, a variance given as standard deviation, and the other way round."""
    found = crossing_finding(600, 1.0).sentence
    assert found.startswith("The predicted quantiles fell as the level rises in 100 % of the rows, and were sorted")
    assert found.endswith("are level and 1 - level exchanged?")
    assert power_finding(ROWS, "square", shows=True).sentence == (
        "The predicted spread is the square of what is needed: was the variance given as standard deviation?"
    )
    apart, none = Y - MEAN, np.zeros(ROWS)
    varying = TargetRows(Y, MEAN, SPREAD**2, none)
    constant = TargetRows(MEAN + 3.0 * apart / SPREAD, MEAN, np.full(ROWS, 9.0), none)
    assert [(rows.power, rows.spreads_vary) for rows in (varying, constant)] == [("square", True), ("square", False)]
    assert TargetRows(MEAN + SPREAD * apart, MEAN, SPREAD, none).power == "root"
    assert {TargetRows(Y, MEAN, factor * SPREAD, none).power for factor in (1.0, 1.5, 0.6)} == {None}


def test_right_levels_have_no_fault_and_wrong_ones_are_told_as_coverage() -> None:
    """Of a skewed truth; level and power of other truths are the matter of the test of cells."""
    rng, truth = np.random.default_rng(7), stats.gamma(2.0)
    x = rng.normal(size=(1000, 3))
    spread = np.exp(0.5 * x[:, 1])
    y = x[:, 0] + spread * truth.rvs(size=1000, random_state=rng)
    right = x[:, :1] + spread[:, None] * truth.ppf(LEVELS)
    middle = x[:, :1] + spread[:, None] * truth.median()
    old = x[:, 0] > 0.5
    of_old = np.where(old, 1.0 / 1.8, 1.0)[:, None]
    laws = {"right": right, "narrow": middle + (right - middle) / 1.5, "old": middle + (right - middle) * of_old}
    slices = pd.DataFrame({"old": np.where(old, "yes", "no")})
    stated = {name: Quantiles(LEVELS, values) for name, values in laws.items()}
    said = read_versions(x, y, stated, slices=slices, segments=False)
    assert said["right"].wrong.sentences[0].startswith("No fault found in 1,000 rows")
    assert verdict_of(said["right"].metrics).state == NO_FAULT
    narrow = said["narrow"]
    assert set(narrow.points["calibration_fault"]) <= {"", "bias", "spread"}
    assert verdict_of(narrow.metrics).is_wrong
    held = np.mean((y > laws["narrow"][:, 0]) & (y <= laws["narrow"][:, 2]))
    assert f"The 90 % interval holds {100.0 * held:.0f} % of the targets (" in narrow.wrong.sentences[0]
    assert list(narrow.wrong.places["holds"] < 0.85) == [True, True]
    text = " ".join(said["old"].wrong.sentences)
    assert "Where old is yes (" in text
    assert "tails" not in text


def test_a_range_of_counts_has_no_sums_of_other_rows_beside_its_own_number_of_rows() -> None:
    """It is judged by rows that had no part in where its ends lie, nearly the same but not the same ones."""
    n, rng = 4000, np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    rate = 0.15 * np.exp(0.4 * x[:, 0])
    y = rng.poisson(np.where(x[:, 1] > 0.7, 2.5, 1.0) * rate).astype(float)
    found = read(y, Poisson(rate), x, features=pd.DataFrame(x, columns=["age", "dose"]))
    (said,) = [each for each in found.wrong.sentences if each.startswith("Where dose")]
    counted = r"Where dose is above 0\.7\d+ \(9\d\d rows, 2\d %\) the predicted mean is 2\.6 times too low"
    assert re.fullmatch(counted + r" \([^)]+\); is an exposure missing\?", said)


def test_a_slice_without_its_claims_is_named_first_by_slice_segment_and_gate() -> None:
    """1,000 rows had 56 counts expected and none observed, and no fault was named."""
    n, rng = 4000, np.random.default_rng(1)
    x = rng.normal(size=(n, 3))
    hole = np.isin(np.arange(n), rng.choice(n, 1000, replace=False))
    rate = 0.056 * np.exp(0.3 * x[:, 0] - 0.045)
    y = rng.poisson(np.where(hole, 0.0, rate)).astype(float)
    area = pd.DataFrame({"area": np.where(hole, "c", rng.choice(list("abde"), n))})
    inputs, features = np.column_stack([x, 2.0 * hole]), area.assign(age=x[:, 0])[["age", "area"]]
    found = read(y, Poisson(rate), inputs, slices=area, features=features)
    wrong, first, segment = found.wrong, found.wrong.places.iloc[0], found.wrong.segments[0]
    assert (first["place"], first["ratio"]) == ("area c", 0.0)
    assert first["expected"] == pytest.approx(56.0, abs=2.0)
    assert first["q_value"] < 1e-6
    assert wrong.places["observed"].sum() == y.sum()
    assert re.match(
        r"Where area is c \(1,000 rows, 25 %\) the predicted mean is too high: 0 observed, 56", wrong.sentences[0]
    )
    assert "tails" not in " ".join(wrong.sentences)
    assert (segment.name, segment.p_value) == ("area is c", 0.005)
    assert segment.finding.clause.startswith("the predicted mean is too high: 0 observed")
    scores = pd.DataFrame({"key": np.arange(n), "valid": True, "reason": None, **found.points})
    version, split = ModelVersion("claims", "1", "models:/claims/1"), SplitSummary("t", "s" * 64, n, n)
    evaluation = Evaluation(version, split, EXACT, found.metrics, scores)
    assert apply_gate(as_compared(evaluation), None, GateSettings(at_noise_floor=True)).outcome == "failed"
    draws = found.found.calibration.test.draws
    assert found.metrics["calibration_p_value"].value == pytest.approx(1.0 / (draws + 1))


def test_a_range_and_all_other_rows_are_told_and_not_what_they_make_together() -> None:
    """Spreads 3.3 times too large in one half and 1.5 too small in the other are not 1.2 times too large everywhere.

    Nor are two cities whose predictions are too high and too low a fault of the tails, or of the spread, of all rows.
    """
    rng = np.random.default_rng(1)
    x, city = rng.normal(size=(3000, 2)), rng.choice(["a", "b"], 3000, p=[0.6, 0.4])
    features = pd.DataFrame({"load": x[:, 1], "city": city})
    noise = rng.normal(size=3000)

    def told(y: np.ndarray, spread: float) -> tuple[str, ...]:
        return read(y, Normal(x[:, 0], np.full(3000, spread)), x, features=features).wrong.sentences

    first, second, *rest = told(x[:, 0] + np.exp(0.8 * np.sign(x[:, 1])) * noise, 1.5)
    assert re.match(r"Where load is up to -?0\.0\d+ \(.*too large by a factor of 3\.[2-5]", first)
    assert re.match(r"In all other rows, the predicted spread is too small by a factor of 1\.[45]", second)
    assert not any("Over all rows" in each for each in rest)
    for spread, narrow in ((1.0, ""), (1.6, "; the targets also spread less than predicted")):
        first, second, *rest = told(x[:, 0] + np.where(city == "a", 0.8, -1.2) + noise, spread)
        assert re.fullmatch(
            rf"Where city is b \(.* predictions are 1\.[12]\d too high on average \([^)]+\){narrow}\.", first
        )
        assert re.fullmatch(
            rf"In all other rows, predictions are 0\.[78]\d+ too low on average \([^)]+\){narrow}\.", second
        )
        assert not any("tails" in each or "skew" in each or "Over all rows" in each for each in rest)


def test_targets_that_may_be_negative_have_no_factor_where_none_is() -> None:
    y = np.arange(-50.0, 50.0)
    rows = TargetRows(y, np.full(100, 10.0), np.ones(100), np.zeros(100))
    above = np.flatnonzero(y > 20.0)
    assert rows[above].ratio is None
    assert rows[above][:5].ratio is None
    assert TargetRows(y[above], rows.mean[above], rows.std[above], rows.pit[above]).ratio is not None


@pytest.mark.parametrize(("moved", "spread", "order"), [(0.6, 1.6, ["site", "load"]), (0.3, 0.4, ["load", "site"])])
def test_a_slice_and_a_range_are_told_beside_each_other_whichever_comes_first(
    moved: float, spread: float, order: list[str]
) -> None:
    """Each is read without the other's rows, and the search alone knows those of the range."""
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(3000, 3)), rng.choice(list("xyz"), 3000)
    y = x[:, 0] + np.where(x[:, 2] < -0.8, spread, 1.0) * rng.normal(size=3000) + np.where(site == "x", moved, 0.0)
    features = pd.DataFrame(x, columns=["age", "dose", "load"]).assign(site=site)
    law = Normal(x[:, 0], np.ones(3000))
    said = read(y, law, x, slices=features[["site"]], features=features).wrong.sentences
    starts = {"site": "Where site is x (", "load": "Where load is up to -0."}
    assert said[0].startswith(starts[order[0]])
    assert any(each.startswith(starts[order[1]]) for each in said[1:])


def test_a_second_fault_is_one_that_the_targets_themselves_have() -> None:
    """Of overdispersed counts the PIT values lie low for their skew, and the predicted mean is right."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 2))
    rate = np.exp(2.0 + 0.3 * x[:, 0])
    y = rng.negative_binomial(4, 4 / (4 + rate)).astype(float)
    scores = JumpScores.of(y, Poisson(rate))
    sizes = TargetRows(y, rate, np.sqrt(rate), pit_values(y, Poisson(rate), seed=0))
    clause = group_finding(group_reading(scores), "", "", sizes).clause
    assert clause.startswith("the predicted spread is too small by a factor of")
    assert "lie below" not in clause


def test_a_slice_whose_spread_is_wrong_is_told_beside_a_large_shift_of_all_rows() -> None:
    """The mean of bounded scores is the shift alone there: "all places share the overall fault" stood for it."""
    rng = np.random.default_rng(3)
    x, city = rng.normal(size=(1500, 2)), rng.choice(["a", "b", "c"], 1500)
    spread, slices = np.where(city == "b", 0.5, 1.0), pd.DataFrame({"city": city})
    y = x[:, 0] + rng.normal(size=1500)
    said = read(y, Normal(x[:, 0] + 1.6, spread), x, slices=slices, features=slices).wrong.sentences
    assert re.match(r"Predictions are 1\.[56]\d* too high on average \(", said[0])
    second = next(each for each in said[1:] if each.startswith("Where city is b ("))
    factor = re.search(r"; the targets also spread wider than predicted, by a factor of ([\d.]+)\.$", second)
    assert float(factor[1]) == pytest.approx(2.0, rel=0.1)
    assert said[-1] == "2 of 3 places share the overall fault."
    first, *others = read(y, Normal(x[:, 0] + 1.6, 1.0), x, slices=slices, features=slices).wrong.sentences
    assert others == ["All places share the overall fault."]
    assert "also" not in first


def test_values_of_a_slice_that_lie_in_a_named_range_with_its_fault_are_counted() -> None:
    """Where digit is 8 or more the spread is too small: so it is where it is 8, and where it is 9."""
    rng = np.random.default_rng(4)
    x, digit = rng.normal(size=(3000, 2)), rng.integers(0, 10, 3000)
    y = rng.normal(size=3000) * np.where(digit >= 8, 1.5, 1.0)
    asked = {"slices": pd.DataFrame({"digit": digit.astype(str)}), "features": pd.DataFrame({"digit": digit})}
    said = read(y, Normal(np.zeros(3000), 1.0), x, **asked).wrong.sentences
    assert said[0].startswith("Where digit is 8 or more (")
    assert not any(re.match(r"Where digit is [89] \(", each) for each in said)
    assert "2 places are off only because of rows named above" in said[-1]


@pytest.mark.parametrize("law", [Poisson(np.full(600, 0.1)), NegativeBinomial(np.full(600, 3.0), np.full(600, 0.4))])
def test_readings_of_counts_take_no_random_numbers_and_keep_their_level(law: Distribution) -> None:
    rng = np.random.default_rng(2)
    values = []
    for _ in range(200):
        jumps = JumpScores.of(law.sample(1, seed=rng)[:, 0], law)
        values += group_reading(jumps).order_p_values.tolist()
    assert 0.025 < np.mean(np.array(values) < 0.05) < 0.08
    assert np.mean(values) == pytest.approx(0.5, abs=0.055)
    readings, q_values = group_readings(jumps, {"first": np.arange(300), "none": np.arange(0)})
    assert list(readings) == list(q_values) == ["first"]
    assert JumpScores.of(np.zeros(3), Normal(np.zeros(3), np.ones(3))) is None
