"""Which columns say how rows were sampled: what `congruence init` proposes from their names, types and first values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import pyarrow as pa

from congruence.tasks.data.design import design_problem, design_type_problem
from congruence.tasks.data.digests import is_text

NAMES_A_ROW = re.compile(r"^ID(?=[A-Z_]|[a-z])|(?<=[a-z])(ID|Id)$|_(id|key)$|_(ID|KEY)$")
"""Words in a column's name that make it a key where its values differ: policy_id, IDpol, policyID."""

_GROUPS = ("group", "patient", "subject", "person", "participant", "customer", "user", "household", "session", "series")
_TIMES = ("time", "timestamp", "datetime", "date", "date_time")
_WEIGHTS = ("sample_weight", "sampling_weight", "survey_weight", "row_weight", "weights")
_EXPOSURES = ("exposure", "exposures", "time_at_risk", "person_years")


def proposed_design(
    first: pa.Table, taken: Collection[str | None], asked: Collection[str], inputs_are_known: bool
) -> dict[str, str]:
    """A column for each of groups, time, weight and exposure that the first rows show, by what it is.

    Args:
        first: some rows.
        taken: target and key.
        asked: what the model is given: an input is no weight, no group and no time.
        inputs_are_known: whether ``asked`` is all that the model is given; if not, "weight" may be somebody's weight.
    """
    weights = (*_WEIGHTS, "weight") if inputs_are_known else _WEIGHTS
    found: dict[str, str] = {}
    fits: dict[str, Callable[[str], bool]] = {
        "exposure": lambda name: name.lower() in _EXPOSURES,
        "weight": lambda name: name.lower() in weights and name not in asked,
        "time": lambda name: name not in asked and _is_time(name, first.column(name)),
        "groups": lambda name: name not in asked and _names_groups(name, first.column(name)),
    }
    for role in fits:
        for name in map(str, first.column_names):
            free = name not in taken and name not in found.values()
            if free and fits[role](name) and _is_usable(role, first.column(name)):
                found[role] = name
                break
    return found


def _is_usable(role: str, column: pa.ChunkedArray) -> bool:
    return design_type_problem(role, column.type) is None and design_problem(role, column.combine_chunks()) is None


def _is_time(name: str, column: pa.ChunkedArray) -> bool:
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
