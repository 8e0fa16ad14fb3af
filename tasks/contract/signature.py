"""What a model is given: rows in the types of its signature, and the exposure by which its rates are multiplied.

Of the types what is usual, or loses nothing, is converted; the rest is refused.

A count over an exposure e (insured years, kilometres) of a rate r has the mean e r: the exposure multiplies the mean of
a distribution of counts. The dispersion of a negative binomial and the inflation of zeros stay: a policy's own rate is
gamma about the predicted one, and which policies never claim is no matter of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.types import DataType
from mlflow.types.schema import Schema

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.reading import cell_in_words
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.settings.sections import RATES, families

_WORDS = {
    DataType.boolean: "true or false (boolean)",
    DataType.integer: "whole numbers of 32 bits (integer)",
    DataType.long: "whole numbers (long)",
    DataType.float: "numbers of 32 bits (float)",
    DataType.double: "numbers (double)",
    DataType.string: "texts (string)",
    DataType.binary: "bytes (binary)",
    DataType.datetime: "dates (datetime)",
}


_NUMBERS = (DataType.double, DataType.float, DataType.long, DataType.integer, DataType.boolean)


_PICTURES = {b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp", b"II*": ".tif"}


_LOG_AGAIN = "or log the model again with an input_example that is like these rows"


def tensor_width(schema: Schema | None) -> int | None:
    """How many numbers a row a signature of one tensor without a name asks for; None of others."""
    if schema is None or schema.has_input_names() or not schema.is_tensor_spec():
        return None
    shape = schema.inputs[0].shape  # type: ignore[union-attr]
    return int(shape[1]) if len(shape) == 2 and shape[1] > 0 else None


def without_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as the values they stand for: MLflow's signatures know no categories."""
    kinds = {str(name): kind for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    types = {name: kind.categories.dtype for name, kind in kinds.items()}
    return frame.astype(types) if types else frame  # without any, pandas would still copy column by column


def to_signature(frame: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns ``frame`` in the types of ``schema``, and what was changed on the way, by column.

    Numbers become wider or narrower ones, with the largest rounding said; whole ones that came as floating-point
    numbers whole ones; 0 and 1 booleans; dates with a zone dates in UTC without one; texts in ISO 8601 dates.

    Raises:
        ContractError: a column cannot be converted; names it, its type, the first value, and what to do.
    """
    frame = without_categories(frame.reset_index(drop=True))
    notes: dict[str, str] = {}
    changed: dict[str, Any] = {}
    for item in schema.inputs:
        name, kind = str(item.name), getattr(item, "type", None)
        if kind not in _CONVERSIONS or name not in frame.columns:
            continue
        column = frame[name]
        found, note = _CONVERSIONS[kind](column, name)
        if found is not column:
            changed[name] = found
        if note:
            notes[name] = f"input column {name!r} {note}"
    return (frame.assign(**changed) if changed else frame), notes


def pictures_as_files(frame: pd.DataFrame, schema: Schema, folder: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """Returns ``frame`` with paths of files in ``folder`` where a signature asks for texts and the cells are bytes.

    A model of pictures that was logged with their paths is given paths; what was changed is said by column.
    """
    changed: dict[str, Any] = {}
    for item in schema.inputs:
        name = str(item.name)
        if getattr(item, "type", None) != DataType.string or not isinstance(frame[name].iloc[0], bytes):
            continue
        changed[name] = paths = []
        for row, content in enumerate(frame[name]):
            ending = next((end for start, end in _PICTURES.items() if content.startswith(start)), "")
            paths.append(str(folder / f"{name}-{row}{ending}"))
            Path(paths[-1]).write_bytes(content)
    said = "is given as paths of files that hold its bytes: the signature asks for texts"
    return frame.assign(**changed), {name: f"input column {name!r} {said}" for name in changed}


def to_tensor(frame: pd.DataFrame, dtype: np.dtype[Any]) -> Array:
    """Returns the rows as a matrix, or what is in the cells of its one column stacked; missing numbers are NaN.

    Raises:
        ContractError: a value that ``dtype`` cannot hold.
    """
    if frame.shape[1] == 1 and frame.dtypes.iloc[0].kind == "O" and not _is_number(frame.iloc[0, 0]):
        return np.stack([np.asarray(row) for row in frame.iloc[:, 0]]).astype(dtype)
    columns = [_floats(frame[name], str(name), f"a tensor of {dtype}") for name in frame.columns]
    matrix = columns[0][:, None] if len(columns) == 1 else np.column_stack(columns)
    if dtype.kind in "iu" and not np.isfinite(matrix).all():
        row, place = np.argwhere(~np.isfinite(matrix))[0]
        raise ContractError(
            f"input column {str(frame.columns[place])!r}: row {row} has no value, and the signature asks for a tensor "
            f"of {dtype}, which knows no missing ones; leave such rows out, {_LOG_AGAIN}"
        )
    return matrix.astype(dtype)


def _to_number(kind: DataType) -> Callable[[pd.Series[Any], str], tuple[Any, str]]:
    """To floating-point numbers, whole numbers or booleans, where no value but its rounding is lost."""
    wanted = np.dtype(kind.to_numpy())

    def convert(column: pd.Series[Any], name: str) -> tuple[Any, str]:
        if column.dtype == wanted:
            return column, ""
        whole = wanted.kind == "i" and isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub"
        values = column.to_numpy() if whole else _floats(column, name, _WORDS[kind])
        with np.errstate(over="ignore", invalid="ignore"):
            found = values.astype(wanted)
        bad, why, note = np.zeros(len(values), bool), "", ""
        if kind == DataType.double:
            note = _beyond(column)
        elif kind == DataType.float:
            bad, why = np.isinf(found) & np.isfinite(values), "it is too large for 32 bits"
            exact = np.isclose(values, 0.0, atol=0.0) | ~np.isfinite(values)
            rounding = np.where(exact, 0.0, np.abs(found - values) / np.where(exact, 1.0, np.abs(values)))
            largest = 0.0 if bad.any() else float(rounding.max(initial=0.0))
            if largest:
                note = f"is given in 32 bits, as the signature says: rounded by up to {largest:.1g} of its value"
        elif kind == DataType.boolean:
            bad, why = ~np.isin(values, (0.0, 1.0)), "only 0 and 1 are"
        elif whole:
            limits = np.iinfo(wanted)
            bad = np.asarray((values > limits.max) | (values.astype(np.float64) < limits.min))
            why = f"it is too large for {wanted.itemsize * 8} bits"
        else:
            most = min(2.0**53, 2.0 ** (wanted.itemsize * 8 - 1))
            bad = ~(np.isfinite(values) & (values == np.round(values)) & (np.abs(values) < most))
            why = "it is no whole number: whole numbers know no missing values"
        if bad.any():
            raise _refused(name, column, int(np.argmax(bad)), kind, why)
        return pd.Series(found), note

    return convert


def _to_string(column: pd.Series[Any], name: str) -> tuple[Any, str]:
    if column.dtype.kind in "iu":
        texts = column.astype(object).map(lambda cell: None if pd.isna(cell) else str(cell))
        such = f"is given as texts such as {texts.iloc[0]!r}"
        return texts, f"{such}: if these are codes, see that they had no zeros before them"
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "bfM":
        raise _refused(name, column, 0, DataType.string, "it has more than one spelling as a text")
    return column, ""


def _to_datetime(column: pd.Series[Any], name: str) -> tuple[Any, str]:
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        there = "" if str(zone) == "UTC" else f" (it has {zone})"
        return column.dt.tz_convert("UTC").dt.tz_localize(None), f"is given in UTC without a zone{there}"
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "M":
        return column, ""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        raise _refused(name, column, 0, DataType.datetime, "a number does not say since when it counts, nor what")
    try:
        return _to_datetime(pd.to_datetime(column, format="ISO8601"), name)
    except (TypeError, ValueError) as error:
        place = next((row for row, value in enumerate(column) if _is_no_date(value)), 0)
        raise _refused(name, column, place, DataType.datetime, "it is no date in ISO 8601, as 2026-03-01") from error


_CONVERSIONS: Mapping[Any, Callable[[pd.Series[Any], str], tuple[Any, str]]] = {
    **{kind: _to_number(kind) for kind in _NUMBERS},
    DataType.string: _to_string,
    DataType.datetime: _to_datetime,
}


def _floats(column: pd.Series[Any], name: str, wanted: str) -> Array:
    """Numbers, booleans and decimals as float64, missing ones as NaN."""
    if column.dtype.kind in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    cells: Iterable[Any] = column
    bad = next((row for row, cell in enumerate(cells) if not _is_number(cell)), None)
    if bad is not None:
        raise ContractError(
            f"input column {name!r} holds {_held(column)}, and the signature asks for {wanted}: row {bad} is "
            f"{cell_in_words(column.iloc[bad])}; store numbers in that column, {_LOG_AGAIN}"
        )
    return np.array([np.nan if pd.isna(cell) else float(cell) for cell in cells])


def _beyond(column: pd.Series[Any]) -> str:
    """Whole numbers beyond 2^53 are rounded as floating-point ones."""
    if column.dtype.kind not in "iu":
        return ""
    values = column.dropna().to_numpy(dtype=np.dtype(str(column.dtype).lower()))
    lost = values != values.astype(np.float64).astype(values.dtype)
    return "holds whole numbers beyond 2^53, which are rounded to 53 bits" if lost.any() else ""


def _is_number(cell: Any) -> bool:
    if cell is None or cell is pd.NA or isinstance(cell, Decimal):
        return True
    return isinstance(cell, (int, float, np.number, np.bool_))


def _is_no_date(value: Any) -> bool:
    try:
        pd.to_datetime([value], format="ISO8601")
    except (TypeError, ValueError):
        return True
    return False


def _refused(name: str, column: pd.Series[Any], row: int, kind: DataType, why: str) -> ContractError:
    return ContractError(
        f"input column {name!r} holds {_held(column)}, and the signature asks for {_WORDS[kind]}: row {row} is "
        f"{cell_in_words(column.iloc[row])}, and {why}; store the column as the model was given it, {_LOG_AGAIN}"
    )


def _held(column: pd.Series[Any]) -> str:
    kinds = {"O": "texts or objects", "i": "whole numbers", "u": "whole numbers", "f": "numbers", "M": "dates"}
    kind = column.dtype.kind
    return kinds.get(kind, str(column.dtype)) + (f" ({column.dtype})" if kind in "iufM" else "")


EXPOSURE = "__exposure__"
"""Column of a frame of model inputs, which no model is given: the exposure of each row, where the split names one."""


def exposed(law: Distribution, exposure: Array) -> Distribution:
    """The law of the counts over ``exposure`` (n,), from that of counts over an exposure of 1.

    Raises:
        ContractError: a family that an exposure does not multiply.
    """
    if law.family not in RATES:
        raise ContractError(
            f"exposure: multiplies the mean of a distribution of counts, and {law.family} is none that has one; leave "
            f"it out, or read the output as one of {', '.join(RATES)}"
        )
    parameters, name = law.parameters(), RATES[law.family]
    return families()[law.family](**{**parameters, name: parameters[name] * exposure})


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


_CLEARLY = 1.2
"""A mean prediction within this factor of the mean count is one of counts."""

_REACH = 3.0


def require_counts(label: str, predictive: Distribution, frame: pd.DataFrame, targets: Any) -> None:
    """Refuse predicted rates that are read as counts, on rows whose split names an exposure.

    Raises:
        ContractError: the mean prediction is not the mean count, and nearer to the mean rate, sum y / sum e.
    """
    if EXPOSURE not in frame.columns or not predictive.is_discrete or np.ndim(targets) != 1:
        return
    exposure, total = frame[EXPOSURE].to_numpy(np.float64), float(np.sum(targets))
    predicted = float(np.mean(predictive.mean()))
    if total <= 0.0 or not predicted > 0.0:
        return
    count, rate = total / len(exposure), total / float(np.sum(exposure))
    from_count, from_rate = abs(np.log(predicted / count)), abs(np.log(predicted / rate))
    # The total is known to some 1 / sqrt(total) of itself.
    if from_count > max(np.log(_CLEARLY), _REACH / np.sqrt(total)) and from_rate < from_count:
        raise ContractError(
            f"{label}: predicts rates that are read as counts: its mean prediction {predicted:.3g} is "
            f"{predicted / count:.3g} times the mean count {count:.3g}, and {predicted / rate:.3g} times the mean rate "
            f"{rate:.3g} per unit of exposure, on {len(exposure):,} rows; add exposure: to predictions: in the "
            "evaluation file, or log it with log_predictive_model(..., exposure=...); a model that does predict counts "
            "is evaluated where the split names no exposure"
        )
