"""Periods of rows that come by date: which are due, and how their inputs change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp

from congruence.kernels.arrays import Array
from congruence.kernels.rng import stream
from congruence.tasks.data.split import Split
from congruence.tasks.data.stored import Rows, StoredPart, StoredTable
from congruence.tasks.evaluate.pieces import rows_of
from congruence.tasks.mlflow.identity import dates_in_words
from congruence.tasks.monitor.account import Account, kept
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.sentences.calibration import probability, significant
from congruence.tasks.settings.evaluation import EvaluationSettings

LATE = 0.1
"""Share of new or corrected labels by which a period is evaluated again, where the file says nothing."""
_LENGTHS = {"day": "D", "week": "W-SUN", "month": "M"}
_SINGLE = 1e-6  # scores are logged in single precision


@dataclass(frozen=True)
class Period:
    """Dates from ``since`` to ``until``, both within."""

    since: date
    until: date

    @classmethod
    def of(cls, written: str) -> Period:
        """That of a ``SplitSummary``: ``2026-03-01/2026-03-07``."""
        return cls(*map(date.fromisoformat, written.split("/")))

    @property
    def ends(self) -> tuple[np.datetime64, np.datetime64]:
        """Its first moment, and the first one after it."""
        return np.datetime64(self.since, "us"), np.datetime64(self.until, "us") + np.timedelta64(1, "D")

    def __str__(self) -> str:
        """As ``SplitSummary.period``."""
        return f"{self.since}/{self.until}"


def complete_periods(table: StoredTable, length: str) -> list[Period]:
    """Returns the days, weeks (from Monday) or months in which something was predicted and that are over, in order.

    One is over as soon as there is a later prediction.

    Raises:
        SettingsError: no column of times.
    """
    if table.times is None:
        raise SettingsError("predictions.time: is missing; name the column of when rows were predicted")
    known = table.times[~np.isnat(table.times)]
    if not len(known):
        return []
    numbers = pd.DatetimeIndex(known).to_period(_LENGTHS[length])
    found = [Period(each.start_time.date(), each.end_time.date()) for each in sorted(numbers.unique())]
    last = known.max()
    return [period for period in found if period.ends[1] <= last]


def due_parts(
    table: StoredTable, accounts: Mapping[str, Account], settings: EvaluationSettings
) -> dict[Period, list[StoredPart]]:
    """Returns what is to be evaluated: of each complete period the rows of versions that no look has, or not as of now.

    A version is looked at where it has ``watch.monitor.least_rows`` labelled rows in the period, and again where the
    labels that are new or corrected since are more than the share ``predictions.late`` of the rows of the look.
    ``accounts`` are those of the versions by their names in the table.
    """
    stored = settings.predictions
    assert stored is not None
    found: dict[Period, list[StoredPart]] = {}
    for period in complete_periods(table, stored.period or "week"):
        rows = {
            name: own
            for name, own in table.rows_of(*period.ends).items()
            if name in accounts and len(own) >= settings.watch.monitor.least_rows
            if _is_due(table, own, period, accounts[name], stored.late or LATE, settings)
        }
        if rows:
            found[period] = table.parts(rows, period.since, period.until)
    return found


def _is_due(
    table: StoredTable, rows: Rows, period: Period, account: Account, late: float, settings: EvaluationSettings
) -> bool:
    look = next((each for each in account.looks if each.split.period == str(period)), None)
    if look is None:
        return True
    keys = kept(look, "keys", settings)
    if table.split.key is None:
        return len(rows) - len(keys) > late * len(keys)
    labels = kept(look, "target", settings)
    place = pd.Index(keys).get_indexer(pd.Index(table.keys[rows]))
    new = place < 0
    if len(labels) == len(keys) and table.labels.shape[1] == 1:
        now, then = table.labels[rows, 0], labels[place]
        new |= np.abs(now - then) > _SINGLE * np.maximum(1.0, np.abs(now))
    return bool(np.count_nonzero(new) > late * len(keys))


LEVEL = 0.01
"""Of the test, for all features together."""
CLEARLY = 0.1
"""A Kolmogorov-Smirnov distance, of 0 to 1, below which inputs are not said to have changed."""
CLEARLY_APART = 0.02
"""The same of the energy distance, as a share of the mean distance between the two."""
_MOST_ROWS, _MOST_EMBEDDED, _PERMUTATIONS = 20_000, 400, 199


def features_change(now: Array, before: Array, names: Sequence[str], when: str) -> str:
    """Returns, in a sentence, how far features (n, d) are from earlier ones (m, d), of the dates ``when``."""
    found = []
    for column in range(now.shape[1]):
        a, b = (values[:, column][np.isfinite(values[:, column])] for values in (now, before))
        if len(a) and len(b):
            test = ks_2samp(a, b, method="asymp")
            found.append((float(test.statistic), min(1.0, float(test.pvalue) * now.shape[1]), column, a, b))
    if not found:
        return "Inputs: none of their features has values to compare."
    clear = sorted((each for each in found if each[1] < LEVEL and each[0] >= CLEARLY), key=lambda each: -each[0])
    distance, p_value, column, a, b = clear[0] if clear else max(found, key=lambda each: each[0])
    corrected = f"p {probability(p_value)}" + (f" corrected for {now.shape[1]} features" if now.shape[1] > 1 else "")
    if not clear:
        return (
            f"Inputs: no change against {when} (largest distance {distance:.2g} of 1, of {names[column]}, {corrected})."
        )
    more = f", and so did {len(clear) - 1} more of {now.shape[1]} features" if len(clear) > 1 else ""
    return (
        f"Inputs changed against {when}: {names[column]} has median {significant(float(np.median(a)))} where it had "
        f"{significant(float(np.median(b)))} (distance {distance:.2g} of 1, {corrected}){more}."
    )


def embeddings_change(now: Array, before: Array, when: str, seed: int = 0) -> str:
    """Returns, in a sentence, how far embeddings (n, d) are from earlier ones (m, d), of the dates ``when``."""
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
    what = "Inputs changed" if p_value < LEVEL and found >= CLEARLY_APART else "Inputs: no change"
    return f"{what} against {when} (distance of their embeddings {found:.2g}, p {probability(p_value)})."


def inputs_change(settings: EvaluationSettings, now: Split, before: Split) -> str:
    """Returns, in a sentence, how far the inputs of a split are from those of an earlier one, which is named.

    By features or embeddings, under the settings by which both were evaluated.
    """
    when = dates_in_words(before.period)
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
