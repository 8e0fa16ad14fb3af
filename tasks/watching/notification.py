"""Notices to people, by a webhook, a command, or both: the evaluation file's ``notify:``."""

from __future__ import annotations

import json
import logging
import subprocess

from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.watching.settings import NotificationSettings

log = logging.getLogger(__name__)
_LONGEST = 2000


def notify(settings: NotificationSettings | None, title: str, message: str) -> None:
    """Log a failure as an error, and send a notice of it."""
    log.error("%s: %s", title, mask_text(message)[:_LONGEST])
    send(settings, title, message)


def send(settings: NotificationSettings | None, title: str, message: str) -> None:
    """Send a notice. What goes wrong with it is logged, since what it reports matters more."""
    if settings is None:
        return
    text = mask_text(message)[:_LONGEST]
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
