"""A reader's test: for simulated faults the first sentence alone says what is wrong, where, and how much."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from congruence.kernels import EXACT, Distribution, Normal, Poisson, Quantiles
from congruence.kernels.conditional_calibration.counts import CountRows, JumpScores
from congruence.kernels.conditional_calibration.coverage import LevelRows
from congruence.kernels.engine.dependence import FoundBlocks
from congruence.tasks.scores.evaluation import PLACES_P_VALUE, MetricValue, verdict_of
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.scores.rare import RareTargets
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.segments import weak_segments
from congruence.tasks.scores.sizes import TargetRows
from congruence.tasks.scores.wrong import WhatIsWrong
from congruence.tasks.solving.measurement import VersionMeasurement, measure

ROWS = 800
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 3))
SITE = RNG.choice(list("abcd"), ROWS)
MEAN, SPREAD = 10.0 + 2.0 * X[:, 0], np.exp(0.3 * X[:, 1])
Y = RNG.normal(MEAN, SPREAD)
RATE = np.exp(0.5 * X[:, 0])
LEVELS = np.array([0.05, 0.5, 0.95])

CASES: dict[str, tuple[np.ndarray, Distribution, str, float | None]] = {
    "bias everywhere": (Y, Normal(MEAN - 0.8, SPREAD), r"^Predictions are ([\d.]+) too low on average", 0.8),
    "bias in a slice": (
        Y,
        Normal(MEAN + 1.2 * (SITE == "b"), SPREAD),
        r"^Where site is b \(\d+ rows, \d+ %\) predictions are ([\d.]+) too high on average",
        1.2,
    ),
    "opposite biases": (
        Y,
        Normal(MEAN + 0.9 * (SITE == "a") - 0.9 * (SITE == "c"), SPREAD),
        r"^Where site is [ac] \(\d+ rows, \d+ %\) predictions are ([\d.]+) too",
        0.9,
    ),
    "spread": (Y, Normal(MEAN, SPREAD / 1.5), r"^The predicted spread is too small by a factor of ([\d.]+) \(", 1.5),
    "spread by ten": (
        Y,
        Normal(MEAN, 10.0 * SPREAD),
        r"^The predicted spread is too large by a factor of ([\d.]+)",
        10.0,
    ),
    "tails": (
        MEAN + SPREAD * RNG.uniform(-(3.0**0.5), 3.0**0.5, ROWS),
        Normal(MEAN, SPREAD),
        r"^The targets have lighter tails than predicted: the predicted 50 % interval holds [\d.]+ %, and [\d.]+ % lie",
        None,
    ),
    "unit": (
        Y,
        Normal(1000.0 * MEAN, 1000.0 * SPREAD),
        r"mean is ([\d,]+) times too high .*is the unit right\?$",
        1000.0,
    ),
    "counts": (
        RNG.poisson(RATE).astype(float),
        Poisson(2.0 * RATE),
        r"^The predicted mean is ([\d.]+) times too high \(",
        2.0,
    ),
    "quantiles": (
        Y,
        Quantiles(LEVELS, MEAN[:, None] + SPREAD[:, None] / 1.5 * stats.norm.ppf(LEVELS)),
        r"^The 90 % interval holds ([\d.]+) % of the targets",
        100.0 * (1.0 - 2.0 * stats.norm.sf(1.645 / 1.5)),
    ),
    "zeros": (
        np.where(RNG.random(ROWS) < 0.5, 0.0, Y),
        Normal(MEAN / 2.0, np.sqrt(SPREAD**2 / 2.0 + MEAN**2 / 4.0)),
        r"^([\d.]+) % of the targets are exactly 0, and the predictions give that 0 %\.$",
        50.0,
    ),
    "outliers": (
        np.where(np.arange(ROWS) % 100 == 7, Y + 8.0 * SPREAD, Y),
        Normal(MEAN, SPREAD),
        r"^([\d.]+) of 800 targets lie where the predictions put less than ",
        8.0,
    ),
    "drift along a feature": (
        Y,
        Normal(MEAN + 1.2 * X[:, 2], SPREAD),
        r"^Where load is (?:above|up to|between) .* predictions are [\d.]+ too (?:high|low) on average",
        None,
    ),
}


class Asked:
    seed = 0
    metrics = ["cce", "calibration", "pit"]


def read(found: VersionMeasurement, y: np.ndarray, law: Distribution) -> WhatIsWrong:
    """As an evaluation reads a version, with a slice column and three features."""
    calibration = found.calibration
    assert calibration is not None
    points = score_points(found.result, law, y, seed=0, keys=None, calibration=calibration)
    metrics, _ = version_metrics(("cce", "calibration", "pit"), points, law, y, found, seed=0)
    rare = RareTargets.of(y, law, FoundBlocks())
    metrics |= rare.metrics()
    jumps = JumpScores.of(y, law)
    counts, levels = CountRows.of(y, law), LevelRows.of(law.quantile_levels, jumps)
    rows = TargetRows(y, points["mean"], points["std"], points["pit"])
    features = pd.DataFrame(X, columns=["age", "wind", "load"])
    return read_what_is_wrong(
        calibration,
        calibration.regions.named({name: features[name].to_numpy() for name in features}),
        points["pit"],
        metrics,
        np.arange(ROWS),
        pd.DataFrame({"site": SITE}),
        counts,
        jumps,
        levels,
        targets=rows,
        segments=lambda: weak_segments(
            features, points["pit"], points["cce"], points["cce_noise_floor"], counts, jumps, levels, None, rows
        ),
        rare=lambda overall: rare.findings(overall, lambda at: at.astype(str).tolist(), of_counts=counts is not None),
    )


@pytest.fixture(scope="module")
def told() -> Mapping[str, WhatIsWrong]:
    return {name: read(measure(Asked(), EXACT, X, y, {"": law})[""], y, law) for name, (y, law, _, _) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_first_sentence_says_what_where_and_how_much(told: Mapping[str, WhatIsWrong], name: str) -> None:
    _, _, expected, size = CASES[name]
    found = re.search(expected, told[name].sentences[0])
    assert found, told[name].sentences
    if size is not None:
        assert float(found[1].replace(",", "")) == pytest.approx(size, rel=0.15)


def test_a_true_version_is_told_nothing_of() -> None:
    found = read(measure(Asked(), EXACT, X, Y, {"": Normal(MEAN, SPREAD)})[""], Y, Normal(MEAN, SPREAD))
    assert len(found.sentences) == 1
    assert found.sentences[0].startswith("No fault found in 800 rows")
    assert found.p_value is not None
    assert verdict_of({PLACES_P_VALUE: MetricValue(found.p_value)}).state == "no fault found"
    assert set(found.places["fault"]) == {""}
    assert found.segments == ()


def test_every_sentence_is_one_of_a_known_form(told: Mapping[str, WhatIsWrong]) -> None:
    """All that the product says of faults: a place or none, a clause with its size, and what the rest of places are."""
    place = r"(?:(?:Where|In) [^()]+ \([\d,]+ rows, (?:under )?\d+ %\) |Over all rows, )?"
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
    tail = r"(?:; (?:they|their) [^;]+, too)?(?:; is (?:the unit right|an exposure missing)\?|\.)"
    rest = (
        r"(?:All places share the overall fault|1 place shares the overall fault|\d+ of \d+ places share the overall "
        r"fault|1 more place differs|\d+ more places differ)?(?:; )?.*(?:no fault was found)?\."
    )
    for name, found in told.items():
        for sentence in found.sentences:
            is_fault = any(re.fullmatch(place + form + tail, sentence) for form in forms)
            assert is_fault or re.fullmatch(rest, sentence), (name, sentence)
