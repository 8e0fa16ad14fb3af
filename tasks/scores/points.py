"""A row each: what a split says of it, its scores, what is logged of it; and which rows depend on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, end_of_range
from congruence.kernels.conditional_calibration.local_reading import PREFIX, LocalReading
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import Correlation, correlations, dependence_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import FoundBlocks, found_blocks
from congruence.kernels.engine.congruence_test import benjamini_hochberg
from congruence.kernels.pit import ORDERS, cell_step, pit_values
from congruence.kernels.rng import stream
from congruence.kernels.scores import point_scores, resolution
from congruence.tasks.data.settings import Shard
from congruence.tasks.scores.evaluation import INFLUENCE, Columns
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import METRICS, ROW_GROUP, ROW_TIME, mean_columns

if TYPE_CHECKING:
    from congruence.tasks.data.settings import SampleDesign
    from congruence.tasks.data.split import Split
    from congruence.tasks.solving.pass_runner import VersionMeasurement


MOST_VALUES = 30
"""Distinct values of a column of text beyond which it is a name rather than a feature."""
HIGHEST, LOWEST = 2_000, 10
"""Rows of the highest CCE, and of the lowest, that a report shows."""
_ROWS_AT_ONCE = 2**16

AXES = 8
"""Two to draw, the others to tell which rows are near each other."""


class ScoredRows(Protocol):
    """The rows of a split that are evaluated, with what versions predict for them."""

    @property
    def split(self) -> Any:
        """Their split: a ``Split``, or rows in memory that have its name, digest, settings, keys, design and frames."""

    @property
    def valid(self) -> Array:
        """Which rows of the split are evaluated, (rows,)."""

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is not evaluated, by row of the split."""

    def embeddings(self) -> Array:
        """Of the valid rows, (v, d)."""

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, by their numbers among these in increasing order, (k, d)."""

    def targets(self) -> Array:
        """Of the valid rows, (v,) or (v, q)."""

    def all_predictive(self, version: str) -> Distribution:
        """The predictions of a version at the valid rows."""

    def keys(self) -> Array:
        """Numbers that stand for the keys of the valid rows, (v,)."""

    def design(self) -> SampleDesign:
        """Groups, times and weights of the valid rows."""


def rows_looked_at(cce: Array, seed: int) -> tuple[Array, Array]:
    """Which of the evaluated rows features are read of: of all of them a long split of many columns has no room.

    Returns:
        Those in which places are looked for (``searched_rows``), the same for every version, and these with the rows
        of highest and of lowest CCE; both in order.
    """
    logged = cce.astype(np.float32)  # in which a report orders them: of equal ones it shows the first
    lowest, highest = (np.argsort(sign * logged, kind="stable") for sign in (1, -1))
    searched = np.sort(searched_rows(len(cce), seed))
    return searched, np.union1d(searched, np.concatenate([lowest[:LOWEST], highest[:HIGHEST]]))


def named_features(split: Split, rows: Array) -> pd.DataFrame:
    """Columns of numbers, truth values or few words of some rows of the split; the index is the row number.

    They are the inputs of encoder and model and the slices, without the targets; none where these are all images, texts
    or vectors.

    Args:
        split: the split.
        rows: row numbers, in order.
    """
    settings = split.settings
    inputs = settings.input_columns if settings.input_kind == "features" else []
    given = [name for name in settings.model_input_columns if name not in settings.input_columns]
    columns = list(dict.fromkeys([*inputs, *given, *settings.slices]))
    columns = [name for name in columns if name not in settings.target_columns]
    if not columns or not len(rows):
        return pd.DataFrame(index=pd.Index(rows))
    parts = []
    for start in range(0, split.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, split.rows)
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        if len(here):
            parts.append(split.frame(Shard(0, start, stop - start, ""), columns).iloc[here - start].set_index(here))
    frame = pd.concat(parts)
    return frame[[name for name in frame if _is_feature(frame[name])]]


def features_of_inputs(split: Split, features: pd.DataFrame) -> dict[str, Array]:
    """The columns among ``features`` that the encoder is given, by which regions of its space are named."""
    if split.settings.input_kind != "features":
        return {}
    return {str(name): feature_values(features[name]) for name in split.settings.input_columns if name in features}


def feature_values(column: pd.Series[Any]) -> Array:
    """A feature as places are named by it: numbers, NaN where one is missing; words, "missing" where one is."""
    if is_numeric(column):
        return column.to_numpy(np.float64, na_value=np.nan)
    return column.astype("string").fillna("missing").to_numpy(str)


def principal_axes(rows: ScoredRows, sample: Array, chosen: Array) -> pd.DataFrame:
    """Coordinates of ``chosen`` rows along the principal axes of ``sample``, (k, min(8, d)).

    At least two columns, zeros beyond d; the index is the row number in the split.

    Args:
        rows: of the split.
        sample: a random sample of the valid rows, by their numbers among these, in order.
        chosen: these and others.
    """
    x = rows.embeddings_of(chosen)
    whole = x[np.isin(chosen, sample)].astype(np.float64)
    mean = whole.mean(axis=0)
    _, axes = np.linalg.eigh(whole.T @ whole / len(whole) - np.outer(mean, mean))
    leading = axes[:, : -AXES - 1 : -1]
    picture = np.zeros((len(chosen), max(2, leading.shape[1])), dtype=np.float32)  # to look at
    picture[:, : leading.shape[1]] = (x - mean) @ leading
    return pd.DataFrame(picture, index=np.flatnonzero(rows.valid)[chosen])


def _is_feature(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return True
    known = column.dropna()
    return all(isinstance(value, (str, bool)) for value in known) and bool(known.nunique() <= MOST_VALUES)


CHUNK_ROWS = 2**16  # scores make several arrays of their rows in passing


def score_points(measurement: VersionMeasurement, rows: Rows) -> dict[str, Array]:
    """Every score of every evaluated row, of which ``rows`` have none yet.

    ``calibration_fault`` is text, all others are numbers.
    """
    result, calibration, test = measurement.result, measurement.calibration, measurement.result.test
    predictive, targets = rows.predictive, rows.targets
    points = {"cce": result.values, "cce_noise_floor": result.noise_floor_values, "cce_excess": result.excess_values}
    if test is not None:
        points["cce_p_value"] = test.point_p_values
        points["cce_q_value"] = benjamini_hochberg(test.point_p_values)
    if calibration is not None:
        points |= calibration.columns()
        if predictive.quantile_levels is not None and f"{PREFIX}fault" in points:
            # Of a few levels skew and tails cannot be told from bias and spread, which they show, too.
            bias, spread = (np.abs(points[f"{PREFIX}{order}"]) for order in ORDERS[:2])
            plain = np.where(bias >= spread, *ORDERS[:2])
            points[f"{PREFIX}fault"] = np.where(points[f"{PREFIX}fault"] == "", "", plain).astype(object)
            for name in ("shift", "factor"):  # in predicted spreads, which are an interpolation
                del points[f"{PREFIX}{name}"]
    step, cells = resolution(targets), cell_step(targets, predictive)
    found: dict[str, Array] = {}
    scored: dict[str, int] = {}
    for start in range(0, max(1, len(targets)), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        scores = point_scores(predictive[chunk], targets[chunk], step)
        if targets.ndim == 1:
            keys = rows.names[chunk]
            scores["pit"] = pit_values(targets[chunk], predictive[chunk], seed=rows.seed, keys=keys, step=cells)
        for metric in METRICS.values():
            if metric.point is not None and (made := metric.point(targets[chunk], predictive[chunk])) is not None:
                scores[metric.column] = made
        for name, values in scores.items():
            if name not in found:
                found[name], scored[name] = np.empty((len(targets), *values.shape[1:]), values.dtype), 0
            found[name][chunk] = values
            scored[name] += len(values)
    # A score that a part of the rows does not have (a density, for example) is no column.
    return points | {name: values for name, values in found.items() if scored[name] == len(targets)}


def logged_columns(points: dict[str, Array], valid: Array) -> dict[str, Array | pd.Categorical]:
    """The scores of valid rows in their places, in the single precision in which they are logged; texts by their code.

    They are taken out of ``points``, so that no column is held twice. Means and spreads of vectors have no column.
    """
    columns = [name for name, values in points.items() if values.ndim == 1]
    found: dict[str, Array | pd.Categorical] = {}
    for name in columns:
        values = points.pop(name)
        single = values.astype(np.float32) if values.dtype == np.float64 else values
        found[name] = _coded(over_all_rows(single, valid))
    return found


def _coded(values: Array) -> Array | pd.Categorical:
    if values.dtype != object:
        return values
    names = sorted(set(values) - {None})
    codes = {name: code for code, name in enumerate(names)}
    # Row by row, since pandas makes columns of 8 bytes on the way to one of 2.
    found = np.fromiter((codes.get(value, -1) for value in values), np.int16, len(values))
    return pd.Categorical.from_codes(found, pd.Index(names, dtype=str))


def over_all_rows(values: Array, valid: Array) -> Array:
    """Values of the valid rows in their places; NaN, or None for text, where a row is not valid."""
    if values.dtype.kind in "fO" and valid.all():
        return values
    is_text = values.dtype.kind in "UO"
    number = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    column = np.full(len(valid), None if is_text else np.nan, dtype=object if is_text else number)
    column[valid] = values
    return column


def influence_table(columns: Sequence[Array], keys: Array | pd.Series[Any]) -> pd.DataFrame:
    """What each reference row contributes (``INFLUENCE``); rows of another split than ``keys`` go by their number."""
    n = len(columns[0])
    named = pd.Series(keys).reset_index(drop=True)
    names = named if len(named) == n else pd.Series(np.arange(n).astype(str))
    return pd.DataFrame(dict(zip(INFLUENCE, (names, *columns), strict=True)), copy=False)


def row_frame(split: Split, reasons: Mapping[int, str], valid: Array) -> pd.DataFrame:
    """One row per row of the split: key, valid, reason, target and slices."""
    everything = Shard(0, 0, split.rows, "")
    columns = [name for name in (*split.settings.target_columns, *split.settings.slices) if name != split.key_column]
    frame = split.frame(everything, columns)
    if len(split.settings.target_columns) == 1:
        frame = frame.rename(columns={split.settings.target_columns[0]: "target"})
    frame.insert(0, "key", split.key_values(everything))
    frame.insert(1, "valid", valid)
    reason = np.full(split.rows, None, dtype=object)
    for row, why in reasons.items():
        reason[row] = why
    frame.insert(2, "reason", reason)
    return frame


MOST_EMBEDDED = 50_000
"""Rows beyond which identical inputs are not looked for."""

LARGEST_GROUP = 50
"""Rows of a group on average, beyond which a column is a category of rows rather than what one row shares with few."""

_SORTED = 0.98
_MOST_ROWS, _RUNS = 250_000, 16


def dependence_of(scores: Columns, rows: Array | None = None) -> RowDependence | None:
    """Which rows of a table of scores may depend on each other: of those chosen, by a mask or numbers."""
    found = {}
    for role, name in (("groups", ROW_GROUP), ("time", ROW_TIME)):
        if name in scores:
            values = scores[name].to_numpy()
            found[role] = values if rows is None else values[rows]
    return RowDependence.of(len(next(iter(found.values()))), **found) if found else None


def blocks_of_means(rows: Rows) -> FoundBlocks:
    """Blocks for means over points: runs of time as long as PIT scores or what is averaged depend on each other."""

    def scores() -> Array:
        columns = [rows.columns[name] for name in mean_columns().values() if name in rows.columns]
        averaged = [column for column in columns if np.isfinite(column).all()]
        return np.column_stack([dependence_scores(rows.targets, rows.predictive), *averaged])

    return found_blocks(rows.dependence, scores, rows.targets if rows.predictive.is_discrete else None)


def correlated_rows(
    given: Rows, reading: LocalReading | None = None, embeddings: Array | None = None
) -> Correlation | None:
    """What correlation of rows was found that nobody named: the most certain one, or None.

    What the inputs and the slices explain of the scores is taken off first, so that a fault of the version is not taken
    for it. Rows that are sorted by their target are not looked at in their order. Of more than 250,000 rows, 16 runs of
    neighbours are looked at, 250,000 rows in all.

    Args:
        given: the rows.
        reading: at the rows of ``runs_looked_at``, where there is one.
        embeddings: (n, d), for identical inputs; None where they are too many.
    """
    rows = runs_looked_at(len(given.targets))
    if len(rows) < len(given.targets):
        given = given[rows]
    targets, predictive, keys, labels = given.targets, given.predictive, given.names, given.labels
    scores = dependence_scores(targets, predictive)
    if reading is not None:
        scores -= reading.scores
    for column in labels.columns:
        scores = _without_means(scores, pd.factorize(labels[column])[0] + 1)
    named: dict[str, Array | pd.Series[Any]] = {"key": keys, **{str(name): labels[name] for name in labels.columns}}
    if embeddings is not None:
        named["identical inputs"] = np.unique(embeddings, axis=0, return_inverse=True)[1].reshape(-1)
    groups = {name: codes for name, values in named.items() if (codes := _few_together(values)) is not None}
    looks = correlations(scores, groups=groups, seed=given.seed)
    found = [look for look in looks if look.is_found and not (look.along == "row order" and _is_sorted(targets))]
    return min(found, key=lambda look: (look.p_value, -look.value), default=None)


def runs_looked_at(count: int) -> Array:
    """The numbers of the rows among ``count`` that ``correlated_rows`` looks at: all, or runs of neighbours."""
    if count <= _MOST_ROWS:
        return np.arange(count)
    size = _MOST_ROWS // _RUNS
    starts = np.linspace(0, count - size, _RUNS).astype(np.intp)
    return np.asarray((starts[:, None] + np.arange(size)).ravel())


def _few_together(values: Array | pd.Series[Any]) -> Array | None:
    """Codes of a column that a few rows share each; None of one that all rows differ in, or that makes categories."""
    codes, distinct = pd.factorize(values)
    rows, count = len(codes), len(distinct)
    if (codes < 0).any() or count == rows or count < 10 or rows > LARGEST_GROUP * count:
        return None
    return np.asarray(codes)


def _without_means(scores: Array, codes: Array) -> Array:
    """Scores without their means over the parts that a column makes; as they are where its parts are small."""
    sizes = np.bincount(codes)
    if len(codes) < LARGEST_GROUP * np.count_nonzero(sizes):
        return scores
    sums = np.column_stack([np.bincount(codes, column) for column in scores.T])
    return np.asarray(scores - (sums / np.maximum(sizes, 1)[:, None])[codes])


def _is_sorted(targets: Array) -> bool:
    columns = targets.reshape(len(targets), -1)
    rising = np.mean(np.diff(columns, axis=0) >= 0.0, axis=0)
    falling = np.mean(np.diff(columns, axis=0) <= 0.0, axis=0)
    return bool(np.any(np.maximum(rising, falling) >= _SORTED))


MOST_SEARCHED = 40_000
"""Rows, drawn at random, beyond which more would cost time and find faults too small to matter."""


def searched_rows(count: int, seed: int = 0) -> Array:
    """Which of ``count`` rows segments are looked for in, in random order: 40,000 of more rows."""
    return np.asarray(stream(seed, "halves of weak segments").permutation(count)[:MOST_SEARCHED])


def is_numeric(values: pd.Series[Any]) -> bool:
    """Whether a column holds numbers, rather than truth values or words."""
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


SLICE_VALUES = 30


def slice_groups(values: pd.Series[Any]) -> tuple[Array, Array]:
    """The group of each row by a slice column: its number (n,), and the sorted names of the groups.

    A missing value is a group of its own, and so is one without an end where numbers are cut into tenths. Texts are
    made of groups and not of rows.
    """
    codes: Array
    codes, distinct = pd.factorize(values)
    if len(distinct) > SLICE_VALUES and pd.api.types.is_numeric_dtype(values):
        finite = np.isfinite(values.to_numpy(float, na_value=np.nan))
        cut = pd.qcut(values.where(finite), 10, duplicates="drop")
        codes, distinct = cut.cat.codes.to_numpy(), cut.cat.categories
    elif distinct.dtype.kind == "f" and np.all(np.abs(distinct) < 2**53) and np.all(distinct == np.rint(distinct)):
        distinct = distinct.astype(np.int64)  # whole numbers, of which a missing one makes floats
    named = pd.Series(distinct).astype("string").fillna("missing").str.replace(r"^\s*$", "(empty)", regex=True)
    names = named.to_numpy(dtype=object)
    if len(names) > SLICE_VALUES:
        rows = np.bincount(codes[codes >= 0], minlength=len(names))
        names[np.argsort(-rows, kind="stable")[SLICE_VALUES - 1 :]] = "other"
    # The name at the end is that of missing values, whose code is -1; several groups may have one name.
    every, merged = np.unique(np.append(names, "missing").astype(str), return_inverse=True)
    groups = merged.astype(np.int32)[codes]
    used = np.bincount(groups, minlength=len(every)) > 0
    return (np.cumsum(used, dtype=np.int32) - 1)[groups], every[used]


def tenths(values: Array) -> tuple[Array, list[str], list[float]]:
    """The bin of each of n numbers by tenths of them, the names of the bins, and the edges between one and the next.

    No bin is empty; what is not finite has the last one, "missing".
    """
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values), dtype=np.intp), ["missing"], []
    edges = np.unique(np.quantile(values[known], np.linspace(0.0, 1.0, 11)[1:-1]))
    ends = [end_of_range(edge, float(np.ptp(edges))) for edge in edges.tolist()]
    names = [f"up to {ends[0]}", *(f"{a} to {b}" for a, b in pairwise(ends)), f"{ends[-1]} and more", "missing"]
    found = np.where(known, np.searchsorted(edges, values, side="right"), len(edges) + 1)
    used, codes = np.unique(found, return_inverse=True)
    return codes, [names[k] for k in used], [float(edges[k - 1]) for k in used[1:] if k <= len(edges)]
