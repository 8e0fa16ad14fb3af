r"""Betting on PIT scores: e-values of a look's rows from what earlier looks showed.

The scores :math:`\phi_j`, j = 1..4 (shifted Legendre polynomials of the PIT value; of a count their mean over the
randomisation) have mean 0 given the input and :math:`|\phi_j| \le \sqrt{2j + 1}`, if the version is the truth. So with
bets :math:`\lambda` that earlier looks alone have set,

.. math::  e = \prod_i \Bigl(1 + \sum_j \lambda_j \phi_{ij}\Bigr), \qquad \sum_j |\lambda_j| \sqrt{2j + 1} \le c < 1

has mean 1 (Waudby-Smith and Ramdas 2024; for PIT values Arnold, Henzi and Ziegel 2023). A fault of calibration on
average that persists is bet on from the second look with all rows of it; one that cancels on average is left to the
p-values. Rows of one block are one observation: their mean is bet on.

Several players bet, on one order or all of them, boldly or carefully, and one not at all; each begins a look with what
the others and it have won (a mixture, of which a share is dealt out evenly at every look so that none is ever ruined).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError

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


@dataclass(frozen=True)
class ScoreBet:
    """One look's bet.

    Attributes:
        log_e: the logarithm of its e-value; 0 at a first look.
        sums: for the next look.
    """

    log_e: float
    sums: ScoreSums


def score_bet(scores: Any, before: ScoreSums, blocks: Any = None) -> ScoreBet:
    """Bet on a look's scores by what the looks before it showed.

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
    return ScoreBet(log_e, before.after(scores, np.exp(wins - log_e)))
