r"""The account of looks at one version: what each found on rows that no look had seen, and what all of them say.

Half of the stake is multiplied over looks (the test martingale), half is spent look by look (alpha spending), so that
what one look shows clearly is found at once, and what many show faintly is found at last:

.. math::  M_k = \tfrac12 \prod_{i \le k} e_i + \tfrac12 \, \mathrm{spending}_k \ge 1/\alpha

calls a version wrong, where spending is at half the level and pays twice; true versions are ever called wrong with
probability at most alpha. The e-detector over the same e-values tells a change: while the version is right its alarms
are ``average_run_length`` looks apart or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.monitoring import evidence

Verdict = Literal["right so far", "wrong", "changed"]
_FORM = 2


@dataclass(frozen=True)
class Look:
    """One look: a test on rows that no earlier look has seen.

    Attributes:
        evidence: what it was tested on, by digest: the same evidence again is the same look.
        p_value: of the test.
        when: what people call it, such as the date of its rows.
        log_bet: logarithm of a further e-value of the same rows (``score_bet``), if there is one.
        rows: how many rows it looked at.
    """

    evidence: str
    p_value: float
    when: str = ""
    log_bet: float | None = None
    rows: int = 0

    @property
    def log_e(self) -> float:
        """Logarithm of the look's e-value: half on its p-value, half on its bet, where it has one."""
        calibrated = float(evidence.e_values(self.p_value))
        return calibrated if self.log_bet is None else float(np.logaddexp(calibrated, self.log_bet) - np.log(2.0))


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
        """The account after a look; unchanged where its evidence was looked at before.

        Raises:
            InvalidInputError: no p-value in (0, 1].
        """
        if not 0.0 < look.p_value <= 1.0:
            raise InvalidInputError(f"p_value: is {look.p_value}, expected a probability in (0, 1]")
        if any(known.evidence == look.evidence for known in self.looks):
            return self
        return replace(self, looks=(*self.looks, look))

    @cached_property
    def _log_e(self) -> Array:
        return np.array([look.log_e for look in self.looks], dtype=np.float64)

    @cached_property
    def evidence(self) -> Array:
        """log M after each look, (looks,): wrong where it reaches log(1 / level)."""
        p_values = np.array([look.p_value for look in self.looks], dtype=np.float64)
        both = evidence.martingale(self._log_e), evidence.spending(p_values, self.level / 2.0)
        return np.asarray(np.logaddexp(*both) - np.log(2.0))

    @cached_property
    def detector(self) -> Array:
        """log S of the e-detector after each look, (looks,): an alarm where it reaches log(average_run_length)."""
        return evidence.detector(self._log_e)[0]

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
        return int(evidence.detector(self._log_e)[1][min(found_at)]) if found_at else None

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

    def to_record(self) -> dict[str, Any]:
        """As JSON values."""
        settings = {"level": self.level, "average_run_length": self.average_run_length}
        return {"form": _FORM} | settings | {"looks": [asdict(look) for look in self.looks]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The account that ``to_record`` wrote.

        Raises:
            InvalidInputError: something else.
        """
        try:
            if record["form"] != _FORM:
                raise InvalidInputError(f"record: has the form {record['form']!r}, expected {_FORM}")
            looks = tuple(Look(**look) for look in record["looks"])
            return cls(float(record["level"]), float(record["average_run_length"]), looks)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"record: is no account of looks ({error}); begin with Monitor()") from error


def _first(where: Array) -> int | None:
    return int(np.argmax(where)) if where.any() else None
