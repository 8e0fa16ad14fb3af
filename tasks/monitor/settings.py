"""The evaluation file's ``watch:``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.parts import Strict

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
