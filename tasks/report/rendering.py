"""What every page of a report needs: numbers packed, rows chosen by a click, templates filled."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from congruence.kernels.arrays import Array
from congruence.tasks.scores.evaluation import Segment
from congruence.tasks.scores.metrics.registry import REGION, metric_of
from congruence.tasks.scores.summary import slice_groups
from congruence.tasks.sentences.calibration import place_in_words, probability

LETTERS = 60
"""The longest key or value that is shown."""


def numbers(values: Any) -> dict[str, str]:
    """Numbers of any shape, row by row, as float32."""
    return {"f32": _text(np.ascontiguousarray(values, dtype="<f4"))}


def number_column(name: str, values: Array, label: str = "") -> dict[str, Any]:
    """A column of numbers."""
    return {"name": name, "label": label or name, "kind": "number", **numbers(values)}


def category_column(name: str, values: pd.Series[Any]) -> dict[str, Any]:
    """A column of at most 30 values; rarer ones are "other"."""
    codes, names = slice_groups(values)
    return coded_column(name, codes, [str(each)[:LETTERS] for each in names])


def coded_column(name: str, codes: Array, values: list[str], label: str = "") -> dict[str, Any]:
    """A column of codes, at most 256 of them, and what each stands for."""
    packed = _text(np.ascontiguousarray(codes, dtype="u1"))
    return {"name": name, "label": label or name, "kind": "category", "u8": packed, "values": values}


def rounded(values: Any) -> list[float | None]:
    """Numbers for JSON, to six significant digits; None for what is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def as_json(value: Any) -> str:
    """JSON that may stand inside a page's script element: no letter of it ends the element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _text(values: Array) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


SLICE = "slice:"
"""Before the name of a slice column, which may be a feature, too."""

FAULT = "calibration_fault"
ALL_RIGHT = "no fault was found"

Selection = dict[str, Any]
"""``{"any": [[condition, ...], ...]}``: rows that meet all conditions of one of the lists; a condition is
``{"column", "value"}``, ``{"column", "not"}`` or ``{"column", "above", "upto"}``."""


def places_of(columns: Mapping[str, Sequence[str]]) -> dict[str, Selection]:
    """The selection of each place by its name, and by that in a sentence, from the page's slice and region columns."""
    found: dict[str, Selection] = {}
    for column, values in columns.items():
        for value in values:
            is_region = column == REGION
            names = (value, place_in_words(value)) if is_region else (f"{column} {value}", f"{column} is {value}")
            chosen = _one({"column": column if is_region else f"{SLICE}{column}", "value": value})
            found |= {name.removeprefix("in the region ").removeprefix("where "): chosen for name in names}
    return found


def of_sentence(sentence: str, places: pd.DataFrame, known: Mapping[str, Selection], flagged: bool) -> Selection | None:
    """The rows that ``sentence`` speaks of.

    The places that it names; those without a fault where it says that these have none; else, where it speaks of all
    rows, the rows around which a fault was found.
    """
    names = [name for name in known if _names(sentence, name)]
    names = [name for k, name in enumerate(names) if known[name] not in [known[other] for other in names[:k]]]
    if ALL_RIGHT in sentence and not places.empty:
        names = [name for name in places.loc[places["fault"] == "", "place"] if name in known]
    elif not names:
        return _one({"column": FAULT, "not": ""}) if flagged else {"any": [[]]}
    return {"any": [lists for name in names for lists in known[name]["any"]]} if names else None


def of_segment(segment: Segment) -> Selection:
    """The rows of a segment's ranges."""
    conditions: list[dict[str, Any]] = []
    for name, low, high in segment.ranges:
        column, equals, word = name.partition(" = ")
        if equals:
            conditions.append({"column": column, "value" if low > 0.0 else "not": word})
        else:
            ends = {"above": low, "upto": high}
            conditions.append({"column": column, **{end: at for end, at in ends.items() if abs(at) != float("inf")}})
    return {"any": [conditions]}


def _one(condition: dict[str, Any]) -> Selection:
    return {"any": [[condition]]}


def _names(sentence: str, place: str) -> bool:
    """Whether the sentence names the place as a whole: "digit 1" is not in "digit 10", nor "size 1" in "size 1.5"."""
    return place in sentence and re.search(rf"(?<![^\W_]){re.escape(place)}(?![^\W_]|[.,]\d)", sentence) is not None


_SCRIPTS = Path(__file__).parent / "scripts"


@cache
def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["probability"] = lambda value: probability(None if value != value else value)
    environment.filters["label"] = label
    return environment


def render(template: str, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """The template of that name with its values, and with the scripts and the style of pages that people explore."""
    script = "\n".join((_SCRIPTS / f"{name}.js").read_text() for name in scripts)
    style = (_SCRIPTS / "page.css").read_text()
    return _environment().get_template(template).render(script=script, style=style, **values)


def number(value: Any, digits: int = 4) -> str:
    """A number as people read it: four significant digits, thousands separated, a dash for nothing."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return str(value)
    plain = float(value)
    if (plain.is_integer() or abs(plain) >= 1e4) and abs(plain) < 1e15:
        return f"{plain:,.0f}"
    return f"{plain:.{digits}g}" if 1e-4 <= abs(plain) < 1e4 else f"{plain:.{digits - 1}e}"


def label(name: str) -> str:
    """The name of a table's column as people read it."""
    return metric_of(name).label.replace("_", " ")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table by column name."""
    return [{str(key): value for key, value in record.items()} for record in frame.to_dict("records")]
