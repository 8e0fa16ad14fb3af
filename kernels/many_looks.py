r"""Testing for ever: an account of looks at each version, so that a true one is hardly ever called wrong.

A version that is tested again and again at the 5 % level, on new data or on more of it, is called wrong sooner or
later, true or not. Here its k-th look has the level

.. math::  \alpha_k = \alpha \frac{6}{\pi^2 k^2}, \qquad \sum_k \alpha_k = \alpha,

so the probability that a true version is *ever* called wrong is at most alpha, whatever the dependence of the looks
(alpha spending; Lan and DeMets 1983, with Bonferroni's bound in place of joint normality). Among true versions the
share ever called wrong is then at most alpha. A look is named by its evidence (the digest of data and protocol): the
same evidence again is no new look, and the first decision stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from congruence.kernels.errors import InvalidInputError

Scope = Literal["version", "name"]
_VERSION_OF_RECORD = 1


@dataclass(frozen=True)
class Look:
    """One test of one version.

    Attributes:
        version: which.
        evidence: what it was tested on.
        p_value: of the test.
        level: at or below which the p-value counts, what this look spends.
    """

    version: str
    evidence: str
    p_value: float
    level: float

    @property
    def wrong(self) -> bool:
        """Whether this look called the version wrong."""
        return self.p_value <= self.level


@dataclass(frozen=True)
class LookAccount:
    """All looks at the versions of one model name: a value; ``with_look`` gives the next one.

    Attributes:
        level: alpha.
        scope: "version": each version spends alpha of its own, and the share of true versions ever called wrong is at
            most alpha. "name": all versions spend one alpha, and the probability that *any* true version of the name is
            ever called wrong is at most alpha; levels fall with every version, so power does.
        looks: in their order.
    """

    level: float = 0.05
    scope: Scope = "version"
    looks: tuple[Look, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise InvalidInputError(f"level: is {self.level}, expected a probability inside (0, 1), such as 0.05")
        if self.scope not in ("version", "name"):
            raise InvalidInputError(f"scope: is {self.scope!r}, expected 'version' or 'name'")

    def next_level(self, version: str) -> float:
        """The level of a further look at a version."""
        before = sum(1 for look in self.looks if self.scope == "name" or look.version == version)
        return float(self.level * 6.0 / (np.pi * (before + 1)) ** 2)

    def draws_needed(self, version: str) -> int:
        """Draws B of a Monte-Carlo test whose smallest p-value, 1 / (B + 1), reaches the next level."""
        return int(np.ceil(1.0 / self.next_level(version) * (1.0 - 1e-12))) - 1

    def with_look(self, version: str, evidence: str, p_value: float) -> tuple[Self, Look]:
        """The account after a test of a version, and the look; the first one where this evidence was seen before.

        Raises:
            InvalidInputError: no p-value.
        """
        if not 0.0 <= p_value <= 1.0:
            raise InvalidInputError(f"p_value: is {p_value}, expected a probability in [0, 1]")
        for look in self.looks:
            if (look.version, look.evidence) == (version, evidence):
                return self, look
        look = Look(version, evidence, float(p_value), self.next_level(version))
        return replace(self, looks=(*self.looks, look)), look

    def ever_wrong(self, version: str) -> bool:
        """Whether any look called the version wrong: a verdict that later looks do not take back."""
        return any(look.wrong for look in self.looks if look.version == version)

    def adjusted_p_value(self, version: str) -> float:
        """The level at which the version's looks so far would call it wrong: at most alpha if and only if they did."""
        ratios = [look.p_value / look.level for look in self.looks if look.version == version]
        return min(1.0, self.level * min(ratios)) if ratios else 1.0

    def to_record(self) -> dict[str, Any]:
        """As JSON values."""
        looks = [[look.version, look.evidence, look.p_value, look.level] for look in self.looks]
        return {"record": _VERSION_OF_RECORD, "level": self.level, "scope": self.scope, "looks": looks}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The account that ``to_record`` wrote.

        Raises:
            InvalidInputError: something else.
        """
        try:
            if record["record"] != _VERSION_OF_RECORD:
                raise InvalidInputError(f"record: has the form {record['record']!r}, expected {_VERSION_OF_RECORD}")
            looks = tuple(Look(str(v), str(e), float(p), float(a)) for v, e, p, a in record["looks"])
            return cls(float(record["level"]), record["scope"], looks)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"record: is no account of looks ({error}); start a new LookAccount()") from error
