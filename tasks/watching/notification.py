"""Telling a person that something failed, by a webhook, a command, or both: the evaluation file's ``notify:``."""

from __future__ import annotations

import json
import logging
import subprocess
from typing import Annotated

from pydantic import Field

from congruence.tasks.masking import mask_text
from congruence.tasks.settings.strict import Strict

log = logging.getLogger(__name__)
_LONGEST = 2000


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


def notify(settings: NotificationSettings | None, title: str, message: str) -> None:
    """Send a notice. What goes wrong with it is logged, since the failure that it reports matters more."""
    text = mask_text(message)[:_LONGEST]
    log.error("%s: %s", title, text)
    if settings is None:
        return
    notice = {"text": f"{title}\n{text}", "title": title, "message": text}
    if settings.webhook is not None:
        import requests  # not at the start: settings are read by commands that send nothing

        try:
            requests.post(settings.webhook, json=notice, timeout=settings.timeout).raise_for_status()
        except requests.RequestException as error:
            log.warning("notify.webhook: not delivered: %s", mask_text(str(error)))
    if settings.command:
        try:
            subprocess.run(settings.command, input=json.dumps(notice), text=True, timeout=settings.timeout, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("notify.command: failed: %s", error)
