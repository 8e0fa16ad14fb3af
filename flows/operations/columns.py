"""What each column of a data set is for, as far as names, types, the first rows and a model tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from congruence.tasks.data.columns import design_problem, design_type_problem, first_of_no_number
from congruence.tasks.data.inputs import is_list, is_text
from congruence.tasks.data.sources import REFERENCE
from congruence.tasks.readers.columns import called_as_moment
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.metrics.registry import is_taken

TARGET_NAMES = ("target", "y", "label", "y_true", "actual")
KEY_NAMES = ("key", "id", "row_id", "uuid")
MOST_SLICES, MOST_GROUPS = 3, 30
SEEN_ROWS = 256
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
_GROUPS = ("group", "patient", "subject", "person", "participant", "customer", "user", "household", "session", "series")
_TIMES = ("time", "timestamp", "datetime", "date", "date_time")
_WEIGHTS = ("sample_weight", "sampling_weight", "survey_weight", "row_weight", "weights")
_EXPOSURES = ("exposure", "exposures", "time_at_risk", "person_years")
_PREDICTED = re.compile(
    r"(pred|predicted|prediction|y_?(hat|pred|std|sd|sigma|mean|lower|upper))([_ -].*)?|lower|upper"
    r"|.+_(pred|predicted|prediction|hat)|.*(?<![a-z])(draw|sample|member)s?[_ -]?\d+",
    re.IGNORECASE,
)
"""Names of columns that hold what some model predicted: of one that nobody named they are no inputs."""
_DRAWS = re.compile(
    r"(.*[_ -])?(draw|sample|member|simulation|ensemble|realization|pred|prediction|forecast)s?|y_?(hat|pred)",
    re.IGNORECASE,
)
"""Names of columns of lists that hold draws of the target."""
_OF_MODELS = re.compile(r"models?[_ -]?\d+", re.IGNORECASE)  # whole numbers there may say which model of a car it is
_COUNTERS = ("index", "level_0", "unnamed: 0", "row", "rownames", "row_names", "row_number", "...1")
"""What pandas and R call the numbers of rows that they write beside them."""
NAMES_A_ROW = re.compile(r"^ID(?=[A-Z_]|[a-z])|(?<=[a-z])(ID|Id)$|_(id|key)$|_(ID|KEY)$")
"""Words in a column's name that make it a key where its values differ: policy_id, IDpol, policyID."""


@dataclass(frozen=True)
class ModelFacts:
    """What MLflow knows of a version: its columns, whether its metadata spell the family, how a native one is asked.

    ``reads`` is the family of one row's answer, where that says itself what it is; ``has_signature`` whether the inputs
    are those of a signature, else they were found by asking for a row without each column; a tensor has a ``width``
    alone, so many numbers a row. ``refused`` is why it gave no answer for one.
    """

    uri: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    describes_itself: bool = False
    asked_by: str = ""
    reads: str = ""
    has_signature: bool = True
    refused: str = ""
    width: int | None = None


@dataclass(frozen=True)
class Roles:
    """The role of each column, as far as the data and the model tell."""

    target: str
    input_kind: Literal["image", "text", "features"]
    input: str | list[str]
    model_inputs: list[str] | None
    key: str | None
    slices: list[str]
    more_slices: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)
    design: Mapping[str, str] = field(default_factory=dict)


def columns_roles(first: pa.Table, target: str | None, model: ModelFacts | None = None) -> Roles:
    """The roles of the columns, from their names, their types, the first rows and the columns that a model asks for.

    Raises:
        SettingsError: the target or the inputs cannot be inferred.
    """
    asked = [name for name in model.inputs if name in first.column_names] if model is not None else []
    chosen = _target(first, target, asked)
    key = _key(first, {chosen, *asked})
    design = proposed_design(first, {chosen, key}, asked, model is not None and bool(model.inputs))
    named = [column for role, column in design.items() if role != "exposure"]  # which is an input of the law as well
    rest = [name for name in first.column_names if name not in (chosen, key, *named)]
    counters = [name for name in rest if name not in asked and _counts_rows(name, first.column(name))]
    # What is called as a target, too, is known no earlier than the target.
    labels = [name for name in rest if name not in asked and name.lower() in TARGET_NAMES]
    rest = [name for name in rest if name not in (*counters, *labels)]
    predicted = [name for name in rest if name not in asked and _is_predicted(first.schema.field(name))]
    if predicted:  # beside the ends of an interval, "median" is no input either
        predicted += [name for name in rest if name not in (*asked, *predicted) and called_as_moment(name)]
    rest = [name for name in rest if name not in predicted]
    images = [name for name in rest if _holds_images(first.column(name))]
    numbers = [name for name in (asked or rest) if name in rest and _holds_numbers(first.schema.field(name).type)]
    texts = [name for name in rest if _holds_texts(first.column(name))]
    if images:
        kind, given = "image", images[0]
    elif numbers:
        kind, given = "features", numbers
    elif texts:
        kind, given = "text", texts[0]
    else:
        raise SettingsError(
            f"no column of images, numbers or texts is left for the encoder to read; the columns are {_list(first)}"
        )
    read = [given] if isinstance(given, str) else given
    model_inputs = asked if asked and asked != read else None
    left = [name for name in rest if name not in read and name not in texts and not is_taken(name)]
    slices = [name for name in left if _groups(first.column(name))]
    slices.sort(key=lambda name: name not in asked)  # what the model reads first: there it can be wrong in its own way
    shown, more = slices[:MOST_SLICES], slices[MOST_SLICES:]
    # A counter without a name, as ``to_csv`` writes it, is not missed; moments or names may be.
    missed = [name for name in counters if name or not _holds_numbers(first.schema.field(name).type)]
    unused = [name for name in [*missed, *labels, *rest] if name not in {*read, *slices, *asked}]
    return Roles(chosen, kind, given, model_inputs, key, shown, more, unused, predicted, design)  # type: ignore[arg-type]


def _target(first: pa.Table, target: str | None, asked: Sequence[str]) -> str:
    names = [str(name) for name in first.column_names]
    if target is not None:
        if target not in names:
            raise SettingsError(f"--target: there is no column '{target}'; the columns are {_list(first)}")
        if is_text(kind := first.schema.field(target).type) or pa.types.is_boolean(kind):
            values = first.column(target).combine_chunks()
            _, value = first_of_no_number(values) or (0, next(iter(values.drop_null().to_pylist()), None))
            raise SettingsError(
                f"--target: column '{target}' holds {'text' if is_text(kind) else 'true or false'}, for example "
                f"{value!r}, and a distribution is predicted of a number; convert it to numbers or name another column"
            )
        return target
    numbers = [name for name in names if _holds_numbers(first.schema.field(name).type) and name not in asked]
    named = [name for wanted in TARGET_NAMES for name in numbers if name.lower() == wanted]
    if len(named) > 1:
        raise SettingsError(
            f"--target: which column is to be predicted? {' and '.join(named)} are all called as one; leave the others "
            "out of input, too, where they are not known when a prediction is made"
        )
    if named:
        return named[0]
    left = [name for name in numbers if name.lower() not in KEY_NAMES and not _counts_rows(name, first.column(name))]
    if len(left) == 1:
        return left[0]
    texts = [name for name in names if name.lower() in TARGET_NAMES and is_text(first.schema.field(name).type)]
    said = f"; {' and '.join(texts)} {'holds' if len(texts) == 1 else 'hold'} text" if texts else ""
    raise SettingsError(
        f"--target: which column is to be predicted? The numeric ones are {', '.join(left) or 'none'}{said}"
    )


def may_name_rows(column: pa.Field) -> bool:
    """Whether a column is called as one that names rows, and is of such a type."""
    named = column.name.lower() in KEY_NAMES or NAMES_A_ROW.search(column.name) is not None
    return named and bool(pa.types.is_integer(column.type) or is_text(column.type))


def _key(first: pa.Table, taken: set[str]) -> str | None:
    for column in first.schema:
        if may_name_rows(column) and column.name not in taken:
            values = first.column(column.name).to_pylist()
            if None not in values and len(set(values)) == len(values):
                return str(column.name)
    return None


def holds_draws(column: pa.Field) -> bool:
    """Whether a column holds lists of numbers, and is called as draws or as a prediction."""
    return is_list(column.type) and _holds_numbers(column.type) and _DRAWS.fullmatch(column.name) is not None


def _is_predicted(column: pa.Field) -> bool:
    numbered = _OF_MODELS.fullmatch(column.name) is not None and pa.types.is_floating(column.type)
    return numbered or _PREDICTED.fullmatch(column.name) is not None or holds_draws(column)


def _counts_rows(name: str, column: pa.ChunkedArray) -> bool:
    """Whether a column is the index of a frame that was written with the rows; one without a name is nothing else."""
    values = column.to_pylist()
    numbers = bool(pa.types.is_integer(column.type)) and None not in values and len(set(values)) == len(values)
    return not name or (numbers and name.lower() in _COUNTERS)


def _holds_numbers(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_numbers(kind.value_type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _holds_images(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == REFERENCE:
        return True
    if pa.types.is_struct(kind):
        return "bytes" in {kind.field(place).name for place in range(kind.num_fields)}
    return is_text(kind) and all(str(value).lower().endswith(_IMAGE_ENDINGS) for value in column.to_pylist())


def _holds_texts(column: pa.ChunkedArray) -> bool:
    values = [value for value in column.to_pylist() if isinstance(value, str)] if is_text(column.type) else []
    return bool(values) and sum(len(value.split()) for value in values) / len(values) > 3.0


def _groups(column: pa.ChunkedArray) -> bool:
    """Whether the column divides the rows into a few groups of several rows each."""
    if not (is_text(column.type) or pa.types.is_boolean(column.type) or pa.types.is_dictionary(column.type)):
        return False
    values = column.to_pylist()
    return 1 < len(set(values)) <= min(MOST_GROUPS, len(values) // 4)


def _list(first: pa.Table) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in first.schema)


def proposed_design(
    first: pa.Table, taken: Collection[str | None], asked: Collection[str], inputs_are_known: bool
) -> dict[str, str]:
    """A column for each of groups, time, weight and exposure that the first rows show, by what it is.

    Target and key are ``taken``. What the model is ``asked`` with is no weight, no group and no time; where that is not
    all that it is given, "weight" may be somebody's weight.
    """
    weights = (*_WEIGHTS, "weight") if inputs_are_known else _WEIGHTS

    def is_usable(role: str, column: pa.ChunkedArray) -> bool:
        return design_type_problem(role, column.type) is None and design_problem(role, column.combine_chunks()) is None

    found: dict[str, str] = {}
    fits: dict[str, Callable[[str], bool]] = {
        "exposure": lambda name: name.lower() in _EXPOSURES,
        "weight": lambda name: name.lower() in weights and name not in asked,
        "time": lambda name: name not in asked and is_time(name, first.column(name)),
        "groups": lambda name: name not in asked and _names_groups(name, first.column(name)),
    }
    for role in fits:
        for name in map(str, first.column_names):
            free = bool(name) and name not in taken and name not in found.values()
            if free and fits[role](name) and is_usable(role, first.column(name)):
                found[role] = name
                break
    return found


def is_time(name: str, column: pa.ChunkedArray) -> bool:
    """Whether a column holds moments or days, as such or in ISO's notation, or is called as one that counts time."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if is_text(kind):
        return all(isinstance(value, str) and re.match(r"\d{4}-\d{2}", value) for value in column.to_pylist())
    return name.lower() in _TIMES and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _names_groups(name: str, column: pa.ChunkedArray) -> bool:
    """Whether this looks like the id of something that several rows are of."""
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        return False
    if NAMES_A_ROW.search(name) is None and name.lower() not in ("id", *_GROUPS):
        return False
    values = column.to_pylist()
    return 1 < len(set(values)) < len(values)
