r"""One verdict on a version: its tests are parts of one p-value, and that p-value alone decides.

Each part is a test of "this version is the truth" at any level. Its p-value p_k has a weight w_k, the share of the
level that it may spend, and

.. math::  p = \min\Big(1, \min_k \frac{p_k}{w_k} \sum_j w_j\Big)

over the parts that were tested (weighted Bonferroni; Genovese, Roeder and Wasserman 2006): of true versions at most 5
in 100 have p < .05, however the parts depend on each other. What is stated of a fault (its kind, place and size) is
stated where p < .05 only, so the same 5 in 100 hold for all that is said of a version together (closed testing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

SIGNIFICANCE = 0.05
"""The share of true versions that are called wrong, at most."""

WEIGHTS: Mapping[str, float] = {"calibration": 0.4, "congruence": 0.3, "extremes": 0.1, "masses": 0.1, "places": 0.1}
"""Of each part by its name: what the version's whole is tested on spends most of the level."""

NOT_JUDGED, NO_FAULT, WRONG = "not judged", "no fault found", "wrong"
State = Literal["not judged", "no fault found", "wrong"]


@dataclass(frozen=True)
class Part:
    """One test: its name, its p-value, and the share of the level that it may spend beside the others."""

    name: str
    p_value: float
    weight: float


def combined_p_value(parts: Sequence[Part]) -> float | None:
    """The one p-value of some parts, see the module; None where there is none."""
    if not parts:
        return None
    total = sum(part.weight for part in parts)
    return min(1.0, min(part.p_value * (total / part.weight) for part in parts))


@dataclass(frozen=True)
class Verdict:
    """What is known of a version: not judged, no fault found, or wrong.

    Attributes:
        parts: the tests that were made; none where none was possible.
        rows: how many were tested, 0 where that is not known.
        fault: the largest fault in a few words, where one is named.
        reason: why no test was possible.
    """

    parts: tuple[Part, ...] = ()
    rows: int = 0
    fault: str = ""
    reason: str = ""

    @classmethod
    def of(cls, p_values: Mapping[str, float], *, rows: int = 0, reason: str = "", correlated: bool = False) -> Self:
        """By the p-values of the parts, named as in ``WEIGHTS``.

        Args:
            p_values: of the tests that were made.
            rows: how many were tested.
            reason: why there is no test, where there is none.
            correlated: whether rows are correlated though the tests took them as independent: such tests call too many
                versions wrong, so that what they contradict is not judged; what they do not contradict stands.
        """
        parts = tuple(Part(name, p_values[name], weight) for name, weight in WEIGHTS.items() if name in p_values)
        found = cls(parts, rows, reason="" if parts else reason or "no test was made")
        if correlated and found.is_wrong:
            return replace(found, parts=(), reason="rows are correlated, and the tests took them as independent")
        return found

    @property
    def p_value(self) -> float | None:
        """The one p-value of "this version is the truth"; None where the version is not judged."""
        return combined_p_value(self.parts)

    @property
    def state(self) -> State:
        """One of three."""
        p_value = self.p_value
        if p_value is None:
            return "not judged"
        return "wrong" if p_value < SIGNIFICANCE else "no fault found"

    @property
    def is_wrong(self) -> bool:
        """Whether a fault was found, and may be named."""
        return self.state == WRONG

    @property
    def short(self) -> str:
        """The state, and the largest fault where there is one: what a column has room for."""
        return f"{WRONG}: {self.fault}" if self.is_wrong and self.fault else self.state

    def __str__(self) -> str:
        """ "wrong: predicted spread too small", "no fault found in 4,096 rows", "not judged: 8 runs of time"."""
        if self.state == NOT_JUDGED:
            return f"{NOT_JUDGED}: {self.reason}"
        return f"{NO_FAULT} in {self.rows:,} rows" if self.state == NO_FAULT and self.rows else self.short
