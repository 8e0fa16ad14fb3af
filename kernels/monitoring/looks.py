r"""The account of looks at one version: what each found on rows that no look had seen, and what all of them say.

Half of the stake is multiplied over looks (the test martingale M of players who bet on p-values and PIT values), half
is spent look by look (alpha spending), so that what one look shows clearly is found at once, and what many show faintly
is found at last:

.. math::  \tfrac12 M_k + \tfrac12 \, \mathrm{spending}_k \ge 1/\alpha

calls a version wrong, where spending is at half the level and pays twice; true versions are ever called wrong with
probability at most alpha. The e-detector over the same e-values tells a change: while the version is right its alarms
are ``average_run_length`` looks apart or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.monitoring import evidence

Verdict = Literal["right so far", "wrong", "changed"]


@dataclass(frozen=True)
class Look:
    """One look: a test on rows that no earlier look has seen.

    Attributes:
        evidence: what it was tested on, by digest: the same evidence again is the same look.
        p_value: of the test; of several tests, corrected for their number.
        when: what people call it, such as the date of its rows.
        log_bet: logarithm of a further e-value of the same rows (``score_bet``), if there is one.
        rows: how many rows it looked at.
        tests: the p-values of the tests by themselves, two at most, where there are several.
    """

    evidence: str
    p_value: float
    when: str = ""
    log_bet: float | None = None
    rows: int = 0
    tests: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for p_value in (self.p_value, *self.tests):
            if not 0.0 < p_value <= 1.0:
                raise InvalidInputError(f"p_value: is {p_value}, expected a probability in (0, 1]")
        object.__setattr__(self, "tests", tuple(self.tests))  # a list, where it was read from JSON

    @property
    def log_e(self) -> float:
        """Logarithm of the look's e-value by itself."""
        return float(evidence.martingale(_players([self]))[0])


@dataclass(frozen=True)
class Monitor:
    """All looks at one version: a value; ``with_look`` gives the next one.

    Attributes:
        level: the probability at most with which a true version is ever called wrong.
        average_run_length: looks between false alarms of a change, at least, on average.
        looks: in the order in which they were made.
    """

    level: float = 0.05
    average_run_length: float = 1000.0
    looks: tuple[Look, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise InvalidInputError(f"level: is {self.level}, expected a probability inside (0, 1), such as 0.05")
        if not self.average_run_length > 1.0:
            raise InvalidInputError(f"average_run_length: is {self.average_run_length}, expected more than 1 look")

    def with_look(self, look: Look) -> Self:
        """The account after a look; unchanged where its evidence was looked at before."""
        if any(known.evidence == look.evidence for known in self.looks):
            return self
        return replace(self, looks=(*self.looks, look))

    @cached_property
    def _log_e(self) -> Array:
        return _players(self.looks)

    @cached_property
    def evidence(self) -> Array:
        """log M after each look, (looks,): wrong where it reaches log(1 / level)."""
        p_values = np.array([look.p_value for look in self.looks], dtype=np.float64)
        both = evidence.martingale(self._log_e), evidence.spending(p_values, self.level / 2.0)
        return np.asarray(np.logaddexp(*both) - np.log(2.0))

    @cached_property
    def detector(self) -> Array:
        """log S of the e-detector after each look, (looks,): an alarm where it reaches log(average_run_length)."""
        return evidence.detector(self._log_e)

    @property
    def wrong_at(self) -> int | None:
        """The first look, counted from 0, that called the version wrong: later looks do not take it back."""
        return _first(self.evidence >= -np.log(self.level))

    @property
    def alarm_at(self) -> int | None:
        """The first look, counted from 0, at which the e-detector raised an alarm."""
        return _first(self.detector >= np.log(self.average_run_length))

    @property
    def began_at(self) -> int | None:
        """The look at which the fault likeliest began, where there is one."""
        found_at = [at for at in (self.wrong_at, self.alarm_at) if at is not None]
        return int(evidence.likeliest_start(self._log_e[:, : min(found_at) + 1])) if found_at else None

    @property
    def verdict(self) -> Verdict:
        """right so far; wrong (since the first look); or changed (right at first, wrong since ``began_at``)."""
        if self.began_at is None:
            return "right so far"
        return "wrong" if self.began_at == 0 else "changed"

    def sentence(self) -> str:
        """The verdict in words, with the looks it rests on."""
        count = f"{len(self.looks)} look{'' if len(self.looks) == 1 else 's'}"
        if self.began_at is None:
            return f"right so far ({count})" if self.looks else "not looked at yet"
        found = min(at for at in (self.wrong_at, self.alarm_at) if at is not None)
        if self.verdict == "wrong":
            return f"wrong, first shown on {self._called(found)} ({count})"
        return f"changed since {self._called(self.began_at)}, shown on {self._called(found)} ({count})"

    def _called(self, at: int) -> str:
        return self.looks[at].when or f"look {at + 1}"


def _players(looks: Sequence[Look]) -> Array:
    """log e of every player at every look, (players, looks)."""
    first = [look.tests[0] if look.tests else look.p_value for look in looks]
    second = [look.tests[-1] if look.tests else look.p_value for look in looks]
    return evidence.players(first, second, [np.nan if look.log_bet is None else look.log_bet for look in looks])


def _first(where: Array) -> int | None:
    return int(np.argmax(where)) if where.any() else None
