"""What keeps a stack of servers from starting or going on."""

from __future__ import annotations

from congruence.kernels.errors import CongruenceError


class StackError(CongruenceError):
    """The servers cannot be started, or cannot be found: says why, and what to do."""
