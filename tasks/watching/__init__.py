"""Watching a registry: which versions to evaluate, when, and by whom."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.watching.account import Account, Accounts, Finding
    from congruence.tasks.watching.backoff import is_due
    from congruence.tasks.watching.claims import claim, drop_expired, held, new_owner, release
    from congruence.tasks.watching.settings import WatchSettings, every_seconds, parse_duration
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Account",
    "Accounts",
    "Finding",
    "WatchSettings",
    "claim",
    "drop_expired",
    "every_seconds",
    "held",
    "is_due",
    "new_owner",
    "parse_duration",
    "release",
]
