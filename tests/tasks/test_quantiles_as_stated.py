"""A version that predicts quantiles, measured and read: right levels have no fault, wrong ones are told as coverage."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from congruence.kernels import EXACT, Quantiles
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.coverage import LevelRows
from congruence.kernels.verdict import NO_FAULT
from congruence.tasks.scores.evaluation import verdict_of
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.wrong import WhatIsWrong
from congruence.tasks.solving.measurement import measure

ROWS = 1000
LEVELS = np.array([0.05, 0.5, 0.95])
TRUTHS = {"normal": scipy.stats.norm(), "gamma": scipy.stats.gamma(2.0), "t3": scipy.stats.t(3.0)}


class Asked:
    seed = 0
    metrics = ["cce", "congruence_test", "calibration", "pit"]


def read(x: np.ndarray, y: np.ndarray, laws: dict[str, Quantiles]) -> dict[str, tuple[WhatIsWrong, str]]:
    read = {}
    for name, found in measure(Asked(), EXACT, x, y, laws).items():
        law, calibration = laws[name], found.calibration
        points = score_points(found.result, law, y, seed=0, keys=None, calibration=calibration)
        metrics, _ = version_metrics(("cce", "congruence_test", "calibration", "pit"), points, law, y, found, seed=0)
        assert set(points["calibration_fault"]) <= {"", "bias", "spread"}
        regions = calibration.regions.named({"age": x[:, 0], "income": x[:, 1]})
        jumps = JumpScores.of(y, law)
        slices = pd.DataFrame({"old": np.where(x[:, 0] > 0.5, "yes", "no")})
        wrong = read_what_is_wrong(
            calibration,
            regions,
            points["pit"],
            metrics,
            np.arange(ROWS),
            slices,
            jumps=jumps,
            levels=LevelRows.of(law.quantile_levels, jumps),
        )
        read[name] = wrong, verdict_of(metrics).state
    return read


@pytest.mark.parametrize("truth", TRUTHS)
def test_right_levels_have_no_fault_and_wrong_ones_are_told_as_coverage(truth: str) -> None:
    law, rng = TRUTHS[truth], np.random.default_rng(7)
    x = rng.normal(size=(ROWS, 3))
    spread = np.exp(0.5 * x[:, 1])
    y = x[:, 0] + spread * law.rvs(size=ROWS, random_state=rng)
    right = x[:, :1] + spread[:, None] * law.ppf(LEVELS)
    middle = x[:, :1] + spread[:, None] * law.median()
    old = np.where(x[:, :1] > 0.5, 1.0 / 1.8, 1.0)
    laws = {
        "right": right,
        "narrow": middle + (right - middle) / 1.5,
        "narrow for the old": middle + (right - middle) * old,
    }
    said = read(x, y, {name: Quantiles(LEVELS, values) for name, values in laws.items()})
    wrong, status = said["right"]
    assert wrong.sentences[0].startswith("No fault found in 1,000 rows")
    assert status == NO_FAULT
    wrong, status = said["narrow"]
    assert status != NO_FAULT
    held = np.mean((y > laws["narrow"][:, 0]) & (y <= laws["narrow"][:, 2]))
    assert f"The 90 % interval holds {100.0 * held:.0f} % of the targets (" in wrong.sentences[0]
    text = " ".join(said["narrow for the old"][0].sentences)
    assert "Where old is yes (" in text
    assert "tails" not in text
    assert list(wrong.places["holds"] < 0.85) == [True, True]
