"""The evaluation file's ``watch:`` and ``notify:``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.strict import Strict

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
        raise SettingsError(f"--every: {text} is no time at all; write 90s, 5m, 2h or 1d")
    return seconds


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]


class MonitorSettings(Strict):
    """When looks at a version on new rows, all together, call it wrong or changed.

    Attributes:
        level: the share of right versions, at most, that are ever called wrong, over any number of looks at a split.
        average_run_length: looks at a right version, on average and at least, until a change is called falsely.
        least_rows: a look waits for so many new rows.
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
            on the new rows of a split that has ``new_rows_only``; other versions, once.
        monitor: when looks over time call a version wrong or changed.
        in_process_rows: splits of features that are no longer, and need no encoder, are evaluated in the watcher's own
            process, without a cluster; by default none is.
        every: time between two looks at the registry.
        retry_after: wait after a failed evaluation; it doubles with every further failure.
        retry_at_most: longest such wait.
        lease: how long a claim on a version holds without a sign of life; after that another watcher takes over.
    """

    models: list[str] = []
    aliases: list[str] = []
    tags: dict[str, str] = {}
    in_use: list[str] = []
    monitor: MonitorSettings = MonitorSettings()
    in_process_rows: int = Field(default=0, ge=0)
    every: Seconds = 60.0
    retry_after: Seconds = 300.0
    retry_at_most: Seconds = 86400.0
    lease: Annotated[float, BeforeValidator(parse_duration), Field(ge=3)] = 600.0


class NotificationSettings(Strict):
    """Where notices go. A notice is JSON with ``text`` (as Slack and Mattermost read it), ``title`` and ``message``.

    Attributes:
        webhook: address to which it is posted.
        command: program and arguments to which it is given on standard input.
        timeout: seconds to wait for either.
    """

    webhook: Annotated[str | None, Field(repr=False)] = None
    command: list[str] = []
    timeout: float = Field(default=20.0, gt=0)
