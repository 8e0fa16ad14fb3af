"""The demonstration's hours: the law of each hour is the stated one, and each hour is like the one before."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels import NegativeBinomial, Poisson, pit_values
from congruence.kernels.conditional_calibration.prepared import conditional_calibration_test
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.dependence.blocks import lag_correlations
from congruence.kernels.dependence.correlation import correlations
from congruence.kernels.dependence.scores import dependence_scores
from congruence.tasks.hourly.dataset import CORRELATION, INPUTS, hourly_counts
from congruence.tasks.hourly.models import poisson, true_law, weekday
from congruence.tasks.sentences.calibration import correlation_clause

HOURS = hourly_counts(2000)
TARGETS = HOURS["count"].to_numpy(float)
TRUTH = NegativeBinomial(true_law(HOURS)["mean"].to_numpy(), true_law(HOURS)["dispersion"].to_numpy())


def test_every_hour_has_the_stated_law_and_is_like_the_one_before() -> None:
    hours = [hourly_counts(2000, seed) for seed in range(30)]
    pit = np.stack([_pit_of(frame) for frame in hours])
    assert pit.mean() == pytest.approx(0.5, abs=0.02)
    assert np.mean(pit <= 0.1, axis=0).mean() == pytest.approx(0.1, abs=0.015)
    assert np.mean(pit >= 0.9, axis=0).mean() == pytest.approx(0.1, abs=0.015)
    bias = dependence_scores(TARGETS, TRUTH)[:, :1]
    assert lag_correlations(bias)[0] == pytest.approx(CORRELATION, abs=0.1)
    assert hourly_counts(300).equals(hourly_counts(300))


def _pit_of(frame) -> np.ndarray:
    law = true_law(frame)
    counts = NegativeBinomial(law["mean"].to_numpy(), law["dispersion"].to_numpy())
    return pit_values(frame["count"].to_numpy(float), counts)


def test_the_true_law_is_called_wrong_as_rows_and_not_by_runs_of_time() -> None:
    x, settings = HOURS[list(INPUTS)].to_numpy(float), CalibrationSettings(draws=199, directions=30)
    (look,) = correlations(dependence_scores(TARGETS, TRUTH))
    assert look.is_found
    assert "name `time:`" in correlation_clause(look)
    laws = {
        "truth": TRUTH,
        "poisson": Poisson(poisson(HOURS)["rate"].to_numpy()),
        "weekday": NegativeBinomial(weekday(HOURS)["mean"].to_numpy(), TRUTH.dispersion),
    }
    as_rows = conditional_calibration_test(x, TARGETS, TRUTH, settings=settings)
    by_time = {
        name: conditional_calibration_test(x, TARGETS, law, settings=settings, time=HOURS["time"])
        for name, law in laws.items()
    }
    assert as_rows.p_value < 0.025
    assert by_time["truth"].p_value > 0.05
    assert by_time["poisson"].p_value < 0.025
    assert by_time["weekday"].p_value < 0.025
