"""Whether the inputs of a look are like those of an earlier one: a wrong version and changed inputs are told apart.

Features are compared one by one by the Kolmogorov-Smirnov distance, the largest difference of two distribution
functions, with Bonferroni's correction; embeddings as a whole by the energy distance (Szekely and Rizzo 2013) with a
permutation test. At a million rows the smallest difference is significant: a change is said where the distance is large
as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp

from congruence.kernels.arrays import Array
from congruence.kernels.streams import stream
from congruence.tasks.data.split import Split
from congruence.tasks.evaluate.steps import rows_of
from congruence.tasks.settings.evaluation import EvaluationSettings

LEVEL = 0.01
"""Of the test, for all features together."""
CLEARLY = 0.1
"""A Kolmogorov-Smirnov distance, of 0 to 1, below which inputs are not said to have changed."""
CLEARLY_APART = 0.02
"""The same of the energy distance, as a share of the mean distance between the two."""
_MOST_ROWS, _MOST_EMBEDDED, _PERMUTATIONS = 20_000, 400, 199


@dataclass(frozen=True)
class InputChange:
    """How far some inputs are from earlier ones.

    Attributes:
        changed: whether it is said that they changed.
        distance: the largest of all features, or that of the embeddings.
        p_value: for all features together.
        sentence: for people.
    """

    changed: bool
    distance: float
    p_value: float
    sentence: str


def features_change(now: Array, before: Array, names: Sequence[str], when: str) -> InputChange:
    """Returns how far features (n, d) are from earlier ones (m, d), which are of the dates ``when``."""
    found = []
    for column in range(now.shape[1]):
        a, b = (values[:, column][np.isfinite(values[:, column])] for values in (now, before))
        if len(a) and len(b):
            test = ks_2samp(a, b, method="asymp")
            found.append((float(test.statistic), min(1.0, float(test.pvalue) * now.shape[1]), column, a, b))
    if not found:
        return InputChange(False, 0.0, 1.0, "Inputs: none of their features has values to compare.")
    clear = sorted((each for each in found if each[1] < LEVEL and each[0] >= CLEARLY), key=lambda each: -each[0])
    distance, p_value, column, a, b = clear[0] if clear else max(found, key=lambda each: each[0])
    corrected = f"p {_p(p_value)}" + (f" corrected for {now.shape[1]} features" if now.shape[1] > 1 else "")
    if not clear:
        said = (
            f"Inputs: no change against {when} (largest distance {distance:.2g} of 1, of {names[column]}, {corrected})."
        )
        return InputChange(False, distance, p_value, said)
    more = f", and so did {len(clear) - 1} more of {now.shape[1]} features" if len(clear) > 1 else ""
    said = (
        f"Inputs changed against {when}: {names[column]} has median {np.median(a):.3g} where it had {np.median(b):.3g} "
        f"(distance {distance:.2g} of 1, {corrected}){more}."
    )
    return InputChange(True, distance, p_value, said)


def embeddings_change(now: Array, before: Array, when: str, seed: int = 0) -> InputChange:
    """Returns how far embeddings (n, d) are from earlier ones (m, d), which are of the dates ``when``."""
    draw = stream(seed, "permutations of inputs over time")
    parts = [rows[np.sort(draw.permutation(len(rows))[:_MOST_EMBEDDED])] for rows in (now, before)]
    apart = cdist(np.concatenate(parts), np.concatenate(parts))
    size, total = len(parts[0]), len(apart)

    def share(order: Array) -> float:
        first, second = order[:size], order[size:]
        between = float(apart[np.ix_(first, second)].mean())
        inside = float(apart[np.ix_(first, first)].mean() + apart[np.ix_(second, second)].mean())
        return (2.0 * between - inside) / (2.0 * between) if between > 0.0 else 0.0

    found = share(np.arange(total))
    p_value = (1 + sum(share(draw.permutation(total)) >= found for _ in range(_PERMUTATIONS))) / (_PERMUTATIONS + 1)
    changed = p_value < LEVEL and found >= CLEARLY_APART
    what = f"Inputs changed against {when}" if changed else f"Inputs: no change against {when}"
    return InputChange(changed, found, p_value, f"{what} (distance of their embeddings {found:.2g}, p {_p(p_value)}).")


def inputs_change(settings: EvaluationSettings, now: Split, before: Split) -> InputChange:
    """Returns how far the inputs of a split are from those of another one, by their features or their embeddings.

    Args:
        settings: under which both were evaluated.
        now: a split.
        before: an earlier one, whose period is named.
    """
    since, _, until = before.period.partition("/")
    when = since if since == until else f"{since} to {until}"
    if now.settings.input_kind == "features":
        fresh, known = _features(now), _features(before)
        names = now.settings.input_columns
        if fresh.shape[1] != len(names):
            names = [f"{names[0]}[{number}]" for number in range(fresh.shape[1])]
        return features_change(fresh, known, names, when)
    fresh, known = (rows_of(settings, split).embeddings() for split in (now, before))
    return embeddings_change(fresh, known, when, settings.seed)


def _features(split: Split) -> Array:
    """Of all rows of a short split; of a long one every n-th, so that some ten thousands are compared."""
    step = max(1, split.rows // _MOST_ROWS)
    return np.concatenate([split.features(shard, missing=True)[0][::step] for shard in split.shards])


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"
