"""From whatever ``predict`` returns to predictive distributions by named columns, and from distributions to columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Mixture, Quantiles
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.quantiles import TAILS
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.readers.base import Spec, UnreadableOutputError, columns_of, on_host, quoted
from congruence.tasks.readers.columns import told_by
from congruence.tasks.readers.read import read_output
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.settings.sections import AUTO, SHARED, PredictionSettings, families

_TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "sqrt": np.sqrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "softplus": lambda values: np.logaddexp(0.0, values),
    "softmax": lambda values: scipy.special.softmax(values, axis=1),
}


def read_distribution(output: Any, settings: PredictionSettings, rows: int, *, start: int = 0) -> Distribution:
    """The predictive distributions of ``rows`` rows that the output of a model describes.

    The output of a recalibrated version may hold its parent's laws and a map (see ``score_map_columns``). Of family
    "auto" the output may be any object that ``congruence.tasks.readers`` reads. Errors count rows from ``start``.

    Raises:
        ContractError: a column is missing, has another shape, or holds a value outside its parameter's domain.
    """
    if isinstance(output, Spec):
        return spec_distribution(output, rows, start, settings)
    if settings.family == AUTO:
        try:
            found = read_output(output, rows, levels=settings.levels)
        except UnreadableOutputError as error:
            raise ContractError(str(error)) from error
        return spec_distribution(found, rows, start, settings)
    if settings.draws_axis == 0:
        output = _rows_first(output)
    return _read(output_columns(output, rows), settings, rows, start)


def spec_distribution(
    spec: Spec, rows: int, start: int = 0, settings: PredictionSettings | None = None, origin: str = ""
) -> Distribution:
    """The distribution that was read from a model's own object, or from columns (``origin``, in words for errors).

    Raises:
        ContractError: another number of rows, or a value outside its parameter's domain.
    """
    try:
        found = _distribution(spec, settings or PredictionSettings())
    except InvalidInputError as error:
        offset = f"; rows are counted from row {start} of the split" if start else ""
        raise ContractError(f"{error} ({origin or f'read as {spec.family}'}{offset})") from error
    if len(found) != rows:
        raise ContractError(f"the model returned {len(found)} distributions for {rows} rows; it must return one each")
    return found


def _distribution(spec: Spec, settings: PredictionSettings) -> Distribution:
    if spec.family == "mixture":
        return Mixture(spec.parameters["weights"], [_distribution(part, settings) for part in spec.components])
    if spec.family != "quantiles":
        return families()[spec.family](**spec.parameters)
    make = Quantiles if settings.crossing == "refuse" else Quantiles.rearranged
    try:
        return make(spec.parameters["levels"], spec.parameters["values"], settings.tails or "normal")
    except InvalidInputError as error:
        if settings.crossing != "refuse" or "cross" not in str(error):
            raise
        raise InvalidInputError(f"{error}; or leave out predictions.crossing, and they are sorted") from error


def _rows_first(output: Any) -> Any:
    """Arrays of draws (draws, rows) as (rows, draws), also where they are in a mapping."""
    if isinstance(output, Mapping):
        return {name: _rows_first(values) for name, values in output.items()}
    array = np.asarray(on_host(output))
    return np.moveaxis(array, 0, 1) if array.ndim >= 2 else array


def _read(columns: dict[str, Array], settings: PredictionSettings, rows: int, start: int) -> Distribution:
    if is_recalibrated(columns):
        own = {name.removeprefix(UNCORRECTED): found for name, found in columns.items() if name.startswith(UNCORRECTED)}
        base = _read(own, settings, rows, start)
        try:
            return recalibrated(base, read_score_map(columns, start))
        except InvalidInputError as error:
            raise ContractError(f"{error} (from the output columns recalibration_...)") from error
    parameters: dict[str, Array] = {}
    sources: dict[str, str] = {}
    for name in settings.parameters:
        if _is_left_out(name, settings, columns):
            continue
        values, sources[name] = _parameter(name, settings, columns, rows, start)
        parameters[name] = _transformed(values, name, settings, sources[name], start)
    origin = ", ".join(f"{name} from {source}" for name, source in sources.items())
    return spec_distribution(_spec(settings, parameters), rows, start, settings, origin)


def describe_distribution(predictive: Distribution) -> PredictionSettings:
    """The settings with which ``read_distribution`` reads the columns of ``distribution_columns`` back."""
    if predictive.mixture is not None:
        return PredictionSettings(family="mixture", component=predictive.mixture[1][0].family)
    family = predictive.family
    values = predictive.parameters()
    shared = {name: values[name].tolist() for name in SHARED.values() if name in values and values[name].ndim == 1}
    tails = TAILS[int(values["tails"][0])] if "tails" in values else None
    return PredictionSettings(family=family, tails=tails, **shared)


def distribution_columns(predictive: Distribution) -> pd.DataFrame:
    """The parameters of ``predictive`` as columns that bear their names; matrices as one array-valued column."""
    if predictive.mixture is not None:
        weights, components = predictive.mixture
        parts = [component.parameters() for component in components]
        matrices = {"weights": np.broadcast_to(weights, (len(predictive), len(parts)))}
        matrices |= {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
        return pd.DataFrame(
            {f"{name}_{k}": matrix[:, k] for name, matrix in matrices.items() for k in range(len(parts))}
        )
    names = describe_distribution(predictive).parameters
    arrays = {name: np.asarray(predictive.parameters()[name]) for name in names}
    arrays = {name: values if values.ndim else np.full(len(predictive), values) for name, values in arrays.items()}
    return as_frame(arrays)


def _parameter(
    name: str, settings: PredictionSettings, columns: dict[str, Array], rows: int, start: int
) -> tuple[Array, str]:
    where = _required_columns(name, settings, columns)
    if where is None:
        constant = settings.columns[name]
        return np.full(rows, constant, dtype=np.float64), f"the constant {constant}"
    parts = [numeric(columns[column], column, start) for column in where]
    if len(where) == 1:
        return parts[0], f"column {where[0]!r}"
    for column, part in zip(where, parts, strict=True):
        if part.ndim != 1:
            raise ContractError(
                f"output column {column!r} holds arrays of shape {part.shape[1:]}, but {name} is made of {len(where)} "
                "columns of numbers; name one array column or list columns of numbers"
            )
    return np.stack(parts, axis=1), f"columns {where[0]!r} to {where[-1]!r}"


def parameter_columns(name: str, settings: PredictionSettings, columns: Collection[str]) -> list[str] | None:
    """The output columns that hold a parameter, in their order; None where it is a constant of the settings."""
    where = settings.columns.get(name)
    if isinstance(where, (int, float)):
        return None
    if where is not None:
        return where if isinstance(where, list) else [where]
    if name in columns:
        return [name]
    numbered = sorted(
        (int(match[1]), column) for column in columns if (match := re.fullmatch(rf"{re.escape(name)}_(\d+)", column))
    )
    if numbered:
        return [column for _, column in numbered]
    if settings.family in ("samples", "quantiles"):
        return list(columns)
    unnamed = list(columns) == [str(index) for index in range(len(settings.parameters))]
    if unnamed and settings.family != "mixture":  # a bare matrix: the parameters in the order of the family
        return [str(settings.parameters.index(name))]
    return []


def _required_columns(name: str, settings: PredictionSettings, columns: Collection[str]) -> list[str] | None:
    """The same, where all of them are there.

    Raises:
        ContractError: one is not.
    """
    found = parameter_columns(name, settings, columns)
    absent = [column for column in found or () if column not in columns]
    if not absent and found != []:
        return found
    raise ContractError(
        f"output column {(absent[0] if absent else name)!r} for parameter {name!r} is missing; the output has "
        f"{quoted(columns)}; name the right column under predictions.columns.{name} in the evaluation file, or as "
        f"columns={{{name!r}: ...}} where it is logged"
    )


def _is_left_out(name: str, settings: PredictionSettings, columns: Collection[str]) -> bool:
    """A histogram may be without tails."""
    return name == "tail_share" and name not in settings.columns and name not in columns


def columns_of_predictions(names: Sequence[str]) -> list[str]:
    """Those of a table's columns whose names tell a distribution; none where no names do.

    Raises:
        ContractError: they are the quantiles of several models.
    """
    try:
        return [names[place] for place in told_by(list(names))[1]]
    except UnreadableOutputError as error:
        raise ContractError(
            f"{str(error).partition(';')[0]}; put their rows below each other, with a column that says the version, or "
            "name the columns of one in the file, under predictions: family: quantiles, levels, columns: {values: ...}"
        ) from error


def output_columns_among(settings: PredictionSettings, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that hold the output, where a table has other columns as well.

    Raises:
        ContractError: there is none for a parameter; or, of family "auto", names that do not tell a distribution.
    """
    if settings.family == AUTO:
        spelled = columns_of_predictions(names)
        if spelled:
            return spelled
        raise ContractError(
            f"no columns are called as those of a distribution (mean and std, q0.1 and q0.9, draw_0, draw_1 "
            f"and so on); there are {', '.join(map(repr, names))}; say how they are read, for example family: normal "
            "and columns: {loc: ..., scale: ...}"
        )
    asked = [name for name in settings.parameters if not _is_left_out(name, settings, names)]
    found = [column for name in asked for column in _required_columns(name, settings, names) or ()]
    return list(dict.fromkeys(found))


def _transformed(values: Array, name: str, settings: PredictionSettings, source: str, start: int) -> Array:
    transform = settings.transforms.get(name)
    if transform is None:
        return values
    if transform == "softmax" and values.ndim != 2:
        raise ContractError(f"{name} from {source}: softmax needs a matrix (n, K), got shape {values.shape}")
    with np.errstate(all="ignore"):  # what overflows or is undefined is reported below, with its row
        result = np.asarray(_TRANSFORMS[transform](values))
    finite = np.isfinite(result).reshape(len(result), -1).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ContractError(f"{name} from {source}: {transform} of {values[row]} in row {start + row} is not finite")
    return result


def _spec(settings: PredictionSettings, parameters: dict[str, Array]) -> Spec:
    """The parameters that settings found in columns, in the shapes that the family takes."""
    if settings.component is not None:
        matrices = {name: _matrix(values, name) for name, values in parameters.items()}
        weights = matrices.pop("weights")
        count = weights.shape[1]
        for name, matrix in matrices.items():
            if matrix.shape[1] not in (1, count):
                raise ContractError(f"{name} has {matrix.shape[1]} components, but weights has {count}")
            matrices[name] = np.broadcast_to(matrix, (len(matrix), count))
        parts = [{name: matrix[:, k] for name, matrix in matrices.items()} for k in range(count)]
        return Spec("mixture", {"weights": weights}, tuple(Spec(settings.component, part) for part in parts))
    if settings.levels is not None:
        values = _matrix(parameters["values"], "values")
        if values.shape[1] != len(settings.levels):
            raise ContractError(
                f"the output has {values.shape[1]} quantiles, but {len(settings.levels)} levels are given"
            )
        parameters = {"values": values}
    elif settings.family == "samples":
        values = parameters["values"]
        parameters = {"values": values if values.ndim > 1 else values[:, None]}
    elif "tail_share" in parameters:
        parameters = {**parameters, "tail_share": np.unique(parameters["tail_share"])[-1]}
    shared = {name: np.asarray(values) for name, values in settings.shared.items()}
    return Spec(settings.family, {**shared, **parameters})


def _matrix(values: Array, name: str) -> Array:
    if values.ndim > 2:
        raise ContractError(f"{name} has shape {values.shape}, expected (n, K)")
    return values if values.ndim == 2 else values[:, None]


def output_columns(output: Any, rows: int) -> dict[str, Array]:
    """The columns of a DataFrame, Series, dict of arrays, array, tensor or list, each of ``rows`` rows.

    The columns of an unnamed matrix are "0", "1", ...; values stay as they are until ``numeric`` reads them.

    Raises:
        ContractError: another type, repeated names, or another number of rows.
    """
    try:
        columns: dict[str, Array] = columns_of(output)
    except TypeError as error:
        raise ContractError(str(error)) from error
    if not columns:
        raise ContractError("the output has no columns")
    for name, values in columns.items():
        if values.ndim == 0 or len(values) != rows:
            raise ContractError(
                f"output column {name!r} has shape {values.shape} for {rows} input rows; predict must return one row "
                "for every input row, in their order"
            )
    return columns


def numeric(values: Array, name: str, start: int = 0) -> Array:
    """A column as float64 without NaN: (n,), or (n, k, ...) where each cell holds an array; rows count from ``start``.

    Raises:
        ContractError: a cell is missing, not a number, NaN, or of another length than the first.
    """
    if values.dtype.kind == "O":
        values = _from_objects(values, name, start)
    if values.dtype.kind not in "biuf":
        raise ContractError(f"output column {name!r} holds {values.dtype} values, expected numbers")
    values = values.astype(np.float64)
    known = ~np.isnan(values).reshape(len(values), -1).any(axis=1)
    if not known.all():
        row = int(np.argmin(known))
        raise ContractError(
            f"output column {name!r}: row {start + row} is {values[row]} ({int(np.sum(~known))} of {len(values)} rows "
            "are); the model must return a distribution for every valid input"
        )
    return values


def as_frame(arrays: Mapping[str, Array]) -> pd.DataFrame:
    """Arrays of one length as columns by their names; a matrix as one column of arrays."""
    return pd.DataFrame({name: values if values.ndim == 1 else list(values) for name, values in arrays.items()})


def _from_objects(values: Array, name: str, start: int) -> Array:
    cells = []
    for row, cell in enumerate(values):
        try:
            cells.append(np.asarray(cell, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"output column {name!r}: row {start + row} is {cell_in_words(cell)}, expected a number or an array of "
                "numbers"
            ) from error
        if cells[-1].shape != cells[0].shape:
            raise ContractError(
                f"output column {name!r}: row {start + row} has shape {cells[-1].shape}, but row {start} has "
                f"{cells[0].shape}; every row needs the same number of values"
            )
    return np.stack(cells)


def cell_in_words(cell: object) -> str:
    """A cell as a message shows it: at most 60 letters."""
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


UNCORRECTED = "uncorrected_"
SHIFT, FACTOR, SHARE = "recalibration_shift", "recalibration_factor", "recalibration_share_"


def is_recalibrated(columns: Mapping[str, Array]) -> bool:
    """Whether these are the columns of a law and of the map that it is read through."""
    return SHIFT in columns and FACTOR in columns


def score_map_columns(score_map: NormalScoreMap, *, with_shape: bool) -> dict[str, Array]:
    """The map as columns, one row each."""
    columns = {SHIFT: score_map.shift, FACTOR: score_map.factor}
    if with_shape:
        inner = range(1, len(score_map.levels) - 1)
        columns |= {f"{SHARE}{float(score_map.levels[k])!r}": score_map.shares[:, k] for k in inner}
    return columns


def read_score_map(columns: Mapping[str, Array], start: int = 0) -> NormalScoreMap:
    """The map that ``score_map_columns`` spelled.

    Raises:
        ContractError, InvalidInputError: values that are no map, by column and row.
    """
    shift, factor = (numeric(columns[name], name, start) for name in (SHIFT, FACTOR))
    names = sorted((name for name in columns if name.startswith(SHARE)), key=_level)
    if not names:
        return NormalScoreMap.affine(shift, factor)
    inner = np.column_stack([numeric(columns[name], name, start) for name in names])
    ends = np.zeros((len(inner), 1))
    levels = np.array([0.0, *(_level(name) for name in names), 1.0])
    return NormalScoreMap(shift, factor, levels, np.concatenate([ends, inner, ends + 1.0], axis=1))


def _level(name: str) -> float:
    return float(name.removeprefix(SHARE))
