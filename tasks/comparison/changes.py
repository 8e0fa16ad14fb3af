"""What a version mends or spoils of another's calibration, and where, in words."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.scores.evaluation import EACH_OF_TWO, SIGNIFICANCE

REGION = "calibration_region"
_SENTENCES = 3
_FEWEST = 30


def changes(first: ComparedVersion, second: ComparedVersion, rows: Array) -> tuple[str, ...]:
    """What ``first`` changes against ``second``: over all rows if that can be said, else in up to three regions.

    Nothing where neither version's calibration is contradicted by its test, or where an evaluation holds no regions or
    (under another seed) others.

    Args:
        first, second: the versions.
        rows: which rows are valid in both, (rows,).
    """
    tested = [version.metrics.get("calibration_p_value") for version in (first, second)]
    p_values = [metric.value for metric in tested if metric is not None]
    if len(p_values) < 2 or min(p_values) >= EACH_OF_TWO or np.count_nonzero(rows) < _FEWEST:
        return ()
    if REGION not in first.scores or REGION not in second.scores:
        return ()
    regions, others = (version.scores[REGION].to_numpy()[rows].astype(str) for version in (first, second))
    if not np.array_equal(regions, others):
        return ()
    new, old = (version.scores["pit"].to_numpy(float)[rows] for version in (first, second))
    return _said(first.label, second.label, new, old, regions)


def _said(first: str, second: str, new: Array, old: Array, labels: Array) -> tuple[str, ...]:
    """By PIT values (v,) of both and the region of each row; p-values are held against 5 % over all regions."""
    # Loaded here: SciPy's laws and scikit-learn take a second that a comparison without calibration need not wait.
    from congruence.kernels.conditional_calibration.local_reading import group_reading
    from congruence.kernels.conditional_calibration.pit_scores import ORDERS
    from congruence.kernels.conditional_calibration.wording import change_sentence

    places = [labels == name for name in np.unique(labels)]
    places = [rows for rows in places if np.count_nonzero(rows) >= _FEWEST]
    before, after = ([group_reading(pit, rows) for rows in places] for pit in (old, new))
    spread = ORDERS.index("spread")
    whole = [
        group_reading(pit, mixing=float(np.var([place.fault.scores[0, spread] for place in found])) if found else 0.0)
        for pit, found in ((old, before), (new, after))
    ]
    overall = change_sentence(second, first, "all rows", *whole)
    if overall is not None:
        return (overall,)
    found = []
    for rows, was, now in zip(places, before, after, strict=True):
        if min(was.p_value, now.p_value) * len(places) <= SIGNIFICANCE:
            sentence = change_sentence(second, first, str(labels[rows][0]), was, now)
            if sentence is not None:
                found.append((abs(now.strength**2 - was.strength**2) * now.share, sentence))
    return tuple(sentence for _, sentence in sorted(found, reverse=True)[:_SENTENCES])
