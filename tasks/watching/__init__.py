"""Watching a registry: which versions to evaluate, when, and by whom."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.watching.account import Account as Account
    from congruence.tasks.watching.account import Accounts as Accounts
    from congruence.tasks.watching.account import Finding as Finding
    from congruence.tasks.watching.backoff import is_due as is_due
    from congruence.tasks.watching.claims import claim as claim
    from congruence.tasks.watching.claims import drop_expired as drop_expired
    from congruence.tasks.watching.claims import held as held
    from congruence.tasks.watching.claims import new_owner as new_owner
    from congruence.tasks.watching.claims import release as release
    from congruence.tasks.watching.settings import WatchSettings as WatchSettings
    from congruence.tasks.watching.settings import every_seconds as every_seconds
    from congruence.tasks.watching.settings import parse_duration as parse_duration
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
