r"""Evidence that multiplies over looks: e-values from p-values, the test martingale and the e-detector.

An e-value is a nonnegative statistic of mean at most 1 under the hypothesis. Of looks at fresh rows the e-values
multiply to a test martingale, which exceeds :math:`1/\alpha` with probability at most :math:`\alpha`, whenever one
stops (Ville 1939); so a true version is *ever* called wrong with probability at most alpha, over any number of looks.

Several players bet on every look, each by one rule of its own, and begin with equal stakes: their mean is a martingale
again, and it grows like the best of them, whatever the fault is. All functions work with logarithms: evidence of
thousands of looks overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError

POWERS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])
"""kappa of the calibrators: small ones gain most from small p-values, large ones lose least by large ones."""


def e_values(p_values: Any) -> Array:
    r"""log e of each p-value by each of the power calibrators.

    .. math::  e_\kappa(p) = \kappa p^{\kappa - 1}

    decreasing in p with mean 1 under a uniform p, so at most 1 for discrete p-values (Vovk and Wang 2021).

    Args:
        p_values: any shape, in (0, 1].

    Returns:
        Natural logarithms, (len(POWERS), ...).

    Raises:
        InvalidInputError: a p-value outside (0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    wrong = ~((p > 0.0) & (p <= 1.0))
    if wrong.any():
        raise InvalidInputError(f"p_values: {p[wrong].flat[0]} is not in (0, 1]")
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
