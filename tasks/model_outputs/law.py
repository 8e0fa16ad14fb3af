"""What was read: the name of a family and its parameters, before anything checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class UnreadableOutputError(ValueError):
    """What a model returned, or how it is to be asked, cannot be read: names what was found and what to write."""


@dataclass(frozen=True)
class Law:
    """The laws of n rows.

    Attributes:
        family: its name in settings, such as "student_t".
        parameters: by their names in the family: (n,), or a matrix of n rows; those that rows share as the family has
            them.
        components: of a mixture, whose one parameter is ``weights``.
        note: what a reader should know: an approximation, a parametrisation.
    """

    family: str
    parameters: Mapping[str, Array] = field(default_factory=dict)
    components: tuple[Law, ...] = ()
    note: str = ""

    def noted(self, note: str) -> Law:
        """The same with a note."""
        return replace(self, note=note)


def law(family: str, **parameters: Any) -> Law:
    """A law of float64 parameters: columns (n, 1) are rows (n,)."""
    return Law(family, {name: as_array(value) for name, value in parameters.items()})


def as_array(value: Any) -> Array:
    """A tensor, Series, list or array as float64 in host memory; (n, 1) as (n,)."""
    for step in ("detach", "cpu"):
        if hasattr(value, step):
            value = getattr(value, step)()
    if hasattr(value, "double") and hasattr(value, "numpy"):  # bfloat16 has no NumPy type
        value = value.double()
    array = np.asarray(value, dtype=np.float64)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def flatten(found: Law) -> tuple[dict[str, Any], list[Array]]:
    """A description that JSON takes, and the arrays that it counts."""
    arrays: list[Array] = []
    return _flatten(found, arrays), arrays


def unflatten(description: Mapping[str, Any], arrays: list[Array]) -> Law:
    """The law that ``flatten`` described."""
    parameters = {name: arrays[place] for name, place in description["parameters"].items()}
    parts = tuple(unflatten(part, arrays) for part in description["components"])
    return Law(description["family"], parameters, parts, description["note"])


def _flatten(found: Law, arrays: list[Array]) -> dict[str, Any]:
    places = {}
    for name, values in found.parameters.items():
        places[name] = len(arrays)
        arrays.append(np.asarray(values))
    parts = [_flatten(part, arrays) for part in found.components]
    return {"family": found.family, "parameters": places, "components": parts, "note": found.note}


def kinds(found: Any) -> list[str]:
    """The names of an object's class and its bases, nearest first, without their modules."""
    return [kind.__name__ for kind in type(found).__mro__]


def is_of(found: Any, package: str, name: str | None = None) -> bool:
    """Whether the object's class, or one of its bases, comes from ``package`` (and has this name)."""
    return any(
        kind.__module__.split(".")[0] == package and (name is None or kind.__name__ == name)
        for kind in type(found).__mro__
    )


def nearly_everywhere(levels: int = 399) -> Array:
    """Levels at which a law that is no family of ours is read, its tails down to 1e-6 included."""
    tails = np.array([1e-6, 1e-5, 1e-4, 5e-4, 1e-3])
    inner = np.arange(1, levels + 1) / (levels + 1)
    return np.unique(np.concatenate([tails, inner, 1.0 - tails]))
