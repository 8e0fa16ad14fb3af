"""Periods of stored predictions: which are complete, which were never looked at, and which late labels have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.data.stored import Rows, StoredPart, StoredTable
from congruence.tasks.mlflow.reading import read_scores
from congruence.tasks.monitor.account import Account, LoggedLook, counted_keys
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import whole_file
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

    @property
    def ends(self) -> tuple[np.datetime64, np.datetime64]:
        """Its first moment, and the first one after it."""
        return np.datetime64(self.since, "us"), np.datetime64(self.until, "us") + np.timedelta64(1, "D")

    def is_of(self, look: LoggedLook) -> bool:
        """Whether a look is of these dates."""
        return (look.since, look.until) == (self.since.isoformat(), self.until.isoformat())


def complete_periods(table: StoredTable, length: str) -> list[Period]:
    """Returns the periods of a table in which something was predicted and that are over, in order.

    One is over as soon as there is a later prediction.

    Args:
        table: with times.
        length: day, week (from Monday) or month.

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

    Args:
        table: the rows.
        accounts: of the versions, by their names in the table.
        settings: of the evaluation file.
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
    look = next((each for each in account.looks if period.is_of(each)), None)
    if look is None:
        return True
    alone = Account((look,), account.monitor)
    keys = counted_keys(alone, settings)
    if table.source.split.key is None:
        return len(rows) - len(keys) > late * len(keys)
    labels = _labels_of(look, settings)
    place = pd.Index(keys).get_indexer(pd.Index(table.keys[rows]))
    new = place < 0
    if len(labels) == len(keys) and table.labels.shape[1] == 1:
        now, then = table.labels[rows, 0], labels[place]
        new |= np.abs(now - then) > _SINGLE * np.maximum(1.0, np.abs(now))
    return bool(np.count_nonzero(new) > late * len(keys))


def _labels_of(look: LoggedLook, settings: EvaluationSettings) -> Array:
    """The targets of the rows of a look as they were then, in their order; none of vectors."""
    path = settings.home_folder / "looks" / f"{look.run_id}.labels.npy"
    if not path.exists():
        try:
            values = read_scores(look.run_id, settings.tracking, ["target"])["target"].to_numpy(np.float64)
        except (KeyError, ValueError):
            values = np.empty(0)
        with whole_file(path) as stream:
            np.save(stream, values)
    return np.asarray(np.load(path))
