"""Probability integral transforms: F_i(y_i) is uniform if F_i is the law of y_i.

Where F_i jumps at y_i (counts, censored laws), F_i(y_i) alone is not uniform even for the true law; a point drawn
uniformly from the jump is.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import keyed_uniforms

PitKind = Literal["randomized", "mid", "nonrandomized"]


def pit_values(
    predictive: Distribution, y: Any, *, kind: PitKind = "randomized", seed: int = 0, keys: Any | None = None
) -> Array:
    """PIT of y_i under the i-th distribution, (n,), in [0, 1].

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        kind: where F_i jumps at y_i: "randomized" a uniform point of the jump, "mid" its middle (Lancaster's mid-p),
            "nonrandomized" its top F_i(y_i). All three agree for continuous laws.
        seed: of the randomisation.
        keys: one number or string per row that names it, (n,). The random number of a row depends on the seed and its
            key alone, so it is the same in every sharding. Row numbers by default.

    Raises:
        InvalidInputError: another kind, or mismatched rows.
    """
    targets = matched_targets(predictive, y)
    upper = predictive.cdf(targets)
    if kind == "nonrandomized":
        return upper
    lower = predictive.cdf_left(targets)
    if kind == "mid":
        return np.asarray((lower + upper) / 2.0)
    if kind != "randomized":
        raise InvalidInputError(f"kind: is {kind!r}, expected 'randomized', 'mid' or 'nonrandomized'")
    share = keyed_uniforms(np.arange(len(targets)) if keys is None else keys, seed, "randomized PIT")
    if len(share) != len(targets):
        raise InvalidInputError(f"keys: {len(share)} keys for {len(targets)} rows; give one key per row")
    return np.asarray(lower + share * (upper - lower))
