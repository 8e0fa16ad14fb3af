"""Self-contained HTML: every picture inline, no address of anything outside, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.sentences.calibration import probability

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
