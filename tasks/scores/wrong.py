"""What is wrong with a version, and where."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from congruence.kernels.conditional_calibration.local_distribution import LocalDistribution


@dataclass(frozen=True)
class WhatIsWrong:
    """The reading of one version.

    Attributes:
        sentences: at most five: the fault over all rows, the places that differ, the rest.
        places: the slices, or regions where the split has none, the most wrong first: ``place``, ``rows``, ``fault`` in
            words ("" where none is found), ``shift`` in predicted spreads, ``factor`` of the targets' spread over the
            predicted, ``q_value``.
        region: name of the region of the inputs that is most wrong.
        row: the number of its medoid in the split.
        curve: the local P-P plot there, one row.
    """

    sentences: tuple[str, ...]
    places: pd.DataFrame = field(repr=False)
    region: str
    row: int
    curve: LocalDistribution = field(repr=False)
