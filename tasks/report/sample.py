"""The rows that a report shows: all where they are few, else the worst and a stratified sample of the rest."""

from __future__ import annotations

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.streams import stream
from congruence.tasks.scores.metrics.registry import REGION

MOST_ROWS = 20_000
WORST = 0.1
"""The share of the shown rows that are the worst of all."""

_DRAWN = 50
"""Rows drawn for each that is shown, of which regions have their share."""


def shown_rows(scores: pd.DataFrame, features: Array | None, *, most: int = MOST_ROWS, seed: int = 0) -> Array:
    """Positions among the valid rows, the worst (by CCE) first, then the others in order.

    Of more than ``most`` rows a tenth of those are the worst, the others drawn evenly from the regions of the inputs,
    in proportion to their rows.

    Args:
        scores: of the valid rows.
        features: positions whose named features are known, where not all are; only these are shown.
        most: rows at most.
        seed: of the draw.
    """
    cce = scores["cce"].to_numpy()
    by_cce = np.argsort(-cce, kind="stable")
    if len(cce) <= most and features is None:
        return np.asarray(by_cce)
    known = np.ones(len(cce), dtype=bool)
    if features is not None and len(features) < len(cce):
        known = np.zeros(len(cce), dtype=bool)
        known[features] = True
    worst = by_cce[: max(1, int(WORST * most))]
    known[worst] = False
    rest = np.flatnonzero(known)
    room = most - len(worst)
    if len(rest) > room:
        mixed = rest[stream(seed, "rows of a report").permutation(len(rest))[: _DRAWN * room]]
        if REGION in scores:
            strata = pd.factorize(scores[REGION].iloc[mixed])[0]
            mixed = mixed[np.argsort(strata, kind="stable")]
        rest = mixed[np.linspace(0, len(mixed) - 1, room).astype(int)]
    return np.concatenate([worst, rest[np.argsort(-cce[rest], kind="stable")]])
