r"""Evidence that multiplies over looks: e-values from p-values, the test martingale and the e-detector.

An e-value is a nonnegative statistic of mean at most 1 under the hypothesis. Of looks at fresh rows the e-values
multiply to a test martingale, which exceeds :math:`1/\alpha` with probability at most :math:`\alpha`, whenever one
stops (Ville 1939); so a true version is *ever* called wrong with probability at most alpha, over any number of looks.

Several players bet on every look, each by one rule of its own, and begin with equal stakes: their mean is a martingale
again, and it grows like the best of them, whatever the fault is. All functions work with logarithms: evidence of
thousands of looks overflows.

They bet on PIT scores, too. The scores :math:`\phi_j`, j = 1..4 (shifted Legendre polynomials of the PIT value; of a
count their mean over the randomisation) have mean 0 given the input and :math:`|\phi_j| \le \sqrt{2j + 1}`, if the
version is the truth. So with bets :math:`\lambda` that earlier looks alone have set,

.. math::  e = \prod_i \Bigl(1 + \sum_j \lambda_j \phi_{ij}\Bigr), \qquad \sum_j |\lambda_j| \sqrt{2j + 1} \le c < 1

has mean 1 (Waudby-Smith and Ramdas 2024; for PIT values Arnold, Henzi and Ziegel 2023). A fault of calibration on
average that persists is bet on from the second look with all rows of it; one that cancels on average is left to the
p-values. Rows of one block are one observation: their mean is bet on.

Several players bet, on one order or all of them, boldly or carefully, and one not at all; each begins a look with what
the others and it have won (a mixture, of which a share is dealt out evenly at every look so that none is ever ruined).

Half of the stake is multiplied over looks (the test martingale M of players who bet on p-values and PIT values), half
is spent look by look (alpha spending), so that what one look shows clearly is found at once, and what many show faintly
is found at last:

.. math::  \tfrac12 M_k + \tfrac12 \, \mathrm{spending}_k \ge 1/\alpha

calls a version wrong, where spending is at half the level and pays twice; true versions are ever called wrong with
probability at most alpha. The e-detector over the same e-values tells a change: while the version is right its alarms
are ``average_run_length`` looks apart or more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError

POWERS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])
"""kappa of the calibrators: small ones gain most from small p-values, large ones lose least by large ones."""


def e_values(p_values: Any) -> Array:
    r"""log e of each p-value by each of the power calibrators.

    .. math::  e_\kappa(p) = \kappa p^{\kappa - 1}

    decreasing in p with mean 1 under a uniform p, so at most 1 for discrete p-values (Vovk and Wang 2021). Natural
    logarithms, (len(POWERS), ...), of p-values of any shape in (0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    powers = POWERS.reshape(-1, *(1,) * p.ndim)
    return np.asarray(np.log(powers) + (powers - 1.0) * np.log(p))


def players(first: Any, second: Any, log_bet: Any) -> Array:
    """log e of what each player makes of each look.

    For each power one bets on the first p-value, one on the second, one on both in halves, and one half on both and
    half on the bet; as many as there are powers, over two, bet on the bet alone.

    Args:
        first: p-values of one test, (..., looks).
        second: of another one on the same rows, as ``first`` where there is none.
        log_bet: logarithm of a further e-value of each look; NaN where there is none.

    Returns:
        (players, ..., looks).
    """
    one, two = e_values(first), e_values(second)
    both = np.logaddexp(one, two) - np.log(2.0)
    absent, bet = np.isnan(np.asarray(log_bet, dtype=np.float64)), np.nan_to_num(np.asarray(log_bet, dtype=np.float64))
    shared = np.where(absent, both, np.logaddexp(both, bet) - np.log(2.0))
    alone = np.broadcast_to(bet, (len(POWERS) // 2 + 1, *one.shape[1:]))
    return np.concatenate([one, two, both, shared, alone])


def martingale(log_e: Array) -> Array:
    """Log of the players' mean after each look: (players, ..., looks) to (..., looks)."""
    return _mean(np.cumsum(np.asarray(log_e, dtype=np.float64), axis=-1))


def spending(p_values: Array, level: float) -> Array:
    r"""Log of the e-process of alpha spending: :math:`1/\alpha` from the first look with p <= 6 alpha / (pi^2 k^2) on.

    A share 6 / (pi^2 k^2) of the stake is bet at look k on its p-value alone: it finds at once what one look shows
    clearly, and gathers nothing. Shapes (..., looks) both; -inf before the first.
    """
    p = np.asarray(p_values, dtype=np.float64)
    levels = 6.0 * level / (np.pi * np.arange(1, p.shape[-1] + 1)) ** 2
    with np.errstate(divide="ignore"):
        return np.log(np.cumsum(p <= levels, axis=-1) / level)


def detector(log_e: Array) -> Array:
    r"""The e-detector: log S of each look, (players, ..., looks) to (..., looks).

    .. math::  S_k = (S_{k-1} + 1) e_k = \sum_{j \le k} \prod_{i=j}^{k} e_i

    of each player, and their mean. An alarm at S >= A comes no more often than every A looks on average while the
    version is right (Shin, Ramdas and Rinaldo 2023).
    """
    log_e = np.asarray(log_e, dtype=np.float64)
    total, sums = np.full(log_e.shape[:-1], -np.inf), np.empty(log_e.shape)
    for look in range(log_e.shape[-1]):
        total = np.logaddexp(total, 0.0) + log_e[..., look]
        sums[..., look] = total
    return _mean(sums)


def likeliest_start(log_e: Array) -> Array:
    """The look at which a fault that was found at the last look began: the largest summand of the e-detector there.

    (players, ..., looks) to (...) of integers.
    """
    since = np.cumsum(np.asarray(log_e, dtype=np.float64)[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(_mean(since).argmax(axis=-1))


def _mean(logarithms: Array) -> Array:
    return np.asarray(np.logaddexp.reduce(logarithms, axis=0) - np.log(logarithms.shape[0]))


ORDERS = 4
BOUNDS = np.sqrt(2.0 * np.arange(1, ORDERS + 1) + 1.0)
_CAUTION = 0.9
_SHRINKAGE = 50.0
_MEMORY = 0.9
_DEALT = 0.05
_ONE_ORDER = np.eye(ORDERS)
_ALL = np.ones((1, ORDERS))
_PLAYERS = np.concatenate([0.0 * _ALL, _ONE_ORDER, _ALL, 0.3 * _ONE_ORDER, 0.3 * _ALL])
_FIRST_SHARES = np.concatenate([[0.5], np.full(len(_PLAYERS) - 1, 0.5 / (len(_PLAYERS) - 1))])


@dataclass(frozen=True)
class ScoreSums:
    """What looks so far showed of the scores, older looks counting less.

    Attributes:
        rows: how many rows or blocks, discounted.
        sums: of each score over them, (4,).
        squares: of each squared score over them, (4,).
        shares: of the stake that each player begins the next look with, (players,).
    """

    rows: float = 0.0
    sums: tuple[float, ...] = (0.0,) * ORDERS
    squares: tuple[float, ...] = (0.0,) * ORDERS
    shares: tuple[float, ...] = tuple(_FIRST_SHARES.tolist())

    def bets(self) -> Array:
        """lambda of each player, (players, 4): the mean over the variance, bounded so that every factor is positive."""
        weight = max(self.rows, 1.0)
        variance = (np.asarray(self.squares) + _SHRINKAGE) / (weight + _SHRINKAGE)
        bets = _PLAYERS * (np.asarray(self.sums) / weight / variance)
        stakes = np.abs(bets) @ BOUNDS
        return np.asarray(bets * np.minimum(1.0, _CAUTION / np.maximum(stakes, 1e-12))[:, None])

    def after(self, scores: Array, won: Array) -> ScoreSums:
        """The sums after a look with these scores (rows, 4), in which the players had the shares ``won``."""
        return ScoreSums(
            _MEMORY * self.rows + scores.shape[0],
            tuple((_MEMORY * np.asarray(self.sums) + scores.sum(axis=0)).tolist()),
            tuple((_MEMORY * np.asarray(self.squares) + (scores**2).sum(axis=0)).tolist()),
            tuple(((1.0 - _DEALT) * won + _DEALT * _FIRST_SHARES).tolist()),
        )


def score_bet(scores: Any, before: ScoreSums, blocks: Any = None) -> tuple[float, ScoreSums]:
    """Bet on a look's scores by what the looks before it showed.

    Returns the logarithm of the bet's e-value, 0 at a first look, and the sums for the next one.

    Args:
        scores: (rows, 4), of rows that no earlier look has seen.
        before: the sums after the look before.
        blocks: (rows,) labels of blocks whose rows depend on each other; every row by itself where None.

    Raises:
        InvalidInputError: another shape, a value that is not finite, or a score beyond its bound.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] != ORDERS or scores.shape[0] == 0:
        raise InvalidInputError(f"scores: has the shape {scores.shape}, expected (rows, {ORDERS})")
    beyond = ~(np.abs(scores) <= BOUNDS * (1.0 + 1e-9))
    if beyond.any():
        row, order = np.argwhere(beyond)[0]
        raise InvalidInputError(
            f"scores: row {row}, order {order + 1} is {scores[row, order]}, expected at most {BOUNDS[order]:.3f}"
        )
    if blocks is not None:
        _, block = np.unique(np.asarray(blocks), return_inverse=True)
        counts = np.bincount(block)
        scores = np.stack([np.bincount(block, weights=column) / counts for column in scores.T], axis=1)
    wins = np.log(before.shares) + np.log1p(scores @ before.bets().T).sum(axis=0)
    log_e = float(np.logaddexp.reduce(wins))
    return log_e, before.after(scores, np.exp(wins - log_e))


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
        """log e of every player at every look, (players, looks)."""
        tests = [look.tests or (look.p_value,) for look in self.looks]
        log_bets = [np.nan if look.log_bet is None else look.log_bet for look in self.looks]
        return players([some[0] for some in tests], [some[-1] for some in tests], log_bets)

    @cached_property
    def evidence(self) -> Array:
        """log M after each look, (looks,): wrong where it reaches log(1 / level)."""
        p_values = np.array([look.p_value for look in self.looks], dtype=np.float64)
        both = martingale(self._log_e), spending(p_values, self.level / 2.0)
        return np.asarray(np.logaddexp(*both) - np.log(2.0))

    @cached_property
    def detector(self) -> Array:
        """log S of the e-detector after each look, (looks,): an alarm where it reaches log(average_run_length)."""
        return detector(self._log_e)

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
        return int(likeliest_start(self._log_e[:, : min(found_at) + 1])) if found_at else None

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


def _first(where: Array) -> int | None:
    return int(np.argmax(where)) if where.any() else None
