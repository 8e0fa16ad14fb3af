"""Targets far out and values that many share, in a version's metrics, verdict and sentences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from congruence.kernels import EXACT, Gamma, Normal, Samples
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.dependence import FoundBlocks
from congruence.tasks.scores.evaluation import MetricValue, verdict_of
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.scores.rare import NOT_STATED, RareTargets
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.sizes import TargetRows
from congruence.tasks.scores.wrong import WhatIsWrong
from congruence.tasks.sentences.findings import Finding
from congruence.tasks.sentences.rare import crossing_finding, power_finding
from congruence.tasks.solving.measurement import measure

ROWS = 600
RNG = np.random.default_rng(11)
X = RNG.standard_normal((ROWS, 3))
LOCATION, SPREAD = X[:, 0], np.exp(0.4 * X[:, 1])
Y = LOCATION + SPREAD * RNG.standard_normal(ROWS)
NORMAL = Normal(LOCATION, SPREAD)


class Asked:
    seed = 0
    metrics = ["cce", "congruence_test", "calibration", "pit"]


def read(y: np.ndarray, law: Distribution) -> tuple[WhatIsWrong, dict[str, MetricValue]]:
    (found,) = measure(Asked(), EXACT, X, y, {"": law}).values()
    points = score_points(found.result, law, y, seed=0, keys=None, calibration=found.calibration)
    metrics, _ = version_metrics(tuple(Asked.metrics), points, law, y, found, seed=0)
    rare = RareTargets.of(y, law, FoundBlocks())
    metrics |= rare.metrics()

    def findings(overall: GroupReading | None) -> list[Finding]:
        return rare.findings(overall, lambda rows: [f"patient {row}" for row in rows], of_counts=False)

    regions = found.calibration.regions.named({"age": X[:, 0], "income": X[:, 1]})
    parts = found.calibration, regions, points["pit"], metrics, np.arange(ROWS), pd.DataFrame()
    wrong = read_what_is_wrong(*parts, members=law.members, rare=findings)
    return replace(wrong, method=rare.method), metrics


def test_a_true_version_has_no_fault_and_its_parts_are_metrics() -> None:
    for y in (Y, np.round(Y, 1)):
        wrong, metrics = read(y, NORMAL)
        assert wrong.sentences[0].startswith("No fault found in 600 rows")
        assert metrics["extremes_p_value"].value > 0.05
        assert metrics.get("masses_p_value", MetricValue(1.0)).value > 0.05


def test_outliers_are_the_first_sentence_and_their_rows_are_named() -> None:
    y = np.where(np.arange(ROWS) < 10, LOCATION + 9.0 * SPREAD, Y)
    wrong, metrics = read(y, NORMAL)
    assert verdict_of(metrics).is_wrong
    assert wrong.sentences[0].startswith("10 of 600 targets lie where the ")
    assert "fewer than 0.001 were to be expected (rows patient " in wrong.sentences[0]
    assert wrong.fault.startswith("10 targets where less than 1e-")
    assert (metrics["extremes_observed"].value, metrics["extremes_level"].value) == (10.0, 1e-9)


def test_a_spread_too_small_is_told_as_spread_and_not_as_outliers() -> None:
    wrong, _ = read(LOCATION + 1.7 * SPREAD * RNG.standard_normal(ROWS), NORMAL)
    assert "predicted spread is too small by a factor of 1." in wrong.sentences[0]
    assert not any("where the predictions put" in each for each in wrong.sentences)


@pytest.mark.parametrize("law", [Gamma(np.full(ROWS, 2.0), np.ones(ROWS)), Samples(RNG.gamma(2.0, size=(ROWS, 20)))])
def test_half_of_the_targets_at_zero_are_the_first_sentence(law: Distribution) -> None:
    y = np.where(RNG.random(ROWS) < 0.5, 0.0, RNG.gamma(2.0, size=ROWS))
    wrong, metrics = read(y, law)
    share = f"{100.0 * np.mean(y == 0.0):.0f} %"
    assert wrong.sentences[0] == (f"{share} of the targets are exactly 0, and the predictions give that 0 %.")
    assert wrong.fault == f"{share} are exactly 0, 0 % predicted"
    assert wrong.sentences[1].startswith("Over all rows, ")
    assert metrics["mass_observed"].value == np.mean(y == 0.0)


def test_few_members_state_no_tails_and_the_method_says_so() -> None:
    wrong, metrics = read(Y, Samples(LOCATION[:, None] + SPREAD[:, None] * RNG.standard_normal((ROWS, 10))))
    assert "extremes_p_value" not in metrics
    assert wrong.method.endswith(NOT_STATED)


def test_quantiles_that_fall_with_the_level_are_asked_about() -> None:
    found = crossing_finding(600, 1.0)
    assert found.sentence.startswith(
        "The predicted quantiles fell as the level rises in 100 % of the rows, and were sorted"
    )
    assert found.sentence.endswith("are level and 1 - level exchanged?")


def test_a_variance_given_as_standard_deviation_is_told_and_the_other_way_round() -> None:
    varying = TargetRows(Y, LOCATION, SPREAD**2, np.zeros(ROWS))
    assert (varying.power, varying.spreads_vary) == ("square", True)
    constant = TargetRows(LOCATION + 3.0 * (Y - LOCATION) / SPREAD, LOCATION, np.full(ROWS, 9.0), np.zeros(ROWS))
    assert (constant.power, constant.spreads_vary) == ("square", False)
    wide = LOCATION + SPREAD * (Y - LOCATION)
    assert TargetRows(wide, LOCATION, SPREAD, np.zeros(ROWS)).power == "root"
    for factor in (1.0, 1.5, 0.6):
        assert TargetRows(Y, LOCATION, factor * SPREAD, np.zeros(ROWS)).power is None
    assert power_finding(ROWS, "square", shows=True).sentence == (
        "The predicted spread is the square of what is needed: was the variance given as standard deviation?"
    )
