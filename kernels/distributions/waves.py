"""Waves exp(i t v), and averages of them: characteristic functions.

At equally spaced frequencies a wave is the one before it times exp(i step v): a product takes a tenth of the time of a
sine and a cosine. Every 32 frequencies they are computed afresh, so that rounding stays at 1e-14.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array, row_slices

_ANEW = 32  # frequencies
_BLOCK_VALUES = 512  # whose waves at 32 frequencies stay in the cache
_BLOCK_TERMS = 8_000  # the same of the terms of averages
_POINT = 1e-290  # half the width of a point, for the ratio sin(x) / x


def waves(values: Array, t: Array) -> Array:
    """exp(i t_j v), shape (..., m), for real values v (...) and frequencies t (m,)."""
    flat, t = np.asarray(values, dtype=np.float64).ravel(), np.asarray(t, dtype=np.float64)
    step = _step(t)
    if step is None:
        return np.asarray(np.exp(1j * np.multiply.outer(values, t)))
    result = np.empty((len(flat), len(t)), dtype=np.complex128)
    for rows in row_slices(len(flat), _BLOCK_VALUES):
        some = flat[rows]
        powers = _powers(np.exp(1j * step * some), min(_ANEW, len(t)))
        for first in range(0, len(t), _ANEW):
            shared = powers[: len(t) - first]
            if t[first] != 0.0:
                shared = shared * np.exp(1j * t[first] * some)
            result[rows, first : first + _ANEW] = shared.T
    return result.reshape(*np.shape(values), len(t))


def average_wave(values: Array, weights: Array, t: Array, *, half_widths: Array | None = None) -> Array:
    """sum_k w_ik exp(i t_j v_ik), shape (n, m), for values (n, k), real or complex, and weights (k,) or (n, k).

    With ``half_widths`` h (n, k) of uniform distributions around the values in their place: each wave times sin(t h) /
    (t h).
    """
    result = np.empty((len(values), len(t)), dtype=np.complex128)
    step = _step(t)
    for rows in row_slices(len(values), _BLOCK_TERMS // max(1, values.shape[1])):  # in the cache over all frequencies
        shares = weights[:, None] if weights.ndim == 1 else weights[rows].T
        of_values = _Turning(1j * np.ascontiguousarray(values[rows].T), step, shares)
        if half_widths is None:
            for j, frequency in enumerate(t):
                result[rows, j] = of_values.at(j, frequency).sum(axis=0)
            continue
        half = np.maximum(np.ascontiguousarray(half_widths[rows].T), _POINT)
        of_widths, inverse = _Turning(1j * half, step, 1.0), 1.0 / half
        for j, frequency in enumerate(t):
            wave, sines = of_values.at(j, frequency), of_widths.at(j, frequency).imag
            if frequency != 0.0:
                wave = wave * (sines * (inverse / frequency))
            result[rows, j] = wave.sum(axis=0)
    return result


def _powers(turn: Array, count: int) -> Array:
    """turn^0, ..., turn^(count - 1), (count, n), by doubling."""
    powers = np.ones((count, len(turn)), dtype=np.complex128)
    done = 1
    while done < count:
        more = min(done, count - done)
        np.multiply(powers[:more], turn, out=powers[done : done + more])
        turn, done = turn * turn, 2 * done
    return powers


def _step(t: Array) -> float | None:
    """The distance of equally spaced frequencies; None of others."""
    steps = np.diff(t)
    equally = len(t) > 2 and bool(np.allclose(steps, steps[0], rtol=1e-12, atol=0.0))
    return float(steps[0]) if equally else None


class _Turning:
    """weight exp(phase t_j), asked for at one frequency after another."""

    def __init__(self, phase: Array, step: float | None, weight: Array | float) -> None:
        self._phase, self._weight = phase, weight
        self._turn = None if step is None else np.exp(phase * step)
        self._wave: Array = np.empty(0)

    def at(self, j: int, frequency: float) -> Array:
        if self._turn is None or j % _ANEW == 0:
            self._wave = np.exp(self._phase * frequency) * self._weight
        else:
            self._wave *= self._turn
        return self._wave
