"""What is logged of an ensemble judges the law behind its draws."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels import Samples
from congruence.kernels.calibration import pit_values
from congruence.kernels.scores import point_scores
from congruence.tasks.scores.block_statistics import MeanMetrics
from congruence.tasks.scores.metrics.rows import Rows

N = 6000


def test_a_perfect_ensemble_of_five_is_logged_as_calibrated() -> None:
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.5, 2.0, (N, 1))
    values = rng.normal(size=(N, 1)) + spread * rng.normal(size=(N, 6))
    ensemble, y = Samples(values[:, 1:]), values[:, 0]
    points = {"cce": np.zeros(N), "cce_noise_floor": np.zeros(N), "pit": pit_values(y, ensemble)}
    points |= point_scores(ensemble, y)
    found = MeanMetrics(("crps", "ece", "coverage"), Rows(points, y, ensemble), np.arange(N)).values(0)
    logged = {name: metric.value for name, metric in found.items()}
    assert logged["ece"] < 0.01
    assert logged["coverage_90"] == pytest.approx(0.9, abs=0.01)
    assert logged["crps_mean"] == pytest.approx(1.25 / np.sqrt(np.pi), rel=0.03)  # E spread / sqrt(pi)
