"""From what a call is given to rows: which columns say what is near, and which rows can be used."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, mean_one
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data.settings import SampleDesign, SplitSettings
from congruence.tasks.encoders.loading import FeatureEncoder, Moments, statistics
from congruence.tasks.notebook.rows import MemoryRows, MemorySplit
from congruence.tasks.readers.base import on_host, quoted
from congruence.tasks.scores.metrics.registry import is_taken
from congruence.tasks.scores.points import MOST_VALUES
from congruence.tasks.settings.sections import EncoderSettings

MOST_INVALID = 0.01
"""The share of rows that may be left out, as in an evaluation file."""
_LISTED = 3
_FAR_BELOW = 30.0


@dataclass(frozen=True)
class Given:
    """The rows of a call, before anything is made of them: what ``congruence.evaluate`` is given, and two more.

    Attributes:
        embeddings: (n, d) in place of what the columns of X give.
        key: what each row is called, or the name of a column of X; by default its number.
    """

    X: Any
    y: Any
    groups: Any = None
    time: Any = None
    weights: Any = None
    slices: Any = None
    target_name: str | None = None
    unit: str = ""
    name: str = "test"
    missing: str = "leave_out"
    inputs: Sequence[str] | None = None
    embeddings: Array | None = None
    key: Any = None

    @property
    def index(self) -> pd.Index | None:
        """Of the rows of X, where it has one."""
        return self.X.index if isinstance(self.X, pd.DataFrame) else None


def rows_of(given: Given) -> MemoryRows:
    """The rows of a call, checked.

    Raises:
        InvalidInputError: a column, a row or a value that cannot be used, by name and number, with the remedy.
    """
    frame, as_given = _frame(given.X)
    taken: dict[str, str] = {}
    targets, names = _targets(given, frame, taken)
    design = _design(given, frame, taken)
    slices = _slices(given.slices, frame, given.index, targets)
    features = frame.drop(columns=list(taken), errors="ignore")
    if "y" in taken.values():
        as_given = frame.drop(columns=[name for name, role in taken.items() if role == "y"])
    keys = None if given.key is None else _column(given.key, frame, "key")
    notes: list[str] = []
    if given.embeddings is not None:
        if len(given.embeddings) != len(frame):
            raise InvalidInputError(
                f"embeddings: {len(given.embeddings)} rows for a table of {len(frame)}; they must match row by row"
            )
        matrix, used = given.embeddings, [str(name) for name in features]
        columns = [f"embedding[{place}]" for place in range(matrix.shape[1])]
    else:
        asked = features if given.inputs is None else given.inputs
        near = [str(name) for name in ([asked] if isinstance(asked, str) else asked)]
        if not near:
            raise InvalidInputError("inputs: names no column of X; leave it out to take all that can say what is near")
        for name in near:
            _column(name, features, "inputs")
        matrix, used, columns = _numbers(features[near], notes)
    left_out = _left_out(matrix, columns, targets, names, given)
    valid = np.ones(len(frame), dtype=bool)
    valid[list(left_out)] = False
    if valid.sum() < 2:
        raise InvalidInputError(f"X, y: {valid.sum() or 'no'} row can be used; give at least two, better hundreds")
    if np.ptp(targets[valid], axis=0).max() == 0.0:
        raise InvalidInputError(
            f"y: {quoted(names)} is {np.ravel(targets[valid])[0]:g} in every row, so that there is nothing to predict"
        )
    spread = np.atleast_1d(np.std(targets[valid], axis=0))
    large = [name for name, own in zip(names, spread, strict=True) if _FAR_BELOW * own >= spread.max()]
    if len(large) < len(names):
        notes.append(
            f"CCE, CRPS, MAE and RMSE of several targets are distances in their units, which {quoted(large)} decide"
            f"{'s' if len(large) == 1 else ''}: give each in a unit in which all spread alike, where all are to count."
        )
    if left_out:
        are = "is" if len(left_out) == 1 else "are"
        notes.append(f"{len(left_out)} of {len(frame)} rows {are} left out: {_first(left_out)}.")
    if given.embeddings is None and np.all(np.ptp(matrix[valid], axis=0) == 0.0):
        raise InvalidInputError(
            f"X: {quoted(used)}: each has one value in all rows, which does not say which rows are near; add columns "
            "on which the target may depend"
        )
    encoder = _encoder(matrix[valid], columns, given)
    table = features.copy(deep=False)
    for name, values in slices.items():
        table[name] = values
    for place, name in enumerate(names):
        table[name] = targets if targets.ndim == 1 else targets[:, place]
    roles: dict[str, Any] = {role: role for role, values in vars(design).items() if values is not None}
    roles |= {role: name for name, role in taken.items() if role != "y"}
    settings = SplitSettings(
        name=str(given.name) or "test", uri="memory", input=used, input_kind="features", target=names,
        slices=list(slices), model_inputs=[str(name) for name in features], **roles,
    )  # fmt: skip
    x = matrix[valid]
    if given.embeddings is None:
        x = encoder.encode_matrix(np.ascontiguousarray(x, dtype=np.float64))
    split = MemorySplit(settings, table, design, keys)
    return MemoryRows(split, encoder, as_given, valid, x, targets[valid], left_out, tuple(notes))


def _frame(X: Any) -> tuple[pd.DataFrame, Any]:
    """X as a frame whose columns are named by texts, with row numbers for its index; and as a model takes it."""
    if not isinstance(X, pd.DataFrame) and hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.Series):
        X = X.to_frame()
    elif isinstance(X, Mapping) or (isinstance(X, list) and X and isinstance(X[0], Mapping)):
        X = pd.DataFrame(X)
    if isinstance(X, pd.DataFrame):
        names = [str(name) for name in X.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidInputError(f"X: two columns are called {twice!r}; rename one of them")
        frame = X.set_axis(names, axis=1).reset_index(drop=True).infer_objects()
    elif hasattr(X, "toarray"):
        raise InvalidInputError("X: is a sparse matrix; give X.toarray(), or the columns that say which rows are near")
    else:
        kind, X = type(X).__name__, _unmasked(X)
        if X.ndim == 1:
            X = X[:, None]
        if X.ndim != 2:
            found, remedy = (f"has shape {X.shape}", "; flatten each row") if X.ndim else (f"is a {kind}", "")
            raise InvalidInputError(f"X: {found}, expected a frame or a matrix (n, d){remedy}")
        frame = pd.DataFrame(X, columns=[f"x{place}" for place in range(X.shape[1])]).infer_objects()
    if frame.empty:
        raise InvalidInputError(f"X: has shape {frame.shape} and holds no values; give at least two rows and a column")
    return frame, X


def _unmasked(values: Any) -> Array:
    """An array in host memory; what is masked is missing."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    return np.asarray(np.ma.filled(values.astype(np.float64), np.nan) if is_masked else on_host(values))


def _column(values: Any, frame: pd.DataFrame, what: str, index: pd.Index | None = None) -> pd.Series[Any]:
    """A value a row: an array, or the column of X that a text names.

    Raises:
        InvalidInputError: no such column, another length, or the same rows in another order.
    """
    if isinstance(values, str):
        if values not in frame:
            raise InvalidInputError(f"{what}: X has no column {values!r}; it has {quoted(frame.columns)}")
        return frame[values]
    found = values if isinstance(values, pd.Series) else pd.Series(np.asarray(on_host(values)).reshape(-1))
    if len(found) != len(frame):
        raise InvalidInputError(f"{what}: has {len(found)} rows, but X has {len(frame)}; they must match row by row")
    if isinstance(values, pd.Series) and index is not None:
        require_same_order(values.index, index, what)
    return found.reset_index(drop=True)


def require_same_order(found: pd.Index, index: pd.Index, what: str) -> None:
    """Raise InvalidInputError where an index holds the rows of X in another order, or some of them at other places.

    Rows that were numbered from 0 again are taken as they lie.
    """
    if found.equals(index) or len(found) != len(index) or not found.is_unique:
        return
    same, numbers = set(found) == set(index), pd.RangeIndex(len(index))
    if same or (found.isin(index).any() and not found.equals(numbers) and not index.equals(numbers)):
        row = int(np.argmax(found.to_numpy() != index.to_numpy()))
        differs = "the rows of X in another order" if same else "other rows than that of X"
        remedy = (
            "sort it by .loc[X.index]" if same else "give the rows of X, or .to_numpy() where they are in its order"
        )
        raise InvalidInputError(
            f"{what}: its index holds {differs} (row {row} is {str(found[row])!r}, in X {str(index[row])!r}); {remedy}"
        )


def _targets(given: Given, frame: pd.DataFrame, taken: dict[str, str]) -> tuple[Array, list[str]]:
    """The targets, NaN where there is none, and what they are called."""
    y, index = given.y, given.index
    if isinstance(y, Distribution) or hasattr(y, "log_prob"):
        raise InvalidInputError("y: holds predictive distributions, expected targets; the order is (X, y, predicted)")
    if isinstance(y, str):
        columns, names = [_column(y, frame, "y")], [given.target_name or y]
        taken[y] = "y"
    elif isinstance(y, list) and y and all(isinstance(name, str) and name in frame for name in y):
        columns, names = [_column(name, frame, "y") for name in y], list(y)
        taken |= dict.fromkeys(y, "y")
    elif isinstance(y, pd.DataFrame):
        columns = [_column(y.iloc[:, place], frame, "y", index) for place in range(y.shape[1])]
        names = [str(name) for name in y.columns]
    else:
        try:
            found = y if isinstance(y, pd.Series) else _unmasked(y)
        except ValueError as error:  # of parts of various lengths
            said = f"y: a {type(y).__name__} of parts of various lengths, expected one target a row"
            raise InvalidInputError(f"{said}; the order is (X, y, predicted)") from error
        if getattr(found, "ndim", 1) == 2 and found.shape[1] > 1:
            columns = [_column(found[:, place], frame, "y") for place in range(found.shape[1])]
            names = [f"{given.target_name or 'y'} {place + 1}" for place in range(found.shape[1])]
        else:
            columns = [_column(found, frame, "y", index)]
            names = [given.target_name or str(getattr(found, "name", None) or "y")]
    names = [str(name) for name in names]
    for place, (column, name) in enumerate(zip(columns, names, strict=True)):
        if name in frame and name not in taken:
            if np.array_equal(frame[name].to_numpy(), column.to_numpy()):
                raise InvalidInputError(f"X: column {name!r} holds the targets themselves; drop it, or give y={name!r}")
            names[place] = f"{name} (target)"
    values = [_as_numbers(column, f"y: column {name!r}") for column, name in zip(columns, names, strict=True)]
    return (values[0] if len(values) == 1 else np.column_stack(values)), names


def _as_numbers(column: pd.Series[Any], what: str) -> Array:
    """A column as float64, NaN where a value is missing.

    Raises:
        InvalidInputError: a value that is no number, by its row.
    """
    if _is_number(column):
        return np.asarray(column.to_numpy(float, na_value=np.nan), dtype=np.float64)
    found = pd.to_numeric(column, errors="coerce")
    wrong = (found.isna() & column.notna()).to_numpy()
    if wrong.any() or column.dtype.kind in "mMc":
        row = int(np.argmax(wrong))
        raise InvalidInputError(f"{what}: row {row} is {column.iloc[row]!r}, expected a number; convert the column")
    return np.asarray(found, dtype=np.float64)


def _design(given: Given, frame: pd.DataFrame, taken: dict[str, str]) -> SampleDesign:
    """Groups, times and weights; columns of X that are named for them say no longer what is near."""
    found: dict[str, Array] = {}
    for role, what in (("groups", "groups"), ("time", "time"), ("weight", "weights")):
        if (values := getattr(given, what)) is None:
            continue
        column = _column(values, frame, what, given.index)
        if isinstance(values, str):
            taken[values] = role
        missing = column.isna().to_numpy()
        if missing.any():
            raise InvalidInputError(f"{what}: row {int(np.argmax(missing))} is missing; give every row one")
        if role == "groups":
            found[role] = _codes(column)
        elif role == "time":
            found[role] = _times(column)
        else:
            numbers = _as_numbers(column, what)
            mean_one(numbers, len(frame))  # refused by row, where they are no weights
            found[role] = numbers
    return SampleDesign(**found)


def _codes(column: pd.Series[Any]) -> Array:
    """A number for each value, the same as for the same column in a file."""
    if pd.api.types.is_integer_dtype(column):
        whole = np.asarray(column, dtype=np.uint64 if column.dtype.kind == "u" else np.int64)
        bits, is_long = whole.astype(np.float64).view(np.int64), (whole > 2**53) | (whole < -(2**53))
        return np.where(is_long, whole.astype(np.int64, casting="unsafe"), bits)
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64).view(np.int64)
    return pd.util.hash_array(column.astype(str).to_numpy(object), categorize=False).view(np.int64)


def _times(column: pd.Series[Any]) -> Array:
    """Microseconds, or the numbers of the column."""
    if pd.api.types.is_integer_dtype(column):
        return column.to_numpy(np.int64)
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64)
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    with warnings.catch_warnings(action="ignore"):  # of what is no time, we say it
        moments = pd.to_datetime(column, utc=True, errors="coerce")
    unread = moments.isna().to_numpy()
    if unread.any():
        row = int(np.argmax(unread))
        raise InvalidInputError(f"time: row {row} is {str(column.iloc[row])[:40]!r}, no time such as 2024-05-31T12:00")
    return moments.dt.tz_localize(None).to_numpy().astype("datetime64[us]").astype(np.int64)


def _slices(asked: Any, frame: pd.DataFrame, index: pd.Index | None, targets: Array) -> dict[str, Any]:
    """The columns by whose values parts of the rows are reported: none by the targets, where a right version is off."""
    if asked is None:
        return {}
    if isinstance(asked, str):
        asked = [asked]
    elif not isinstance(asked, (pd.Series, pd.DataFrame)) and hasattr(asked, "to_pandas"):
        asked = asked.to_pandas()
    if isinstance(asked, np.ndarray):
        asked = pd.Series(asked)
    if isinstance(asked, pd.Series):
        asked = asked.to_frame(asked.name or "slice")
    if isinstance(asked, pd.DataFrame):
        asked = {str(name): asked[name] for name in asked}
    named = {str(name): name for name in asked} if not isinstance(asked, Mapping) else dict(asked)
    found = {}
    for name, values in named.items():
        if is_taken(name):
            raise InvalidInputError(f"slices: {name!r} is the name of a column of scores; rename it in the data")
        found[str(name)] = column = _column(values, frame, f"slices: {name!r}", index)
        of_numbers = np.atleast_2d(targets.T) if _is_number(column) else ()
        if any(np.array_equal(column, each, equal_nan=True) for each in of_numbers):
            raise InvalidInputError(f"slices: {name!r} is the target; name another column, or leave it out")
    return found


def _is_number(column: pd.Series[Any]) -> bool:
    """Whether a column holds real numbers or truth values."""
    is_number = pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)
    return bool(is_number) and column.dtype.kind != "c"


def _numbers(features: pd.DataFrame, notes: list[str]) -> tuple[Array, list[str], list[str]]:
    """The matrix that says what is near, (n, d), NaN where a value is missing; the columns of X in it; and its own.

    Numbers and truth values are taken as they are; a column of few words becomes one of 0 and 1 for each; dates and
    columns of many words say nothing that a distance could use.
    """
    parts, used, own, words = [], [], [], []
    left: list[str] = []
    mixed: list[str] = []
    for name in map(str, features.columns):
        column = features[name]
        if _is_number(column):
            parts.append(np.asarray(column.to_numpy(float, na_value=np.nan), dtype=np.float64)[:, None])
            own.append(name)
        elif column.dtype == object and (lists := [v for v in column if isinstance(v, (list, dict, set, np.ndarray))]):
            mixed.append(f"{name!r} holds values of the type {type(lists[0]).__name__}")
            continue
        elif column.dtype.kind not in "mM" and column.nunique() <= MOST_VALUES:
            values = sorted(column.dropna().astype(str).unique())
            coded = (column.astype(str).to_numpy(object)[:, None] == np.array(values, dtype=object)).astype(np.float64)
            coded[column.isna().to_numpy()] = np.nan
            parts.append(coded)
            own += [name] * len(values)
            words.append(name)
        else:
            bad = _no_numbers(column)
            (left if bad is None else mixed).append(bad or name)
            continue
        used.append(name)
    if words:
        notes.append(f"Each value of {quoted(words)} is a column of 0 and 1.")
    if left:
        notes.append(
            f"{quoted(left)} {'say' if len(left) > 1 else 'says'} nothing of which rows are near: dates, or more than "
            f"{MOST_VALUES} words; give the parts that matter, such as hour and weekday."
        )
    if mixed:
        notes.append(f"{'; '.join(mixed)}: convert the column, which says nothing of which rows are near as it is.")
    if not parts:
        holds = f"{quoted(features.columns)} {'holds' if features.shape[1] == 1 else 'hold'}"
        raise InvalidInputError(
            f"X: no column says which rows are near; {holds} dates, or more than {MOST_VALUES} words each; add columns "
            "of numbers"
        )
    return np.concatenate(parts, axis=1), used, own


def _no_numbers(column: pd.Series[Any]) -> str | None:
    """Which values of a column that holds numbers otherwise are none; None of dates and of texts."""
    there = column.notna().to_numpy()
    if column.dtype.kind in "mM":
        return None
    wrong = there & pd.to_numeric(column, errors="coerce").isna().to_numpy()
    if wrong.sum() > 0.5 * there.sum():
        return None
    if not wrong.any():
        kind = type(column[there].iloc[0])
        return f"{column.name!r} holds numbers written as {'text' if kind is str else kind.__name__}"
    row, many = int(np.argmax(wrong)), int(wrong.sum())
    said = f"row {row} is {column.iloc[row]!r} ({many:,} of {len(column):,} are none)"
    return f"{column.name!r} holds numbers, but {said}"


def _left_out(
    matrix: Array, columns: Sequence[str], targets: Array, names: Sequence[str], given: Given
) -> dict[int, str]:
    """The rows that cannot be used, and why: as in an evaluation file, up to 1 % of them.

    Raises:
        InvalidInputError: more than that.
    """
    usable = ~np.isinf(matrix) if given.missing != "leave_out" else np.isfinite(matrix)
    goals = np.isfinite(targets if targets.ndim == 2 else targets[:, None])
    found: dict[int, str] = {}
    for row in np.flatnonzero(~usable.all(axis=1) | ~goals.all(axis=1)).tolist():
        if not goals[row].all():
            place = int(np.argmin(goals[row]))
            value = targets[row] if targets.ndim == 1 else targets[row, place]
            found[row] = f"target {names[place]!r} is {value}"
        else:
            place = int(np.argmin(usable[row]))
            value = matrix[row, place]
            found[row] = f"feature {columns[place]!r} is {'missing' if np.isnan(value) else value}"
    if len(found) > MOST_INVALID * len(matrix):
        remedy = "repair or drop these rows"
        if given.missing == "leave_out" and np.isnan(matrix[goals.all(axis=1)]).any():
            remedy += ", or, where the model takes missing values itself, give missing='mean' (or 'indicator')"
        raise InvalidInputError(
            f"X, y: {len(found)} of {len(matrix)} rows cannot be used, more than {100 * MOST_INVALID:g} %: "
            f"{_first(found)}; {remedy}"
        )
    return found


def _encoder(matrix: Array, columns: Sequence[str], given: Given) -> FeatureEncoder:
    if given.missing not in ("leave_out", "mean", "indicator"):
        raise InvalidInputError(f"missing: is {given.missing!r}; give 'leave_out', 'mean' or 'indicator'")
    if given.embeddings is not None:
        return FeatureEncoder(EncoderSettings(kind="identity", standardise=False, dimension=matrix.shape[1]))
    try:
        mean, scale = statistics(Moments.of(np.ascontiguousarray(matrix, dtype=np.float64)))
    except InvalidInputError as error:
        said = re.sub(r"feature (\d+)", lambda found: f"column {columns[int(found[1])]!r}", str(error))
        raise InvalidInputError(f"X: {said}") from error
    return FeatureEncoder(EncoderSettings(kind="identity", mean=mean, scale=scale, missing=given.missing))  # type: ignore[arg-type]


def _first(left_out: Mapping[int, str]) -> str:
    shown = [f"row {row}: {why}" for row, why in list(left_out.items())[:_LISTED]]
    return "; ".join(shown) + (", ..." if len(left_out) > _LISTED else "")
