"""A recalibration map as plain arrays, and back: what a file without pickle holds of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from congruence.kernels import kernel_functions
from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.recalibration_map import Form, RecalibrationMap
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, Linear

_ARRAYS = ("landmarks", "constants", "weights", "levels")


def map_arrays(fitted: RecalibrationMap) -> dict[str, Array]:
    """The arrays of a map, with its form and kernel as the bytes of a JSON text under ``described``."""
    form = {"shift": fitted.form.shift, "factor": fitted.form.factor, "shape": fitted.form.shape}
    described = json.dumps({"form": form, "kernel": fitted.kernel.describe()}).encode()
    arrays = {name: np.asarray(getattr(fitted, name), dtype=np.float64) for name in _ARRAYS}
    return arrays | {"described": np.frombuffer(described, dtype=np.uint8)}


def map_of(arrays: Mapping[str, Array]) -> RecalibrationMap:
    """The map that ``map_arrays`` wrote.

    Raises:
        InvalidInputError: something else.
    """
    try:
        described = json.loads(np.asarray(arrays["described"]).tobytes())
        form, kernel = described["form"], kernel_of(described["kernel"])
        shape = None if form["shape"] is None else (form["shape"][0], form["shape"][1])
        chosen = Form(form["shift"], form["factor"], shape)
        return RecalibrationMap(chosen, kernel, *(np.asarray(arrays[name]) for name in _ARRAYS))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"arrays: are no recalibration map ({error}); fit and log it again") from error


def kernel_of(described: Mapping[str, Any]) -> Kernel:
    """The kernel that ``Kernel.describe`` described.

    Raises:
        KeyError, TypeError, AttributeError: no kernel of this package.
    """
    kind: Any = getattr(kernel_functions, described["kind"])
    if "parts" in described:
        return kind(tuple(kernel_of(part) for part in described["parts"]))  # type: ignore[no-any-return]
    names = ("gamma", "coef0") if kind is Linear else tuple(item.name for item in fields(kind))
    return kind(**{name: described[name] for name in names})  # type: ignore[no-any-return]
