"""Sections of an evaluation file on production: predictions that it stored, and the looks of a watch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.parts import Strict
from congruence.tasks.settings.sections import PredictionSettings


class LabelSettings(Strict):
    """Where outcomes lie that were learned after the predictions were stored, and how they are joined to these.

    Of several labels of one key the latest counts: by the column ``time``, else in the order of files and rows.
    """

    uri: str = Field(min_length=1)
    """A file, a folder or a glob, in any format that splits have."""
    format: str = "auto"
    """Where the ending of the files does not tell."""
    key: str = Field(min_length=1)
    """Column that holds the keys of the predictions."""
    target: str | list[str] = Field(min_length=1)
    """Column or columns of the outcome."""
    time: str | None = None
    """Column of when a label became known."""
    storage_options: dict[str, Any] = Field(default={}, repr=False)
    """Passed to the fsspec file system: endpoint, credentials. Never logged."""


class StoredPredictions(PredictionSettings):
    """How predictions are read: of what models return, or, with ``from``, of what production stored.

    Stored predictions are rows of inputs and predictions by one or several versions; no model is loaded. The columns of
    the predictions are read as those of a model's output are.
    """

    from_: str | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasChoices("from", "from_"),
        serialization_alias="from",
        description="stored predictions: a file, folder or glob of rows with inputs and predictions",
    )
    format: str | None = None
    """Of the files, where their ending does not tell."""
    key: str | None = None
    """Column that names what was predicted: labels are joined by it, and versions compared that scored the same."""
    version: str | None = None
    """Column that says by which version; without one all rows are of one version."""
    time: str | None = None
    """Column of when it was predicted: timestamps, dates or ISO 8601 texts."""
    model: str | None = Field(default=None, pattern="^[^/@:]+$")
    """Name of the model: its registered versions are those of the same number (3, v3, version 3), where MLflow has
    them."""
    targets: LabelSettings | None = None
    """Where the labels lie; by default in the rows themselves, under the target of the split."""
    period: Literal["day", "week", "month"] | None = None
    """What ``watch`` evaluates at a time; by default the week, from Monday."""
    late: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Share of new or corrected labels by which a period is evaluated again; by default 0.1."""
    storage_options: dict[str, Any] | None = Field(default=None, repr=False)
    """Passed to the fsspec file system of the predictions: endpoint, credentials. Never logged."""

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.from_ is None:
            for name in _OF_STORED:
                if getattr(self, name) is not None:
                    yield f"{name}: is of stored predictions, and there is no from; add from: their address"
            return
        if self.method is not None:
            yield "method: asks a model, and stored predictions have none; leave it out"
        if self.targets is not None and self.key is None:
            yield "key: is missing; name the column by which the labels of targets are joined"

    @property
    def read_by(self) -> StoredPredictions:
        """The same without where they lie: how the columns are read."""
        return self.model_copy(update=dict.fromkeys(("from_", *_OF_STORED)))


_OF_STORED = ("format", "key", "version", "time", "model", "targets", "period", "late", "storage_options")


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"^\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[smhd])\s*$")


def parse_duration(value: Any) -> Any:
    """Seconds of ``90``, ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        ValueError: another form.
    """
    if not isinstance(value, str):
        return value
    if match := _DURATION.match(value):
        return float(match["number"]) * _UNITS[match["unit"]]
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"'{value}' is not a duration; write 90s, 5m, 2h or 1d") from None


def every_seconds(text: str) -> float:
    """Seconds of a duration on the command line.

    Raises:
        SettingsError: not a duration, or none above zero.
    """
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise SettingsError(f"--every: {error}") from error
    if not seconds > 0:
        raise SettingsError(f"--every: must be greater than zero, found {text}; write 90s, 5m, 2h or 1d")
    return seconds


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]


class MonitorSettings(Strict):
    """When looks at a version on new dates, all together, call it wrong or changed.

    Attributes:
        level: the share of right versions, at most, that are ever called wrong, over any number of looks at a split.
        average_run_length: looks at a right version, on average and at least, until a change is called falsely.
        least_rows: a look waits until the new dates have so many rows.
    """

    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    average_run_length: float = Field(default=1000.0, gt=1.0)
    least_rows: int = Field(default=100, ge=10)


class WatchSettings(Strict):
    """Which registry versions a watcher evaluates, and how often it looks.

    Attributes:
        models: names of registered models, with shell wildcards (``angle-*``); by default the file's ``models``.
        aliases: only versions that hold one of these aliases.
        tags: only versions that carry these tags with these values.
        in_use: the aliases that say which versions are in use; by default any alias does. These are looked at again
            on the new dates of a split that has ``new_dates_only``; other versions, once.
        monitor: when looks over time call a version wrong or changed.
        in_process_rows: splits of features that are no longer, and need no encoder, are evaluated in the watcher's own
            process, without a cluster; by default none is.
        every: time between two looks at the registry.
        retry_after: ``congruence watch`` tries a version that failed again after so long.
    """

    models: list[str] = []
    aliases: list[str] = []
    tags: dict[str, str] = {}
    in_use: list[str] = []
    monitor: MonitorSettings = MonitorSettings()
    in_process_rows: int = Field(default=0, ge=0)
    every: Seconds = 60.0
    retry_after: Seconds = 3600.0
