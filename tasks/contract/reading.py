"""From output columns to predictive distributions, and from distributions back to columns.

A count over an exposure e (insured years, kilometres) of a rate r has the mean e r: the exposure multiplies the mean of
a distribution of counts. The dispersion of a negative binomial and the inflation of zeros stay: a policy's own rate is
gamma about the predicted one, and which policies never claim is no matter of time.
"""

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
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.contract.columns import (
    as_frame,
    is_recalibrated,
    numeric,
    output_columns,
    read_score_map,
    uncorrected,
)
from congruence.tasks.contract.settings import (
    AUTO,
    RATES,
    SHARED,
    PredictionSettings,
    families,
)
from congruence.tasks.readers.base import Spec, UnreadableOutputError
from congruence.tasks.readers.columns import predicted_columns
from congruence.tasks.readers.read import read_output
from congruence.tasks.runtime.errors import ContractError

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

    The output of a recalibrated version may hold its parent's laws and a map (see ``recalibrated_columns``). Of family
    "auto" the output may be any object that ``congruence.tasks.readers`` reads.

    Args:
        output: what ``predict`` returned.
        settings: family, columns, transforms.
        rows: the number of input rows.
        start: the number of the first row, for errors.

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
    spec: Spec, rows: int, start: int = 0, settings: PredictionSettings | None = None
) -> Distribution:
    """The distribution that was read from a model's own object.

    Raises:
        ContractError: another number of rows, or a value outside its parameter's domain.
    """
    try:
        found = _distribution(spec, settings or PredictionSettings())
    except InvalidInputError as error:
        offset = f"; rows are counted from row {start} of the split" if start else ""
        raise ContractError(f"{error} (read as {spec.family}{offset})") from error
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
    if hasattr(output, "detach"):
        output = output.detach().cpu().numpy()
    array = np.asarray(output)
    return np.moveaxis(array, 0, 1) if array.ndim >= 2 else array


def _read(columns: dict[str, Array], settings: PredictionSettings, rows: int, start: int) -> Distribution:
    if is_recalibrated(columns):
        base = _read(uncorrected(columns), settings, rows, start)
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
    try:
        return _distribution(_spec(settings, parameters), settings)
    except InvalidInputError as error:
        origin = ", ".join(f"{name} from {source}" for name, source in sources.items())
        offset = f"; rows are counted from row {start} of the split" if start else ""
        raise ContractError(f"{error} ({origin}{offset})") from error


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
    where = settings.columns.get(name, name)
    if isinstance(where, (int, float)):
        return None
    if isinstance(where, list):
        return where
    return [where] if where in columns else _default_columns(name, settings, columns)


def _required_columns(name: str, settings: PredictionSettings, columns: Collection[str]) -> list[str] | None:
    """The same, where all of them are there.

    Raises:
        ContractError: one is not.
    """
    where = settings.columns.get(name)
    found = [where] if isinstance(where, str) else parameter_columns(name, settings, columns)
    absent = [column for column in found or () if column not in columns]
    if not absent and found != []:
        return found
    shown = ", ".join(repr(column) for column in list(columns)[:12]) + (", ..." if len(columns) > 12 else "")
    raise ContractError(
        f"output column {(absent[0] if absent else name)!r} for parameter {name!r} is missing; the output has {shown}; "
        f"name the right column under predictions.columns.{name} in the evaluation file, or as columns={{{name!r}: "
        "...} where it is logged"
    )


def _is_left_out(name: str, settings: PredictionSettings, columns: Collection[str]) -> bool:
    """A histogram may be without tails."""
    return name == "tail_share" and name not in settings.columns and name not in columns


def output_columns_among(settings: PredictionSettings, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that hold the output, where a table has other columns as well.

    Raises:
        ContractError: there is none for a parameter; or, of family "auto", names that do not tell a distribution.
    """
    if settings.family == AUTO:
        spelled = predicted_columns(list(names))
        if spelled:
            return spelled
        raise ContractError(
            f"no columns are called as those of a distribution (mean and std, q0.1 and q0.9); there are "
            f"{', '.join(map(repr, names))}; say how they are read, for example family: normal and columns: "
            "{loc: ..., scale: ...}"
        )
    asked = [name for name in settings.parameters if not _is_left_out(name, settings, names)]
    found = [column for name in asked for column in _required_columns(name, settings, names) or ()]
    return list(dict.fromkeys(found))


def _default_columns(name: str, settings: PredictionSettings, columns: Collection[str]) -> list[str]:
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


EXPOSURE = "__exposure__"
"""Column of a frame of model inputs, which no model is given: the exposure of each row, where the split names one."""


def exposed(law: Distribution, family: str, exposure: Array) -> Distribution:
    """The law of the counts over ``exposure`` (n,), from that of counts over an exposure of 1.

    Raises:
        ContractError: a family that an exposure does not multiply.
    """
    if family not in RATES:
        raise ContractError(
            f"exposure: multiplies the mean of a distribution of counts, and {family} is none that has one; leave it "
            f"out, or read the output as one of {', '.join(RATES)}"
        )
    name = RATES[family]
    return families()[family](**{**law.parameters(), name: law.parameters()[name] * exposure})


def exposure_in(frame: pd.DataFrame, column: str, start: int = 0) -> Array:
    """The exposure of each row of model inputs: what their split names, else the column of that name.

    Raises:
        ContractError: neither is there, or a value that is not a number above 0.
    """
    given = EXPOSURE if EXPOSURE in frame.columns else column
    if given not in frame.columns:
        raise ContractError(
            f"its predictions are rates, to be multiplied by the exposure {column!r}, which the rows do not give; add "
            f"exposure: {column} to the split"
        )
    values = pd.to_numeric(frame[given], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    bad = ~(np.isfinite(values) & (values > 0.0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ContractError(
            f"row {start + row}: exposure {column!r} is {frame[given].iloc[row]}; give a number above 0"
        )
    return values
