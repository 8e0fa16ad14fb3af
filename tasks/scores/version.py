"""One version on one split: its scores, metrics and what is wrong with it, from its predictions and its measurement.

A worker holds columns of all rows here, and the split may have ten million: they are made once, taken down to the
single precision in which they are logged as soon as no number of all rows needs them, and let go of where nothing reads
them any more. Texts of all rows come last.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.prepared import FEWEST_ROWS
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.conditional_calibration.regions import Regions
from congruence.kernels.dependence.correlation import Correlation, sample
from congruence.kernels.distributions.recalibrated_draws import are_tied
from congruence.kernels.engine.blocks import blocks_of_version
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.rng import keyed_uniforms
from congruence.kernels.score_parts import FEWEST_ROWS as FEWEST_HONEST
from congruence.kernels.score_parts import recalibration_gains
from congruence.tasks.data.settings import Shard
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.scores.correction import preview, rows_to_try
from congruence.tasks.scores.evaluation import (
    P_VALUE,
    PLACES_P_VALUE,
    ROW_CORRELATION,
    Evaluation,
    MetricValue,
    SplitSummary,
    WhatIsWrong,
    verdict_of,
)
from congruence.tasks.scores.faults import Searched, read_vector_targets, weak_segments, with_faults
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import (
    RECALIBRATED,
    REGION,
    ROW_GROUP,
    ROW_TIME,
    ROW_WEIGHT,
    requested_metrics,
)
from congruence.tasks.scores.points import (
    MOST_EMBEDDED,
    ScoredRows,
    correlated_rows,
    features_of_inputs,
    influence_table,
    logged_columns,
    named_features,
    over_all_rows,
    principal_axes,
    row_frame,
    rows_looked_at,
    runs_looked_at,
    score_points,
    searched_rows,
)
from congruence.tasks.scores.reading import WEIGHTED, RowsRead, not_read, read_what_is_wrong, with_inference
from congruence.tasks.scores.summary import RareTargets, coverage_risk, floor_share, remarks, version_metrics
from congruence.tasks.sentences.calibration import CorrectionPreview, is_off, no_fault
from congruence.tasks.sentences.counts import crossing_finding, fraction_finding, ordered_finding, power_finding
from congruence.tasks.sentences.findings import Finding
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.pass_runner import VersionMeasurement

if TYPE_CHECKING:
    from congruence.tasks.data.split import Split

HONEST_ROWS = 10_000
"""Rows at the most on which a version's own recalibration is tried."""

MOSTLY = 0.9
"""Share of the rows whose quantiles cross from which it is no accident."""

_PACKAGES = ("numpy", "scipy", "dask", "prefect", "mlflow", "zarr", "torch", "open_clip_torch")


def score_version(
    rows: ScoredRows,
    encoder: Encoder,
    version: ModelVersion,
    protocol: EvaluationProtocol,
    measurement: VersionMeasurement,
    *,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
) -> Evaluation:
    """One version's evaluation: scores for every row of the split, invalid ones with their reason.

    What its settings say beyond ``metrics`` (None: all) and ``seed`` is for the caller to add.
    """
    split, requested = rows.split, requested_metrics(metrics)
    given, numbers = _valid_rows(rows, version.label, seed), np.flatnonzero(rows.valid)
    predictive, targets, weights = given.predictive, given.targets, given.weights
    points = score_points(measurement, given)
    given = replace(given, columns=points)
    if "crps" in requested:
        points |= _if_honest(given)
    searched, looked_at = rows_looked_at(points["cce"], seed)
    features = named_features(split, numbers[looked_at])
    measurement, regions = _named_regions(measurement, rows, features, searched)
    summary, slices = version_metrics(requested, given, measurement)
    picture = principal_axes(rows, searched, looked_at)
    if "coverage" in requested:
        inputs = pd.concat([features, picture], axis=1).loc[numbers[searched]]
        summary |= coverage_risk(inputs, targets[searched], predictive[searched], seed)
    wrong = _judged(given, rows, summary, measurement, regions, features)
    provenance, seconds = _provenance(seed, encoder, measurement), measurement.seconds
    known = measurement.result.uncertainty
    influence, noise = None, None
    if known is not None:
        noise = known.influence.noise
        influence = [each.astype(np.float32) for each in (known.influence.squared, known.influence.root)]
    if regions is not None:
        points[REGION] = np.array(regions.names, dtype=object)[regions.labels]
    columns = logged_columns(points, rows.valid)
    del measurement, known, regions  # what nothing below reads
    tried = None
    if ROW_CORRELATION not in summary:  # else its p-values would be as little worth as those of the whole
        tried = _preview(given, rows, protocol, requested, summary)
    if tried is not None:
        provenance["recalibration_preview"] = tried.as_plain()
    del given, numbers
    frame = _table(rows, columns, weights)
    keys = frame["key"] if rows.valid.all() else frame.loc[rows.valid, "key"]
    return Evaluation(
        model=version,
        split=SplitSummary(
            split.name,
            split.digest,
            split.rows,
            int(rows.valid.sum()),
            split.settings.target_name,
            period=split.period,
            dates=len(split.dates),
        ),
        protocol=protocol,
        metrics=summary,
        scores=frame,
        predictive=predictive,
        targets=targets,
        slices=slices,
        embedding_map=picture,
        **_shown_inputs(split, encoder.input_kind),
        provenance=provenance,
        seconds=seconds,
        metric_list=requested,
        influence=None if influence is None else influence_table(influence, keys),
        influence_noise=noise,
        wrong=wrong,
        features=features,
        preview=tried,
    )


def _table(rows: ScoredRows, columns: Mapping[str, Any], weights: Array | None) -> pd.DataFrame:
    """The scores of all rows of the split, with what the split says of each."""
    frame, design = row_frame(rows.split, rows.reasons(), rows.valid), rows.split.design()
    named = {ROW_GROUP: design.groups, ROW_TIME: design.time}
    frame = frame.assign(**{name: values for name, values in named.items() if values is not None})
    frame = pd.concat([frame, pd.DataFrame(columns, index=frame.index, copy=False)], axis=1)
    if weights is not None:
        frame[ROW_WEIGHT] = over_all_rows(weights, rows.valid)
    return frame


def _judged(
    given: Rows,
    rows: ScoredRows,
    metrics: dict[str, MetricValue],
    measurement: VersionMeasurement,
    regions: Regions | None,
    features: pd.DataFrame,
) -> WhatIsWrong | None:
    """What is wrong, and how far one may trust its p-values; all that the verdict is made of joins the ``metrics``."""
    correlation = _correlation(given, rows, measurement)
    if correlation is not None:
        metrics[ROW_CORRELATION] = MetricValue(correlation.value)
    rare = RareTargets() if measurement.calibration is None else RareTargets.of(given)
    metrics |= rare.metrics()
    wrong = _what_is_wrong(given, rows, metrics, measurement, regions, features, rare)
    if wrong is not None:
        wrong = wrong.noting(rare.method, "" if given.weights is None else WEIGHTED)
    wrong = with_inference(wrong, measurement.result.inference, correlation)
    if wrong is not None and wrong.p_value is not None:
        metrics[PLACES_P_VALUE] = MetricValue(wrong.p_value)
    verdict = verdict_of(metrics)
    if verdict.p_value is not None:
        metrics[P_VALUE] = MetricValue(verdict.p_value)
        if "cce_significant_share" in metrics and not verdict.is_wrong:
            metrics["cce_significant_share"] = MetricValue(0.0)
    return None if wrong is None else wrong.noting(remarks(metrics, given))


def _valid_rows(rows: ScoredRows, label: str, seed: int) -> Rows:
    """The valid rows with what a version says of them, without scores."""
    split, targets, predictive = rows.split, rows.targets(), rows.all_predictive(label)
    design = rows.design()
    dependence = design.dependence()
    labels = split.frame(Shard(0, 0, split.rows, ""), split.settings.slices)
    return Rows(
        {},
        targets,
        predictive,
        design.weight,
        seed,
        blocks_of_version(dependence, targets, predictive),
        keys=rows.keys(),  # once: 1 s for a million texts
        labels=labels if rows.valid.all() else labels.loc[rows.valid],
        dependence=dependence,
    )


def _shown_inputs(split: Any, input_kind: str) -> dict[str, Any]:
    if input_kind == "features":
        return {}
    from congruence.tasks.data.usable import beginnings, thumbnails  # by Arrow, which rows in memory need not

    return {"thumbnails": thumbnails(split)} if input_kind == "image" else {"texts": beginnings(split)}


def _named_regions(
    measurement: VersionMeasurement, rows: ScoredRows, features: pd.DataFrame, searched: Array
) -> tuple[VersionMeasurement, Regions | None]:
    """The regions of the inputs by the ``features`` of the ``searched`` rows, if there are any.

    The measurement comes back with a reading of the rows that are looked at alone: what it says of every row is among
    the points.
    """
    calibration, regions, numbers = measurement.calibration, None, np.flatnonzero(rows.valid)
    if calibration is not None and calibration.regions is not None:
        inputs = features_of_inputs(rows.split, features.loc[numbers[searched]])
        regions = calibration.regions.named(inputs, searched)
    if calibration is not None and calibration.reading is not None:
        measurement = replace(measurement, calibration=calibration.at_rows(runs_looked_at(len(numbers))))
    return measurement, regions


def _correlation(given: Rows, rows: ScoredRows, measurement: VersionMeasurement) -> Correlation | None:
    """Correlation of rows that nobody named, where the version is judged as if they were independent."""
    is_named = given.dependence is not None or measurement.result.inference is not None
    # A verdict by a p-value or a band, which take rows as independent.
    is_judged = measurement.result.test is not None or measurement.result.band is not None
    if is_named or not is_judged or len(given.targets) < FEWEST_ROWS:
        return None
    # Rows of a table often share their inputs, and then every fault of the version; of pictures and texts that are
    # copies that is rare.
    can_tell_apart = rows.split.settings.input_kind != "features"
    embeddings = rows.embeddings() if can_tell_apart and len(given.targets) <= MOST_EMBEDDED else None
    return correlated_rows(
        given, None if measurement.calibration is None else measurement.calibration.reading, embeddings
    )


def _what_is_wrong(
    given: Rows,
    scored: ScoredRows,
    metrics: dict[str, MetricValue],
    measurement: VersionMeasurement,
    regions: Regions | None,
    features: pd.DataFrame,
    rare: RareTargets,
) -> WhatIsWrong | None:
    """What calibration given the input says; None where it was not measured of enough rows."""
    calibration, predictive, targets, points = measurement.calibration, given.predictive, given.targets, given.columns
    split, numbers = scored.split, np.flatnonzero(scored.valid)
    if calibration is None:
        verdict = verdict_of(metrics, rows=len(targets))
        if len(targets) >= FEWEST_ROWS or verdict.p_value is None:
            return None
        if not verdict.is_wrong:
            return not_read(no_fault(len(targets), verdict.p_value))
        few = f"{len(targets)} rows show that the predictions are wrong, and not how or where"
        return not_read(f"{few}; bring {FEWEST_ROWS} or more.")
    if regions is None:
        return read_vector_targets(calibration, given, target_names(split, targets.shape[1]), metrics)
    rows = RowsRead.of(given, mixing=0.0 if calibration.reading is None else calibration.reading.mixing)

    def segments(places: Mapping[str, Array]) -> Searched:
        some = searched_rows(len(targets), given.seed)
        if_true = points["cce_noise_floor"][some] * floor_share(metrics)
        there = {name: np.flatnonzero(np.isin(some, own, assume_unique=True)) for name, own in places.items()}
        asked = features.loc[numbers[some]], rows[some], points["cce"][some], if_true, there
        return weak_segments(*asked, is_sample=len(some) < len(targets))

    def keys_of(some: Array) -> list[str]:
        return [str(split.key_values(Shard(0, row, 1, "")).iloc[0]) for row in numbers[some].tolist()]

    crossed = float(np.mean(predictive.remarks(targets).get("quantile_crossing", np.zeros(1))))
    crossing = [crossing_finding(len(targets), crossed)] if crossed >= MOSTLY else []

    def beside(overall: GroupReading | None, explained: float) -> list[Finding]:
        found = [*rare.findings(overall, keys_of, of_counts=rows.counts is not None), *crossing]
        if predictive.is_discrete and len(parts := np.flatnonzero(targets != np.rint(targets))):
            (key,) = keys_of(parts[:1])
            found.append(fraction_finding(len(parts), len(parts) / len(targets), float(targets[parts[0]]), key))
        return [*found, *_power(rows, overall, explained, has_masses=bool(rare.masses))]

    draws = predictive.draws
    ordered = [] if draws is None or not _all_rise(draws) else [ordered_finding(*draws.shape).sentence]
    labels = given.labels.drop(columns=split.settings.target_columns, errors="ignore")
    said = read_what_is_wrong(
        calibration, regions, rows, metrics, numbers, labels, partial(with_faults, segments=segments, rare=beside)
    )
    # Once sorted, exchanged quantiles may be right: then nothing else is wrong, and this is all there is to say.
    unsaid = tuple(each.sentence for each in crossing if each.sentence not in said.sentences and not said.fault)
    # What makes quantiles out of draws makes all other sentences.
    return replace(said, sentences=(*ordered, *unsaid, *said.sentences))


def _power(rows: RowsRead, overall: GroupReading | None, explained: float, *, has_masses: bool) -> list[Finding]:
    """Whether a variance was given as standard deviation, or the other way round, beyond what places explain."""
    sizes = rows.targets
    # Targets at one value have no spread to read a power from; draws are given no spread, and that of few is so noisy
    # that it looks like a power.
    if sizes is None or has_masses or rows.members is not None or overall is None or not is_off(overall):
        return []
    power = sizes.power if overall.dominant in ("spread", "tails") else None
    # A range or slice that is wrong bends spreads over all rows as a power does.
    if power is None or (sizes.spreads_vary and sizes.gain_of_power(power) <= explained):
        return []
    return [power_finding(len(rows), power, shows=sizes.spreads_vary)]


def _all_rise(draws: Array) -> bool:
    """Whether the draws of every row stand in rising order, which is no accident."""
    rows, count = draws.shape[:2]
    few = draws.ndim > 2 or count < 3 or rows < 10 or float(np.mean(draws[:, -1] > draws[:, 0])) < MOSTLY
    return not few and bool(np.all(draws[:, 1:] >= draws[:, :-1]))


def _if_honest(given: Rows) -> dict[str, Array]:
    """CRPS and NLL of each row if the version were recalibrated by what it says itself; NaN where there are many rows.

    The rows are the same for every version, so that two of them can be set side by side.
    """
    n, blocks = len(given.targets), given.found
    law = given.predictive
    if given.targets.ndim > 1 or blocks.refused or not np.any(law.std() > 0.0) or are_tied(law):
        return {}
    chosen = np.arange(n)
    if n > HONEST_ROWS and given.dependence is not None:
        chosen = sample(given.dependence, HONEST_ROWS, given.seed, RECALIBRATED["crps"])
    elif n > HONEST_ROWS:
        order = np.argsort(keyed_uniforms(given.names, given.seed, RECALIBRATED["crps"]), kind="stable")
        chosen = np.sort(order[:HONEST_ROWS])
    if len(chosen) < FEWEST_HONEST:
        return {}
    some = given[chosen]
    gains = recalibration_gains(
        some.targets, some.predictive, keys=some.names, seed=given.seed, blocks=some.found.blocks
    )
    found = {}
    for (column, name), gain in zip(RECALIBRATED.items(), gains, strict=True):
        if column in given.columns and not np.isnan(gain).all():
            found[name] = np.full(n, np.nan)
            found[name][chosen] = some.columns[column] - gain
    return found


def is_wanted(requested: tuple[str, ...], metrics: Mapping[str, MetricValue], rows: Rows) -> bool:
    """Whether a preview is asked for, a fault was found, and the laws are such that they can be recalibrated."""
    correctable = rows.is_scalar and bool(np.any(rows.predictive.std() > 0.0))
    return "recalibration" in requested and verdict_of(metrics).is_wrong and correctable


def _preview(
    given: Rows,
    rows: ScoredRows,
    protocol: EvaluationProtocol,
    requested: tuple[str, ...],
    metrics: dict[str, MetricValue],
) -> CorrectionPreview | None:
    if not is_wanted(requested, metrics, given):
        return None
    chosen, half = rows_to_try(given)
    return preview(protocol, given[chosen], rows.embeddings_of(chosen), half)


def target_names(split: Split, count: int) -> list[str]:
    """What ``count`` targets are called: by their columns, or numbered where one column holds all of them."""
    columns = split.settings.target_columns
    return list(columns) if len(columns) == count else [f"{columns[0]} {number + 1}" for number in range(count)]


@cache
def _installed() -> Mapping[str, str]:
    """The versions of the packages that make the numbers, which are the same as long as this process lives."""
    found = {}
    for name in ("congruence", *_PACKAGES):
        with suppress(importlib.metadata.PackageNotFoundError):  # tables need no torch
            found[name] = importlib.metadata.version(name)
    return found


def _provenance(seed: int, encoder: Encoder, measurement: VersionMeasurement) -> dict[str, Any]:
    return {
        "encoder": encoder.id,
        "preprocessing": encoder.preprocessing_digest,
        "seed": seed,
        "solver": measurement.result.solver,
        "solver_reason": measurement.result.reason,
        "output_kernel": measurement.result.output_kernel,
        "certificate": {"cce_error_bound": measurement.result.error_bound},
        "certificate_kind": measurement.result.bound_kind,
        **({} if measurement.result.inference is None else {"inference": vars(measurement.result.inference)}),
        "packages": _installed(),
    }
