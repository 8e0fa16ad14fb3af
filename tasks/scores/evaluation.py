"""The result of evaluating one model version on one split: what every plot, report, log and comparison reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.scores.metrics.columns import ROW_WEIGHT

if TYPE_CHECKING:
    from PIL.Image import Image

    from congruence.kernels.distributions import Distribution
    from congruence.kernels.protocol import EvaluationProtocol
    from congruence.tasks.scores.correction import CorrectionPreview
    from congruence.tasks.scores.wrong import WhatIsWrong

INFLUENCE = ("key", "cce_squared_influence", "cce_influence")
SIGNIFICANCE = 0.05
EACH_OF_TWO = SIGNIFICANCE / 2.0
"""The level of each test where both ask whether a version is true: 5 % of true versions fail either (Bonferroni)."""

DEPENDENT_BLOCKS = "dependent_blocks"
"""A metric: how many blocks of rows are taken as independent, where the split names groups or time."""

ROW_CORRELATION = "row_correlation"
"""A metric: correlation of rows that was found and that the split does not name; p-values are then not to be read."""

AS_IF_TRUE, NOT_AS_IF_TRUE = "as expected if true", "above what is expected if true"
NOT_CALIBRATED = "not calibrated given the input"
CORRELATED = "not judged, since rows are correlated"


@dataclass(frozen=True)
class MetricValue:
    """One number of a version on a split, with its confidence interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def finite_metrics(values: Mapping[str, float]) -> dict[str, MetricValue]:
    """Numbers without an interval, those that are not finite left out."""
    return {name: MetricValue(float(value)) for name, value in values.items() if np.isfinite(value)}


@dataclass(frozen=True)
class SplitSummary:
    """The split that was evaluated: ``rows`` in all, of which ``valid_rows`` could be.

    ``target`` names the columns that are predicted, joined by "+"; ``period`` is the first and the last date of its
    files, ``2026-03-01/2026-03-07``, where they come by date.
    """

    name: str
    digest: str
    rows: int
    valid_rows: int
    target: str = ""
    period: str = ""


class Columns(Protocol):
    """A table that is read column by column: a data frame, or one that fetches each column when it is asked for."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> pd.Series[Any]: ...


@dataclass(frozen=True)
class Evaluation:
    """One model version on one split under one protocol.

    Attributes:
        metrics: by name (``cce_mean``, ``cce_expected``, ``nll_mean``, ``ece``, ...; what each means is in
            ``tasks.scores.metrics``); finite numbers only.
        scores: one row per row of the split, in its order, with the columns of ``tasks.scores.metrics.columns`` as far
            as they exist and the split's slice columns. Invalid rows have ``valid`` False, a reason, and NaN scores.
        predictive: the predictive distributions of the valid rows, in split order.
        targets: of the valid rows, (v,) or (v, q).
        slices: one row per value of a slice column: ``slice``, ``value``, ``rows``, and a column per mean metric.
        embedding_map: principal components of the embeddings, at least two, of the valid rows that are looked at; the
            index is the row number in the split.
        thumbnails: small images for a list of row numbers of the split, for image inputs.
        provenance: encoder, seeds, package versions, solver, certificate, settings: plain values.
        seconds: wall time by stage.
        metric_list: the metrics that were asked for, by which the evaluation is found again; by default those present.
        settings_digest: of the settings that change a number beyond split and protocol (``tasks.settings_digest``), by
            which the evaluation is found again.
        influence: one row per *reference* row with the columns ``INFLUENCE``: what it contributes, to first order, to
            the mean squared CCE and to the mean CCE (``kernels.influence.CongruenceInfluence``); None where there is
            none.
        influence_noise: (B,), the ``noise`` of the same.
        wrong: what is wrong and where, where calibration given the input was measured.
        preview: what recalibrating would change, where something is wrong.
        features: named features of valid rows by their numbers: of all, or of those that are looked at in a long split
            (``tasks.scores.features``).
    """

    model: ModelVersion
    split: SplitSummary
    protocol: EvaluationProtocol
    metrics: dict[str, MetricValue]
    scores: pd.DataFrame = field(repr=False)
    predictive: Distribution | None = field(default=None, repr=False)
    targets: Array | None = field(default=None, repr=False)
    slices: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    embedding_map: pd.DataFrame | None = field(default=None, repr=False)
    thumbnails: Callable[[Sequence[int]], Sequence[Image]] | None = field(default=None, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    metric_list: tuple[str, ...] = ()
    settings_digest: str = ""
    own_settings: str = ""
    influence: pd.DataFrame | None = field(default=None, repr=False)
    influence_noise: Array | None = field(default=None, repr=False)
    wrong: WhatIsWrong | None = field(default=None, repr=False)
    preview: CorrectionPreview | None = field(default=None, repr=False)
    features: pd.DataFrame | None = field(default=None, repr=False)

    @property
    def requested_metrics(self) -> tuple[str, ...]:
        """The metric list by which this evaluation is found again."""
        return tuple(sorted(self.metric_list or self.metrics))

    @property
    def seed(self) -> int:
        """Of what was drawn for it."""
        return int(self.provenance.get("seed", 0))

    @property
    def weights(self) -> Array | None:
        """What each valid row counts in means, (v,); None where all count alike."""
        scores = self.valid_scores
        return scores[ROW_WEIGHT].to_numpy(float) if ROW_WEIGHT in scores else None

    @property
    def slice_names(self) -> tuple[str, ...]:
        """The slice columns."""
        return () if self.slices.empty else tuple(dict.fromkeys(self.slices["slice"].astype(str)))

    @cached_property
    def valid_scores(self) -> pd.DataFrame:
        """The scores of the valid rows; the index is the row number in the split."""
        frame = self.scores.reset_index(drop=True)
        valid = frame["valid"].to_numpy(bool)
        return frame if valid.all() else frame.loc[valid]

    @property
    def status(self) -> str:
        """The CCE in words, see ``cce_status``."""
        return cce_status(self.metrics)


def cce_status(metrics: Mapping[str, MetricValue]) -> str:
    """What two tests say of a version.

    ``as expected if true``, ``above what is expected if true``, ``not calibrated given the input``, ``not measured``;
    ``not judged, since rows are correlated`` in the place of the second and third where p-values of independent rows do
    not hold (``ROW_CORRELATION``).
    The first where nothing contradicts "this version is the truth". Two tests may: that of congruence, and that of
    calibration given the input, which sees faults of spread and shape that CCE does not. Where calibration was measured
    each is at 2.5 %, so that 5 % of true versions are contradicted; CCE's is at 5 % where it stands alone.

    The CCE is judged by its exact test where it was run (``cce_p_value``), else by whether the mean CCE lies above
    the band of a true version, else (there is none where blocks of rows are too few) by whether its interval reaches
    down to the noise floor, else within 10 % of that.
    """
    names = ("cce_p_value", "cce_mean", "cce_expected", "cce_noise_floor", "calibration_p_value")
    p_value, mean, expected, floor, calibration = (metrics.get(name) for name in names)
    if p_value is not None:
        above = p_value.value < (SIGNIFICANCE if calibration is None else EACH_OF_TWO)
    elif mean is not None and expected is not None and expected.high is not None:
        above = mean.value > expected.high
    elif mean is None or floor is None:
        return "not measured"
    else:
        above = (mean.value / 1.1 if mean.low is None else mean.low) > floor.value
    not_calibrated = calibration is not None and calibration.value < EACH_OF_TWO
    if (above or not_calibrated) and ROW_CORRELATION in metrics:
        return CORRELATED
    return NOT_AS_IF_TRUE if above else NOT_CALIBRATED if not_calibrated else AS_IF_TRUE


def truth_p_values(metrics: Mapping[str, MetricValue]) -> tuple[float, ...]:
    """The p-values of "this version is the truth": by CCE's test and by that of calibration, where there are both.

    1 where they do not judge since rows are correlated; none where CCE was not tested.
    """
    congruence, calibration = metrics.get("cce_p_value"), metrics.get("calibration_p_value")
    if congruence is None:
        return ()
    if ROW_CORRELATION in metrics:
        return (1.0,)
    return (congruence.value,) if calibration is None else (congruence.value, calibration.value)


def truth_p_value(metrics: Mapping[str, MetricValue]) -> float | None:
    """The p-value of "this version is the truth", of several tests by Bonferroni.

    Below ``SIGNIFICANCE`` if and only if ``cce_status`` contradicts the version; None where CCE was not tested.
    """
    found = truth_p_values(metrics)
    return min(1.0, len(found) * min(found)) if found else None


def metric_list_digest(names: Iterable[str]) -> str:
    """Twelve hexadecimal digits for a list of metrics, whatever its order."""
    return hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()[:12]
