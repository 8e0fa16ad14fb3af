"""Sparse counts: a group without any of the claims that are predicted is named first, whatever random numbers say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from comparable import as_compared

from congruence.kernels import EXACT, Distribution, NegativeBinomial, Normal, Poisson
from congruence.kernels.conditional_calibration.counts import CountRows, JumpScores
from congruence.kernels.conditional_calibration.reading import group_reading, group_readings
from congruence.tasks.comparison.gate import apply_gate
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.scores.evaluation import Evaluation, SplitSummary
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.segments import searched_rows, weak_segments
from congruence.tasks.solving.measurement import measure

ROWS = 4000


class Asked:
    seed = 0
    metrics = ["cce", "calibration", "pit", "actual_over_expected"]


def test_a_slice_without_its_claims_is_named_first_by_slice_segment_and_gate() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 3))
    hole = np.isin(np.arange(ROWS), rng.choice(ROWS, 1000, replace=False))
    rate = 0.056 * np.exp(0.3 * x[:, 0] - 0.045)
    y = rng.poisson(np.where(hole, 0.0, rate)).astype(float)
    area = np.where(hole, "c", rng.choice(list("abde"), ROWS))
    law = Poisson(rate)
    measured = measure(Asked(), EXACT, np.column_stack([x, 2.0 * hole]), y, {"": law})
    found, calibration = measured[""], measured[""].calibration
    points = score_points(found.result, law, y, seed=0, keys=None, calibration=calibration)
    metrics, _ = version_metrics(tuple(Asked.metrics), points, law, y, found, seed=0)
    regions = calibration.regions.named({"age": x[:, 0]})
    counts, jumps = CountRows.of(y, law), JumpScores.of(y, law)
    wrong = read_what_is_wrong(
        calibration, regions, points["pit"], metrics, np.arange(ROWS), pd.DataFrame({"area": area}), counts, jumps
    )
    first = wrong.places.iloc[0]
    assert (first["place"], first["ratio"]) == ("area c", 0.0)
    assert first["expected"] == pytest.approx(56.0, abs=2.0)
    assert first["q_value"] < 1e-6
    assert wrong.sentences[0].startswith(
        "Where area is c (1,000 rows, 25 %) the predicted mean is too high: 0 observed, 56"
    )

    rows = searched_rows(ROWS, 0)
    assert counts is not None
    assert jumps is not None
    features = pd.DataFrame({"age": x[:, 0], "area": area}).iloc[rows]
    columns = [points[name][rows] for name in ("pit", "cce", "cce_noise_floor")]
    segment = weak_segments(features, *columns, counts[rows], jumps[rows])[0]
    assert segment.name == "area is c"
    assert segment.p_value == 0.005
    assert segment.finding.clause.startswith("the predicted mean is too high: 0 observed")

    scores = pd.DataFrame({"key": np.arange(ROWS), "valid": True, "reason": None, **points})
    evaluation = Evaluation(
        ModelVersion("claims", "1", "models:/claims/1"), SplitSummary("t", "s" * 64, ROWS, ROWS), EXACT, metrics, scores
    )
    decision = apply_gate(as_compared(evaluation), None, GateSettings(at_noise_floor=True))
    assert decision.outcome == "failed"
    assert metrics["calibration_p_value"].value == pytest.approx(1.0 / (calibration.test.draws + 1))


@pytest.mark.parametrize("law", [Poisson(np.full(600, 0.1)), NegativeBinomial(np.full(600, 3.0), np.full(600, 0.4))])
def test_readings_of_counts_take_no_random_numbers_and_keep_their_level(law: Distribution) -> None:
    rng = np.random.default_rng(2)
    values = np.array([], dtype=float)
    for _ in range(400):
        y = law.sample(1, seed=rng)[:, 0]
        jumps = JumpScores.of(y, law)
        assert jumps is not None
        values = np.append(values, group_reading(jumps).order_p_values)
    assert 0.03 < np.mean(values < 0.05) < 0.075
    assert np.mean(values) == pytest.approx(0.5, abs=0.04)
    readings, q_values = group_readings(jumps, {"first": np.arange(300), "none": np.arange(0)})
    assert list(readings) == list(q_values) == ["first"]
    assert JumpScores.of(np.zeros(3), Normal(np.zeros(3), np.ones(3))) is None
