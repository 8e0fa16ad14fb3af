r"""Which versions may still be the best, over all looks: a set that nobody leaves wrongly, whenever one stops.

A look scores several versions on the same new rows. Of two versions i and j it gives the difference of their scores in
standard errors, z, a standard normal number where both are equally good, and the sum of the difference over the rows,
which is known to :math:`v^{1/2}`. With S and V the sums of :math:`z v^{1/2}` and of v over the looks so far,

.. math::  e_{ij} = \int_0^\infty e^{\lambda S - \lambda^2 V / 2}\, 2 \varphi(\lambda; 1/r)\, d\lambda
                 = 2 \sqrt{\tfrac{r}{V + r}}\; e^{S^2 / 2(V + r)}\; \Phi\big(S / \sqrt{V + r}\big)

is the capital of who bets that i is worse than j (Robbins 1970). If i, summed over the looks up to any, is expected to
score no worse than j, it stays below a nonnegative martingale of mean 1. A version divides its stake over all others;
it leaves for ever once their capital together reaches :math:`1/\alpha`. So the best version is ever missing in at most
a share :math:`\alpha` of series (Ville 1939; the sequential model confidence sets of Arnold, Gavrilopoulos, Schulz and
Ziegel 2024, for their "uniformly weak" hypothesis: the best on the whole so far, not at every single look).

r is the v of the first look at a pair: the seventh such look or so is where the least difference suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from scipy.special import log_ndtr, ndtri

from congruence.kernels.arrays import Array, mean_one
from congruence.kernels.dependence.blocks import DependentBlocks, SumOfBlocks

LEVEL = 0.05
_LEAST_P = 1e-300


@dataclass(frozen=True)
class LookDifference:
    """What one look says of two versions.

    Attributes:
        score: by how many standard errors the first scores worse than the second, as a standard normal number.
        variance: of the sum of the difference over the rows; 0 where the two score the same everywhere.
    """

    score: float
    variance: float

    @classmethod
    def of(
        cls, first: Array, second: Array, *, weights: Array | None = None, blocks: DependentBlocks | None = None
    ) -> Self:
        """Returns it by the scores of both versions on the same rows, (n,) each; lower is better.

        Args:
            first, second: the scores.
            weights: what each row counts, (n,); equal by default.
            blocks: of rows that depend on each other.
        """
        n = len(first)
        apart = first - second if weights is None else (first - second) * mean_one(weights, n)
        total, centred = float(np.sum(apart)), apart - np.mean(apart)
        known = SumOfBlocks.of(centred if blocks is None else blocks.sums(centred))
        if known.error <= 1e-12 * float(np.sum(np.abs(first) + np.abs(second))):
            return cls(0.0, 0.0)
        p_value = max(known.p_value(total), _LEAST_P)
        return cls(float(np.copysign(ndtri(p_value / 2.0), total)), known.error**2)


Looked = Mapping[tuple[str, str], LookDifference]
"""One look: what it says of each pair of the versions that it scored on the same rows, each pair once."""


@dataclass(frozen=True)
class BestOverLooks:
    """Which versions may still be the best.

    Attributes:
        evidence: against each version, the most that there ever was: 1 is none, 1 / level sends it away.
        left: the number of the look, from 0, at which a version left.
        looks: how many there were.
        level: the largest share of series in which the best version ever leaves.
    """

    evidence: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    looks: int = 0
    level: float = LEVEL

    @property
    def may_be_best(self) -> list[str]:
        """The versions that never left, in the order in which they were first looked at."""
        return [name for name in self.evidence if name not in self.left]


def best_over_looks(looks: Iterable[Looked], level: float = LEVEL) -> BestOverLooks:
    """Returns which versions may still be the best after some looks at rows that no earlier look has seen.

    A version that comes later starts with a share of what each other one's bettors have then.

    Args:
        looks: in the order of their rows.
        level: the largest share of series in which the best version ever leaves.
    """
    bets: dict[str, dict[str, _Bet]] = {}
    most: dict[str, float] = {}
    left: dict[str, int] = {}
    count = 0
    for number, look in enumerate(looks):
        count = number + 1
        differences = {pair: found for pair, found in look.items() if found.variance > 0.0}
        differences |= {(b, a): LookDifference(-found.score, found.variance) for (a, b), found in differences.items()}
        for names in look:
            for name in names:
                most.setdefault(name, 1.0)
        for (name, other), found in differences.items():
            own = bets.setdefault(name, {})
            if other not in own:
                own[other] = _Bet.newcomer(list(own.values()), found)
        for (name, other), found in differences.items():
            bets[name][other].add(found)
        for name in {pair[0] for pair in differences}:
            capital = float(np.exp(min(np.logaddexp.reduce([bet.log_capital for bet in bets[name].values()]), 700.0)))
            most[name] = max(most[name], capital)
            if capital >= 1.0 / level:
                left.setdefault(name, number)
    return BestOverLooks(most, left, count, level)


@dataclass
class _Bet:
    """That one version is worse than another: its sums, its prior, and the logarithm of its stake."""

    prior: float
    log_stake: float
    total: float = 0.0
    variance: float = 0.0

    @classmethod
    def newcomer(cls, others: list[_Bet], first: LookDifference) -> _Bet:
        """A bet that takes an equal share of the capital of those that there are."""
        k = len(others)
        if k == 0:
            return cls(first.variance, 0.0)
        capital = float(np.logaddexp.reduce([bet.log_capital for bet in others]))
        for bet in others:
            bet.log_stake += np.log(k / (k + 1.0))
        return cls(first.variance, capital - np.log(k + 1.0))

    def add(self, found: LookDifference) -> None:
        self.total += found.score * np.sqrt(found.variance)
        self.variance += found.variance

    @property
    def log_capital(self) -> float:
        whole = self.variance + self.prior
        gain = 0.5 * np.log(self.prior / whole) + self.total**2 / (2.0 * whole)
        return float(self.log_stake + np.log(2.0) + gain + log_ndtr(self.total / np.sqrt(whole)))
