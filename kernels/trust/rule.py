"""Which inputs are withheld: by the levels at which they are unusual and wrong, or a share of them.

Those who read settings load this alone, and nothing that computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from congruence.kernels.errors import InvalidInputError

UNUSUAL = 0.01
_TYPICAL_HELD_OUT, _HELD_OUT = 199, 10_000

FALSE_DISCOVERIES = 0.05

MATTERS = 0.25
"""Of the strength of a fault, in standard deviations of a target's score: a shift by a quarter of the predicted spread,
or a spread that is off by a third, and about .03 of NLL."""

_NAMES = ("unusual", "wrong")


def held_out_rows(rows: int) -> int:
    """How many of the labelled rows are held out from the neighbours: half of few, 199 of more, a third of many."""
    return min(max(rows // 3, min(_TYPICAL_HELD_OUT, rows // 2)), _HELD_OUT)


def rows_for(level: float) -> int:
    """The labelled rows of which enough are held out for a p-value to reach ``level``."""
    needed = math.ceil(1.0 / level - 1e-9) - 1
    return (2 if needed <= _TYPICAL_HELD_OUT else 3) * needed


@dataclass(frozen=True)
class WithholdingRule:
    """What is withheld.

    Attributes:
        share: of the inputs, the least usual first, then those of highest CCE; None for a rule by level.
        unusual: p-value of support up to which an input is withheld.
        wrong: false discovery rate at which the version is wrong at an input.
        asked: the level of support that was asked for, where a split of few rows cannot tell it from 0.
    """

    share: float | None = None
    unusual: float = UNUSUAL
    wrong: float = FALSE_DISCOVERIES
    asked: float | None = None

    def afforded(self, held_out: int) -> WithholdingRule:
        """The rule at the least level that so many held-out rows can show, 1 / (1 + rows), where it asks for less."""
        least = 1.0 / (1.0 + held_out)
        return self if self.unusual >= least else replace(self, unusual=least, asked=self.asked or self.unusual)

    @classmethod
    def of(cls, given: Any) -> WithholdingRule:
        """From a share (``0.05`` or ``"5 %"``), levels (``{"unusual": "1 %", "wrong": 0.05}``), or None.

        Raises:
            InvalidInputError: something else, or a number outside (0, 1).
        """
        if given is None or isinstance(given, WithholdingRule):
            return given or cls()
        if isinstance(given, Mapping):
            unknown = sorted(set(map(str, given)) - set(_NAMES))
            if unknown:
                raise InvalidInputError(f"withhold: {unknown[0]!r} is no level; name unusual, wrong or both")
            return cls(**{str(name): _part(value, f"withhold.{name}") for name, value in given.items()})
        return cls(share=_part(given, "withhold"))

    def __str__(self) -> str:
        if self.share is not None:
            return f"{100 * self.share:.4g} % of the inputs"
        level = f"unusual at {100 * self.unusual:.4g} %"
        if self.asked is not None:
            level = (
                f"unusual at {100 * self.unusual:.2g} % (the least that so few labelled rows can show; "
                f"{100 * self.asked:.4g} % takes {rows_for(self.asked):,})"
            )
        return f"{level}, wrong at a false discovery rate of {100 * self.wrong:.4g} %"


def _part(given: Any, name: str) -> float:
    text = str(given).strip()
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if isinstance(given, bool) or not 0.0 < value < 1.0:
        raise InvalidInputError(f"{name}: is {given!r}, expected a share inside (0, 1) such as 0.05 or '5 %'")
    return value
