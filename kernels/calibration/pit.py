"""Probability integral transforms: F_i(y_i) is uniform if F_i is the law of y_i.

Where F_i jumps at y_i (counts, censored laws), F_i(y_i) alone is not uniform even for the true law; a point drawn
uniformly from the jump is. Of l draws of F_i (ensembles), the rank of y_i among l + 1 is uniform: (rank + V) / (l + 1).
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.scores import matched_targets

PitKind = Literal["randomized", "mid", "nonrandomized"]


def pit_values(
    predictive: Distribution, y: Any, *, kind: PitKind = "randomized", seed: int = 0, keys: Any | None = None
) -> Array:
    """PIT of y_i under the i-th distribution, (n,), in [0, 1].

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        kind: where F_i jumps at y_i: "randomized" a uniform point of the jump, "mid" its middle (Lancaster's mid-p),
            "nonrandomized" its top F_i(y_i). All three agree for continuous laws. For draws (``Samples``) the jump is
            the place of y_i among them, and "nonrandomized" their empirical distribution function.
        seed: of the randomisation.
        keys: one number or string per row that names it, (n,). The random number of a row depends on the seed and its
            key alone, so it is the same in every sharding. Row numbers by default.

    Raises:
        InvalidInputError: another kind, or mismatched rows.
    """
    targets = matched_targets(predictive, y)
    if kind == "nonrandomized":
        return predictive.cdf(targets)
    lower, upper = predictive.pit_range(targets)
    if kind == "mid":
        return np.asarray((lower + upper) / 2.0)
    if kind != "randomized":
        raise InvalidInputError(f"kind: is {kind!r}, expected 'randomized', 'mid' or 'nonrandomized'")
    share = keyed_uniforms(np.arange(len(targets)) if keys is None else keys, seed)
    if len(share) != len(targets):
        raise InvalidInputError(f"keys: {len(share)} keys for {len(targets)} rows; give one key per row")
    return np.asarray(lower + share * (upper - lower))


def require_pit(values: Any, *, at_least: int = 1) -> Array:
    """``values`` as PIT values (n,) in [0, 1].

    Raises:
        InvalidInputError: fewer than ``at_least`` values, another shape, or a value that is no probability, by row.
    """
    pit = require_targets(values, "values")
    if pit.ndim != 1 or len(pit) < at_least:
        raise InvalidInputError(f"values: shape {pit.shape}, expected {at_least} or more PIT values (n,)")
    inside = (pit >= 0.0) & (pit <= 1.0)
    if not bool(np.all(inside)):
        row = int(np.argmin(inside))
        raise InvalidInputError(
            f"values: row {row} is {pit[row]:g}; PIT values lie in [0, 1], as pit_values(predictive, y) gives them"
        )
    return pit


def keyed_uniforms(keys: Any, seed: int) -> Array:
    """One uniform number in [0, 1) per key (n,), a function of the key and the seed alone.

    Whole numbers count by their value, everything else by its text.
    """
    mixed = _scramble(_scramble(hashed_keys(keys)) ^ hashed_keys([f"seed {seed}"]))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hashed_keys(keys: Any) -> Array:
    """64-bit numbers that stand for the keys, (n,): near numbers stay near."""
    array = np.asarray(keys)
    if array.dtype.kind in "iub":
        return np.asarray(array.astype(np.int64).view(np.uint64))
    digests = b"".join(hashlib.blake2b(str(key).encode(), digest_size=8).digest() for key in array)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _scramble(numbers: Array) -> Array:
    """The output function of SplitMix64 (Steele et al. 2014): near keys give unrelated numbers."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
