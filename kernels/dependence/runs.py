r"""How long runs of consecutive rows are, for rows of different runs to be nearly independent.

A run of consecutive rows has b = 2 * 1.1447 (alpha n)^{1/3} rows, where correlations rho phi^{k - 1} at lag k have

.. math::  \alpha = \Big(\frac{\sum_k |k| \rho_k}{\sum_k \rho_k}\Big)^2
                  = \Big(\frac{2 \rho}{(1 - \phi)^2} \Big/ \Big(1 + \frac{2 \rho}{1 - \phi}\Big)\Big)^2 :

Andrews' (1991) plug-in for the Bartlett window, doubled, since the plain one leaves runs that still depend on each
other. phi is rho, as of an autoregression; where there is noise beside it (of counts, or of targets that are measured
with errors of their own), which hides a part of rho and nothing of phi, the correlations beyond lag 1 say more. What
moves more slowly than a quarter of the series is taken off before: a fault that follows a slow input is no correlation.
A season, such as the days of hourly rows, comes back beyond the lags that say so: where it does, a run is of whole
seasons, as many as depend on each other by the correlation from one to the next.
Of the four PIT scores the one that asks for the longest runs decides.
"""

from __future__ import annotations

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.special

from congruence.kernels.arrays import Array

_LARGEST_CORRELATION = 0.98
_LAGS = 8  # from which phi is read
_CLEAR = 2.0  # standard errors of the sum of the partial correlations beyond lag 1, from which on phi is more than rho
SLOW_WAVES, _ROWS_OF_A_WAVE = 8, 150  # cosines that are taken off, at most one for so many rows
_SEASON_BY_CHANCE = 0.01  # of splits without a season, over four scores and all lags
_SMALL = 0.1  # correlation of seasons that adds less than a quarter to a variance
_SEASONS_TRIED, _SEASONAL_ROWS = 12, 2**17  # lags, and rows in which a season is looked for, at the most


def run_length(score: Array) -> int:
    """b of one score (n,) in the order of time.

    An autoregression has no partial correlations beyond lag 1, and those of a sample have a variance of 1 / n each.
    Where their sum is clearly more, the ratio of neighbouring correlations says how slowly they decay.
    """
    n, rest = len(score), score - np.mean(score)
    for k in range(1, max(1, min(SLOW_WAVES, n // _ROWS_OF_A_WAVE)) + 1):  # the slowest cosines, which are orthogonal
        wave = np.cos(np.pi * k * (np.arange(n) + 0.5) / n)
        rest = rest - wave * (2.0 / n * float(wave @ rest))
    rest = rest - np.mean(rest)
    total = float(rest @ rest)
    rho = np.array([rest[lag:] @ rest[:-lag] / total if total > 0.0 else 0.0 for lag in range(1, _LAGS + 1)])
    partial = [scipy.linalg.solve_toeplitz(np.r_[1.0, rho[: lag - 1]], rho[:lag])[-1] for lag in range(2, _LAGS + 1)]
    decay = 0.0
    if rho[0] > 0.0 and sum(partial) > _CLEAR * np.sqrt(len(partial) / n):
        decay = float(rho[1:] @ rho[:-1] / (rho[:-1] @ rho[:-1]))
    return max(block_length(rho[0], n, decay), _seasonal_length(rest))


def _seasonal_length(rest: Array) -> int:
    """b by the season that comes back most clearly in what is left of a score (n,); 0 without one.

    It is looked for from the lag on at which the correlation has fallen to noise, with Bartlett's error. What is the
    same in every season is taken off before one is held against the next: a fault of some hours is no correlation.
    """
    some = rest[:_SEASONAL_ROWS]
    n, most = len(some), len(some) // 4
    size = scipy.fft.next_fast_len(n + most, real=True)
    products = scipy.fft.irfft(np.abs(scipy.fft.rfft(some, size)) ** 2, size)[: most + 1]
    if most == 0 or products[0] <= 0.0:
        return 0
    rho, left = products[1:] / products[0], n - np.arange(1.0, most + 1.0)
    errors = np.sqrt((1.0 + 2.0 * np.cumsum(np.maximum(rho, 0.0) ** 2)) / left)
    ratios = rho * n / left / errors
    ratios = np.where(np.maximum.accumulate(ratios < 1.0), ratios, 0.0)  # of what has not fallen yet
    if np.max(ratios) < -scipy.special.ndtri(_SEASON_BY_CHANCE / 4.0 / most):
        return 0
    lags = [int(lag) + 1 for lag in np.argsort(-ratios)[:_SEASONS_TRIED] if 2.0 * ratios[lag] > np.max(ratios)]
    tried = [some[: n // lag * lag].reshape(-1, lag) for lag in lags]
    # Of 24, 25 and 48 hours that whose means explain the most beyond chance.
    variance = float(np.mean(some**2))

    def explained(seasons: Array) -> float:
        return float(len(seasons) * np.sum(np.mean(seasons, axis=0) ** 2) / variance - seasons.shape[1])

    seasons = max(tried, key=lambda each: explained(each) / np.sqrt(each.shape[1]))
    seasons = seasons - seasons.mean(axis=0)
    count, lag = seasons.shape
    correlation = float(np.sum(seasons[1:] * seasons[:-1]) / np.sum(seasons**2)) + 1.0 / count  # as means cost so much
    clear = correlation > max(_SMALL, _CLEAR * errors[lag - 1])
    return lag * block_length(correlation, len(rest) // lag) if clear else 0


def block_length(correlation: float, n: int, decay: float = 0.0) -> int:
    """b, at least 1 and at most n, from the lag-1 correlation and phi, where that is more than this correlation."""
    rho = min(max(correlation, 0.0), _LARGEST_CORRELATION)
    apart = 1.0 - min(max(decay, rho), _LARGEST_CORRELATION)
    alpha = (2.0 * rho / apart**2 / (1.0 + 2.0 * rho / apart)) ** 2
    return int(np.clip(np.ceil(2.0 * 1.1447 * (alpha * n) ** (1.0 / 3.0)), 1, n))
