"""The scores of one version on one split, put together from its predictions and the Gram measurement."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.calibration import pit_values
from congruence.kernels.conditional_calibration.count_reading import CountRows
from congruence.kernels.conditional_calibration.count_scores import JumpScores
from congruence.kernels.conditional_calibration.version_calibration import FEWEST_ROWS, VersionCalibration
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.influence import CongruenceInfluence
from congruence.kernels.congruence.outcome import CongruenceTest, benjamini_hochberg
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.dependence import blocks_of_version
from congruence.kernels.scores import point_scores
from congruence.tasks.data import Shard, Split
from congruence.tasks.data.thumbnails import thumbnails
from congruence.tasks.encoders import Encoder
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.block_statistics import ScoreBlocks, hashed_by_block
from congruence.tasks.scores.correction import CorrectionPreview
from congruence.tasks.scores.coverage_risk import coverage_risk
from congruence.tasks.scores.dependence import (
    MOST_EMBEDDED,
    ROW_GROUP,
    ROW_TIME,
    blocks_of_means,
    correlated_rows,
    runs_looked_at,
)
from congruence.tasks.scores.evaluation import (
    DEPENDENT_BLOCKS,
    INFLUENCE,
    ROW_CORRELATION,
    ROW_WEIGHT,
    Evaluation,
    Metric,
    SplitSummary,
)
from congruence.tasks.scores.features import named_features, numbers_of_inputs, rows_looked_at
from congruence.tasks.scores.names import requested_metrics
from congruence.tasks.scores.picture import principal_axes
from congruence.tasks.scores.reading import read_vector_targets, read_what_is_wrong, with_inference
from congruence.tasks.scores.recalibration_preview import is_wanted, preview, rows_to_try
from congruence.tasks.scores.summary import (
    calibration_metrics,
    congruence_metrics,
    estimated,
    estimated_of,
    floor_share,
    mean_columns,
    other_metrics,
    whole_columns,
)
from congruence.tasks.scores.wrong import WhatIsWrong
from congruence.tasks.settings.digest import settings_digest
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement_store import VersionMeasurement

CHUNK_ROWS = 2**16  # scores make several arrays of their rows in passing
_PACKAGES = ("numpy", "scipy", "dask", "prefect", "mlflow", "zarr", "torch", "open_clip_torch")


def score_version(
    settings: EvaluationSettings,
    rows: EvaluatedRows,
    encoder: Encoder,
    version: ModelVersion,
    protocol: EvaluationProtocol,
    measurement: VersionMeasurement,
) -> Evaluation:
    """One version's evaluation: scores for every row of the split, invalid ones with their reason."""
    split = rows.split
    valid, targets = rows.valid, rows.all_targets()
    predictive = rows.all_predictive(version.label)
    requested = requested_metrics(settings.metrics)
    dependence = rows.dependence()
    result, test, expected = measurement.result, measurement.test, measurement.expected
    calibration = measurement.calibration
    hashed = hashed_by_block(split, valid)  # once: 1 s for a million texts
    points = score_points(
        result, predictive, targets, seed=settings.seed, keys=hashed, test=test, calibration=calibration
    )
    numbers = np.flatnonzero(valid)
    searched, looked_at = rows_looked_at(points["cce"], settings.seed)
    features = named_features(split, numbers[looked_at])
    regions = None
    if calibration is not None and calibration.regions is not None:
        regions = calibration.regions.named(numbers_of_inputs(split, features.loc[numbers[searched]]), searched)
    if calibration is not None and calibration.reading is not None:  # what it says of every row is among the points
        few = calibration.reading.at_points(runs_looked_at(len(targets)))
        calibration = replace(calibration, reading=few)
        measurement = replace(measurement, calibration=None)
    labels = split.frame(Shard(0, 0, split.rows, ""), split.settings.slices)
    labels = labels if valid.all() else labels.loc[valid]
    weights = rows.all_design().weight
    inference = measurement.inference
    found = blocks_of_version(dependence, targets, predictive)
    averaged = blocks_of_means(dependence, points, predictive, targets)
    resampled = hashed if averaged.blocks is None else averaged.blocks.labels
    blocks = ScoreBlocks(requested, points, predictive, targets, resampled, weights)
    summary = congruence_metrics(result, test, expected, has_intervals=inference is None or not inference.refused)
    summary |= estimated_of(blocks.statistics(), settings.seed, averaged.blocks, has_intervals=not averaged.refused)
    slices = blocks.slice_table(labels, floor_share(summary))
    del blocks  # and with it the columns that it made of all rows
    summary |= other_metrics(requested, points, predictive, targets, settings.seed, weights, found)
    picture = principal_axes(rows, searched, looked_at)
    if "coverage" in requested:
        inputs = pd.concat([features, picture], axis=1).loc[numbers[searched]]
        summary |= coverage_risk(inputs, targets[searched], predictive[searched], settings.seed)
    correlation = None
    if inference is not None and inference.blocks is not None:
        summary[DEPENDENT_BLOCKS] = Metric(float(inference.blocks))
    elif dependence is None and is_judged_here(measurement, targets):
        correlation = correlated_rows(
            targets,
            predictive,
            None if calibration is None else calibration.reading,
            keys=hashed,
            labels=labels,
            embeddings=rows.embeddings() if len(targets) <= MOST_EMBEDDED else None,
            seed=settings.seed,
        )
        if correlation is not None:
            summary[ROW_CORRELATION] = Metric(correlation.value)
    if measurement.repeat_std is not None:
        summary["cce_std"] = Metric(measurement.repeat_std)
    wrong: WhatIsWrong | None = None
    if calibration is not None:
        summary |= calibration_metrics(calibration.test)
        if regions is not None:
            wrong = read_what_is_wrong(
                calibration,
                regions,
                points["pit"],
                summary,
                numbers,
                labels.drop(columns=split.settings.target_columns, errors="ignore"),
                CountRows.of(targets, predictive),
                JumpScores.of(targets, predictive),
                found.blocks,
            )
        else:
            names = target_names(split, targets.shape[1])
            vectors = calibration, predictive, targets, names, summary, hashed, settings.seed
            wrong = read_vector_targets(*vectors, found.blocks)
    wrong = with_inference(wrong, inference, correlation)
    tried = None
    if correlation is None:  # else its p-values would be as little worth as those of the whole
        tried = _preview(settings, rows, protocol, requested, summary, targets, predictive, hashed, dependence)
    provenance, seconds = _provenance(settings, encoder, measurement), measurement.seconds
    if tried is not None:
        provenance["recalibration_preview"] = tried.as_plain()
    influence = None if result.uncertainty is None else influence_columns(result.uncertainty.influence)
    noise = None if result.uncertainty is None else result.uncertainty.influence.noise
    if regions is not None:
        points["calibration_region"] = np.array(regions.names, dtype=object)[regions.labels]
    columns = logged_columns(points, valid)
    # What is in single precision now, and what nothing below reads.
    del hashed, resampled, labels, numbers, measurement, result, test, calibration, regions
    # Texts of all rows, and after the numbers that are made of them a block at a time.
    frame = with_design(row_frame(split, rows.reasons(), valid), split)
    keys = frame["key"] if valid.all() else frame.loc[valid, "key"]
    frame = pd.concat([frame, pd.DataFrame(columns, index=frame.index, copy=False)], axis=1)
    if weights is not None:
        frame[ROW_WEIGHT] = over_all_rows(weights, valid)
    return Evaluation(
        model=version,
        split=SplitSummary(split.name, split.digest, split.rows, int(valid.sum()), split.settings.target_name),
        protocol=protocol,
        metrics=summary,
        scores=frame,
        predictive=predictive,
        targets=targets,
        slices=slices,
        embedding_map=picture,
        thumbnails=thumbnails(split) if encoder.input_kind == "image" else None,
        provenance=provenance,
        seconds=seconds,
        metric_list=requested,
        settings_digest=settings_digest(settings, split.settings),
        influence=None if influence is None else influence_table(influence, keys),
        influence_noise=noise,
        wrong=wrong,
        features=features,
        preview=tried,
    )


def _preview(
    settings: EvaluationSettings,
    rows: EvaluatedRows,
    protocol: EvaluationProtocol,
    requested: tuple[str, ...],
    metrics: dict[str, Metric],
    targets: Array,
    predictive: Distribution,
    keys: Array,
    dependence: RowDependence | None,
) -> CorrectionPreview | None:
    if not is_wanted(requested, metrics, targets, predictive):
        return None
    chosen, half = rows_to_try(keys, settings.seed, dependence)
    tried = None if dependence is None else dependence.of_rows(chosen)
    embeddings = rows.embeddings_of(chosen)
    return preview(protocol, embeddings, targets[chosen], predictive[chosen], keys[chosen], half, settings.seed, tried)


def is_judged_here(measurement: VersionMeasurement, targets: Array) -> bool:
    """Whether a verdict of these rows rests on a p-value or a band, which take them as independent."""
    return len(targets) >= FEWEST_ROWS and (measurement.test is not None or measurement.expected is not None)


def with_design(frame: pd.DataFrame, split: Split) -> pd.DataFrame:
    """``frame`` with the groups and times of all rows, where the split names them."""
    design = split.design()
    named = {ROW_GROUP: design.groups, ROW_TIME: design.time}
    return frame.assign(**{name: values for name, values in named.items() if values is not None})


def logged_columns(points: dict[str, Array], valid: Array) -> dict[str, Array | pd.Categorical]:
    """The scores of valid rows in their places, in the single precision in which they are logged; texts by their code.

    They are taken out of ``points``, so that no column is held twice.
    """
    return {name: _coded(over_all_rows(_single(points.pop(name)), valid)) for name in list(points)}


def _coded(values: Array) -> Array | pd.Categorical:
    if values.dtype != object:
        return values
    names = sorted(set(values) - {None})
    codes = {name: code for code, name in enumerate(names)}
    # Row by row, since pandas makes columns of 8 bytes on the way to one of 2.
    found = np.fromiter((codes.get(value, -1) for value in values), np.int16, len(values))
    return pd.Categorical.from_codes(found, pd.Index(names, dtype=str))


def _single(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def over_all_rows(values: Array, valid: Array) -> Array:
    """Values of the valid rows in their places; NaN, or None for text, where a row is not valid."""
    if values.dtype.kind in "fO" and valid.all():
        return values
    is_text = values.dtype.kind in "UO"
    number = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    column = np.full(len(valid), None if is_text else np.nan, dtype=object if is_text else number)
    column[valid] = values
    return column


def target_names(split: Split, count: int) -> list[str]:
    """What ``count`` targets are called: by their columns, or numbered where one column holds all of them."""
    columns = split.settings.target_columns
    return list(columns) if len(columns) == count else [f"{columns[0]} {number + 1}" for number in range(count)]


def influence_columns(influence: CongruenceInfluence) -> tuple[Array, Array]:
    """What each reference row contributes to the squared CCE and to the CCE, in single precision."""
    return _single(influence.squared), _single(influence.root)


def influence_table(columns: tuple[Array, Array], keys: Array | pd.Series[Any]) -> pd.DataFrame:
    """What each reference row contributes (``INFLUENCE``); rows of another split than ``keys`` go by their number."""
    n = len(columns[0])
    named = pd.Series(keys).reset_index(drop=True)
    names = named if len(named) == n else pd.Series(np.arange(n).astype(str))
    return pd.DataFrame(dict(zip(INFLUENCE, (names, *columns), strict=True)), copy=False)


def row_frame(split: Split, reasons: Mapping[int, str], valid: Array) -> pd.DataFrame:
    """One row per row of the split: key, valid, reason, target and slices."""
    columns = [split.key_column, *split.settings.target_columns, *split.settings.slices]
    frame = split.frame(Shard(0, 0, split.rows, ""), columns)
    names = {split.key_column: "key"}
    if len(split.settings.target_columns) == 1:
        names[split.settings.target_columns[0]] = "target"
    frame = frame.rename(columns=names)
    frame.insert(1, "valid", valid)
    reason = np.full(split.rows, None, dtype=object)
    for row, why in reasons.items():
        reason[row] = why
    frame.insert(2, "reason", reason)
    return frame


def score_points(
    result: CongruenceResult,
    predictive: Distribution,
    targets: Array,
    *,
    seed: int,
    keys: Array | None,
    test: CongruenceTest | None = None,
    calibration: VersionCalibration | None = None,
) -> dict[str, Array]:
    """Every score of every evaluated row; ``keys`` name the rows for the randomised PIT of counts.

    ``calibration_fault`` is text, all others are numbers.
    """
    points = {"cce": result.values, "cce_noise_floor": result.noise_floor_values, "cce_excess": result.excess_values}
    if test is not None:
        points["cce_p_value"] = test.point_p_values
        points["cce_q_value"] = benjamini_hochberg(test.point_p_values)
    if calibration is not None:
        points |= calibration.columns()
    names = np.arange(len(targets)) if keys is None else keys
    found: dict[str, Array] = {}
    scored: dict[str, int] = {}
    for start in range(0, max(1, len(targets)), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        scores = point_scores(predictive[chunk], targets[chunk])
        if targets.ndim == 1:
            scores["pit"] = pit_values(targets[chunk], predictive[chunk], seed=seed, keys=names[chunk])
        for name, values in scores.items():
            if name not in found:
                found[name], scored[name] = np.empty((len(targets), *values.shape[1:]), values.dtype), 0
            found[name][chunk] = values
            scored[name] += len(values)
    # A score that a part of the rows does not have (a density, for example) is no column.
    return points | {name: values for name, values in found.items() if scored[name] == len(targets)}


def summarise(
    result: CongruenceResult,
    predictive: Distribution,
    targets: Array,
    points: dict[str, Array],
    requested: tuple[str, ...],
    *,
    seed: int,
    keys: Array | None,
    test: CongruenceTest | None = None,
    expected: ExpectedCongruence | None = None,
    calibration: VersionCalibration | None = None,
    weights: Array | None = None,
) -> dict[str, Metric]:
    """The metrics of a version from the scores of its rows (``score_points``), with intervals where they are means."""
    metrics = congruence_metrics(result, test, expected)
    whole = {**points, **whole_columns(requested, points, predictive, targets, weights)}
    metrics |= estimated(mean_columns(requested, whole, predictive, targets), keys, seed, weights)
    if calibration is not None:
        metrics |= calibration_metrics(calibration.test)
    return metrics | other_metrics(requested, points, predictive, targets, seed, weights)


@cache
def _installed() -> Mapping[str, str]:
    """The versions of the packages that make the numbers, which are the same as long as this process lives."""
    return {name: importlib.metadata.version(name) for name in ("congruence", *_PACKAGES)}


def _provenance(settings: EvaluationSettings, encoder: Encoder, measurement: VersionMeasurement) -> dict[str, Any]:
    return {
        "encoder": encoder.id,
        "preprocessing": encoder.preprocessing_digest,
        "seed": settings.seed,
        "solver": measurement.solver,
        "solver_reason": measurement.reason,
        "output_kernel": measurement.output_kernel,
        "certificate": {"cce_error_bound": measurement.result.error_bound},
        "certificate_kind": measurement.result.bound_kind,
        **({} if measurement.inference is None else {"inference": vars(measurement.inference)}),
        "packages": _installed(),
        "settings": settings.model_dump(mode="json", exclude={"home"}),
    }
