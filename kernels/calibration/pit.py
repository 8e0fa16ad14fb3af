"""Probability integral transforms: F_i(y_i) is uniform if F_i is the distribution of y_i.

Where F_i jumps at y_i (counts, censored distributions), F_i(y_i) alone is not uniform even for the true distribution; a
point drawn uniformly from the jump is. Of l draws of F_i (ensembles), the rank of y_i among l + 1 is uniform: (rank +
V) / (l + 1).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import keyed_uniforms

PitKind = Literal["randomized", "mid", "nonrandomized"]


def pit_values(
    y: Any, predictive: Distribution, *, kind: PitKind = "randomized", seed: int = 0, keys: Any | None = None
) -> Array:
    """PIT of y_i under the i-th distribution, (n,), in [0, 1].

    Args:
        predictive: n scalar distributions.
        y: targets (n,).
        kind: where F_i jumps at y_i: "randomized" a uniform point of the jump, "mid" its middle (Lancaster's mid-p),
            "nonrandomized" its top F_i(y_i). All three agree for continuous distributions. For draws (``Samples``) the
            jump is the place of y_i among them, and "nonrandomized" their empirical distribution function.
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
    share = keyed_uniforms(np.arange(len(targets)) if keys is None else keys, seed, "randomized PIT")
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
            f"values: row {row} is {pit[row]:g}; PIT values lie in [0, 1], as pit_values(y, predictive) gives them"
        )
    return pit
