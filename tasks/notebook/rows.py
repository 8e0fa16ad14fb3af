"""Rows in memory as scores and the report read those of a split, and what is predicted for them.

Predictions are given as ours, as numbers, as a library's distributions or as a fitted model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, MultivariateNormal, Normal, Quantiles, Samples
from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.kernels.rng import hashed_keys
from congruence.tasks.contract.reading import spec_distribution
from congruence.tasks.data.settings import SampleDesign, Shard, SplitSettings
from congruence.tasks.encoders.loading import FeatureEncoder
from congruence.tasks.readers.base import UnreadableOutputError, as_array, is_of, kinds
from congruence.tasks.readers.read import final, known, output_of, read_output


class MemorySplit:
    """Labelled rows in memory, as scores read a split (``tasks.data.split.Split``)."""

    key_column = "row"
    period, dates = "", ()

    def __init__(
        self, settings: SplitSettings, table: pd.DataFrame, design: SampleDesign, keys: pd.Series[Any] | None = None
    ) -> None:
        self.settings, self.name, self.rows = settings, settings.name, len(table)
        self._table, self._design = table, design
        self.keys = pd.Series(np.arange(len(table)).astype(str), dtype=object) if keys is None else keys

    @cached_property
    def digest(self) -> str:
        """Of all that the rows hold."""
        found = hashlib.sha256(repr([str(name) for name in self._table]).encode())
        for name in self._table:
            column = self._table[name]
            plain = column if column.dtype.kind in "biufM" else column.map(repr).astype(object)
            found.update(pd.util.hash_pandas_object(plain, index=False).to_numpy().tobytes())
        for values in vars(self._design).values():
            found.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
        return found.hexdigest()

    def frame(self, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """These columns of some rows."""
        table = self._table.iloc[shard.start : shard.stop]
        return table if columns is None else table[list(columns)]

    def key_values(self, shard: Shard) -> pd.Series[Any]:
        """What some rows are called."""
        return self.keys.iloc[shard.start : shard.stop]

    def design(self) -> SampleDesign:
        """Groups, times and weights of all rows."""
        return self._design


@dataclass(frozen=True)
class MemoryRows:
    """The rows that are evaluated (``tasks.scores.points.ScoredRows``): the ``valid`` ones of a split in memory.

    A model is asked with ``inputs``, which are X as it was given, without the targets. ``notes`` say what was done to
    columns and rows, ``predictions`` are those of versions at the valid rows, by label.
    """

    split: MemorySplit
    encoder: FeatureEncoder
    inputs: Any = field(repr=False)
    valid: Array = field(repr=False)
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    left_out: Mapping[int, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    predictions: Mapping[str, Distribution] = field(default_factory=dict, repr=False)

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is left out."""
        return dict(self.left_out)

    def embeddings(self) -> Array:
        """Of the valid rows, (v, d)."""
        return self.x

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, (k, d)."""
        return np.asarray(self.x[chosen])

    def targets(self) -> Array:
        """Of the valid rows, (v,) or (v, q)."""
        return self.y

    def all_predictive(self, version: str) -> Distribution:
        """What a version predicts at the valid rows."""
        return self.predictions[version]

    def keys(self) -> Array:
        """Numbers that stand for what the valid rows are called, by which the pipeline draws for them, too."""
        return hashed_keys(self.split.keys.to_numpy()[self.valid])

    def design(self) -> SampleDesign:
        """Groups, times and weights of the valid rows."""
        return self.split.design().rows(self.valid)


ONE = "model"
"""What one prediction is called that nobody named."""
_WAYS = (
    "a distribution of congruence.kernels such as Normal(mean, std), a pair (mean, std), quantiles with levels=[...], "
    "draws (n, k), a fitted model, or a distribution of scipy, torch, skpro or NGBoost"
)


def named(predicted: Any, rows: int) -> dict[str, Any]:
    """What was given, by the names that it has: a fitted model without one by its class, else ``model``.

    Raises:
        InvalidInputError: an empty mapping, or a name that is no text.
    """
    if not isinstance(predicted, Mapping) or _is_output(predicted, rows):
        return {type(final(predicted)).__name__ if _is_model(predicted) else ONE: predicted}
    if not predicted:
        raise InvalidInputError("predicted: names nothing; give {'name': prediction, ...}")
    for name in predicted:
        if not isinstance(name, str) or not name:
            more = "; of quantiles the levels are shares: {0.05: values, ...}" if isinstance(name, (int, float)) else ""
            if isinstance(name, float) and _is_model(predicted[name]):
                more = f"; of quantiles give what the models predict: {{{name}: model.predict(X), ...}}"
            raise InvalidInputError(f"predicted: {name!r} is no name; give {{'name': prediction, ...}}{more}")
    return dict(predicted)


def _is_output(given: Mapping[Any, Any], rows: int) -> bool:
    """Whether a mapping holds the columns of one prediction, such as mean and std, rather than several predictions."""
    for value in given.values():
        is_column = callable(getattr(value, "__array__", None)) or isinstance(value, (list, tuple))
        if not is_column or len(value) != rows:
            return False
    try:
        read_output(given, rows)
    except UnreadableOutputError:
        return False
    return True


def _is_model(predicted: Any) -> bool:
    if isinstance(predicted, type):
        raise InvalidInputError(f"predicted: {predicted.__name__} is a class; give a fitted model, an object of it")
    if isinstance(predicted, Distribution) or "RegressionDistn" in kinds(predicted):  # NGBoost's have a predict, too
        return False
    asked = any(callable(getattr(predicted, name, None)) for name in ("predict", "predict_proba", "pred_dist"))
    return asked or is_of(predicted, "torch", "Module")


def distribution_of(
    name: str, predicted: Any, rows: MemoryRows, *, levels: Sequence[float] | None = None, method: str | None = None
) -> Distribution:
    """The predictive distributions of the rows that are evaluated, of what was given for all rows of the call.

    A fitted model is asked for those that are evaluated.

    Raises:
        InvalidInputError: it cannot be read, or has another number of rows; says what was found and what to give.
    """
    try:
        if _is_model(predicted):
            return model_distribution(predicted, _asked(predicted, rows), levels=levels, method=method)
        found = whole_distribution(predicted, rows.split.rows, levels=levels)
    except CongruenceError as error:
        said = str(error).removeprefix(f"{name}: ")
        raise InvalidInputError(f"predicted: {name}: {said}") from error
    return found if rows.valid.all() else found[np.flatnonzero(rows.valid)]


def _asked(model: Any, rows: MemoryRows) -> Any:
    """X at the rows that are evaluated; of a frame only the columns that scikit-learn's model was fitted on."""
    if not isinstance(rows.inputs, pd.DataFrame):
        return rows.inputs[rows.valid]
    fitted = list(getattr(model, "feature_names_in_", ()))
    inputs = rows.inputs[fitted] if fitted and set(fitted) <= set(rows.inputs) else rows.inputs
    return inputs.loc[rows.valid]


def whole_distribution(predicted: Any, rows: int, *, levels: Sequence[float] | None = None) -> Distribution:
    """What a prediction of ``rows`` rows holds.

    Raises:
        InvalidInputError: it cannot be read, or has another number of rows.
    """
    found = predicted if isinstance(predicted, Distribution) else _read(predicted, rows, levels)
    if len(found) != rows:
        raise InvalidInputError(f"{len(found)} distributions for the {rows} rows of X; give one a row")
    return found


def model_distribution(
    model: Any, inputs: Any, *, levels: Sequence[float] | None = None, method: str | None = None
) -> Distribution:
    """What a fitted model predicts for inputs.

    Raises:
        InvalidInputError: it answers with no distribution.
    """
    if method is None and known(model) is None and not hasattr(model, "predict"):
        method = "pred_dist" if hasattr(model, "pred_dist") else "predict_proba"
    try:
        answer = output_of(model, inputs, method, levels)
    except UnreadableOutputError as error:
        kind, said = type(model).__name__, str(error).partition("; no family is known")
        more = f", which is no distribution; give method= with the method of {kind} that answers with one, or {_WAYS}"
        raise InvalidInputError(f"{kind}: {said[0]}{more if said[1] else ''}") from error
    except CongruenceError:
        raise
    except Exception as error:  # its own
        failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InvalidInputError(
            f"{type(model).__name__}: asked with X it failed with {failed}; give X the columns that the model takes "
            "(inputs= names those that say which rows are near), or predictions"
        ) from error
    return spec_distribution(answer, len(inputs))


def _read(predicted: Any, rows: int, levels: Sequence[float] | None) -> Distribution:
    if callable(getattr(predicted, "to_pandas", None)):  # NGBoost's laws have every attribute, as None
        predicted = predicted.to_pandas()  # of Arrow and Polars
    if isinstance(predicted, tuple if rows == 2 else (tuple, list)) and len(predicted) == 2:
        return _pair(predicted, rows)
    if levels is None and (matrix := _matrix(predicted)) is not None:
        return _numbers(matrix, rows)
    if levels is not None and not isinstance(predicted, Mapping):
        matrix = _matrix(predicted.to_numpy() if isinstance(predicted, pd.DataFrame) else predicted)
        if matrix is not None:
            return _quantiles(matrix, rows, levels)
    try:
        return spec_distribution(read_output(predicted, rows, levels=levels), rows)
    except UnreadableOutputError as error:
        said, no_family, _ = str(error).partition("; no family is known")
        if no_family:
            ways = _WAYS
            if hasattr(predicted, "to_numpy"):
                ways = "levels=[...] where its columns are quantiles, predicted.to_numpy() where they are draws; or "
                ways += _WAYS
            said = f"{said.replace('its output', 'it')}; give {ways}"
        raise InvalidInputError(said) from error


def _pair(predicted: Any, rows: int) -> Distribution:
    """Mean and standard deviation, each a number a row or one for all; of vectors (n, q), their parts independent."""
    mean, std = (_plain(value, what) for what, value in zip(("mean", "std"), predicted, strict=True))
    of_vectors = mean.ndim == 2 and len(mean) == rows
    for what, values in (("mean", mean), ("std", std)):
        if values.shape not in ((), (rows,)) and not (of_vectors and values.shape == mean.shape):
            raise InvalidInputError(
                f"(mean, std): {what} has shape {values.shape}, expected one value for each of {rows} rows"
            )
    if of_vectors:
        return MultivariateNormal(mean, np.broadcast_to(std if std.ndim != 1 else std[:, None], mean.shape).copy())
    return Normal(np.broadcast_to(mean, (rows,)).copy(), np.broadcast_to(std, (rows,)).copy())


def _plain(value: Any, what: str) -> Array:
    try:
        return as_array(value)
    except UnreadableOutputError as error:
        raise InvalidInputError(f"(mean, std): {what}: {error}") from error


def _matrix(predicted: Any) -> Array | None:
    """A plain array of numbers; frames say by their columns what they hold.

    Raises:
        InvalidInputError: an array of which a value is no number.
    """
    is_tensor = type(predicted).__module__.split(".")[0] in ("torch", "jax", "jaxlib") and hasattr(predicted, "ndim")
    if hasattr(predicted, "columns") or not (is_tensor or isinstance(predicted, (np.ndarray, list, tuple, pd.Series))):
        return None
    try:
        return np.asarray(as_array(predicted))
    except (TypeError, ValueError) as error:
        if isinstance(predicted, np.ndarray):
            raise InvalidInputError(str(error)) from error
        return None  # a list of distributions, for example


def _numbers(values: Array, rows: int) -> Distribution:
    """Draws (n, k) or (n, k, q).

    Raises:
        InvalidInputError: one number a row, draws of another number of rows, or what looks like mean and spread, ends
            of intervals or quantiles.
    """
    if values.ndim == 1:
        raise InvalidInputError(
            "one number a row is a point forecast, which does not say how far it may be off; give (mean, std), "
            "quantiles or draws"
        )
    if len(values) != rows:
        is_turned = values.ndim == 2 and values.shape[1] == rows
        turned = f"; its second axis has {rows}: give predicted.T" if is_turned else ""
        raise InvalidInputError(f"an array of shape {values.shape} for {rows} rows{turned}")
    if values.shape[1] == 2:
        raise InvalidInputError(
            f"an array of shape {values.shape}: give (array[:, 0], array[:, 1]) where its columns are mean and std, "
            "levels=[0.05, 0.95] where they are the ends of a 90 % interval, or Samples(array) of congruence.kernels "
            "where they are two draws"
        )
    if values.ndim == 2 and (np.diff(values, axis=1) >= 0.0).all():
        raise InvalidInputError(
            f"an array of shape {values.shape} whose rows increase: give levels=[...] where these are quantiles, or "
            "Samples(array) of congruence.kernels where they are draws in order"
        )
    return Samples(values)


def _quantiles(values: Array, rows: int, levels: Sequence[float]) -> Distribution:
    given = np.asarray(levels, dtype=np.float64)
    if values.shape != (rows, len(given)):
        raise InvalidInputError(f"quantiles of shape {values.shape} for {rows} rows and {len(given)} levels")
    order = np.argsort(given)
    return Quantiles.rearranged(given[order], values[:, order], "normal")
