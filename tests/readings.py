"""A version as an evaluation reads it, from arrays: its measurement, metrics and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from congruence.kernels import EXACT, Distribution
from congruence.tasks.scores.evaluation import MetricValue, WhatIsWrong
from congruence.tasks.scores.faults import weak_segments, with_faults
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import score_points
from congruence.tasks.scores.reading import RowsRead, read_what_is_wrong
from congruence.tasks.scores.summary import RareTargets, version_metrics
from congruence.tasks.solving.pass_runner import VersionMeasurement
from congruence.tasks.solving.solve import measure


@dataclass(frozen=True)
class Read:
    """What is known of a version."""

    found: VersionMeasurement
    points: dict[str, np.ndarray]
    metrics: dict[str, MetricValue]
    wrong: WhatIsWrong


SENTENCES = ["cce", "congruence_test", "calibration", "pit", "actual_over_expected"]
"""The metrics that sentences need."""


def read_versions(
    x: np.ndarray,
    y: np.ndarray,
    laws: Mapping[str, Distribution],
    *,
    slices: pd.DataFrame | None = None,
    features: pd.DataFrame | None = None,
    segments: bool = True,
    asked: list[str] | None = SENTENCES,
) -> dict[str, Read]:
    """Versions of one target a row on the same rows; segments are looked for in ``features``, by which regions are."""
    features = pd.DataFrame(x[:, :2], columns=["age", "income"]) if features is None else features
    labels = pd.DataFrame(index=range(len(y))) if slices is None else slices
    return {
        name: _read(found, y, laws[name], labels, features, segments)
        for name, found in measure(EXACT, x, y, laws, metrics=asked).items()
    }


def _read(
    found: VersionMeasurement,
    y: np.ndarray,
    law: Distribution,
    labels: pd.DataFrame,
    features: pd.DataFrame,
    segments: bool,
) -> Read:
    calibration = found.calibration
    assert calibration is not None
    assert calibration.regions is not None
    points = score_points(found, Rows({}, y, law))
    given = Rows(points, y, law)
    metrics, _ = version_metrics(tuple(SENTENCES), given, found)
    rare, rows = RareTargets.of(given), RowsRead.of(given)
    metrics |= rare.metrics()
    regions = calibration.regions.named({str(name): features[name].to_numpy() for name in features})
    points["calibration_region"] = np.array(regions.names)[regions.labels]
    wrong = read_what_is_wrong(
        calibration,
        regions,
        rows,
        metrics,
        np.arange(len(y)),
        labels,
        partial(
            with_faults,
            segments=(lambda at: weak_segments(features, rows, points["cce"], points["cce_noise_floor"], at))
            if segments
            else None,
            rare=lambda all_rows, _: rare.findings(
                all_rows, lambda at: [f"patient {row}" for row in at], of_counts=rows.counts is not None
            ),
        ),
    )
    return Read(found, points, metrics, wrong.noting(rare.method))
