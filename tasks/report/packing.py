"""Columns as a page holds them: numbers in single precision and codes, in base 64, so that 20,000 rows stay small."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.scores.summary import slice_groups

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
