"""Where the blocks of pairs are computed: here one after another, or wherever a caller's runner takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class BlockRunner(Protocol):
    """Runs pure functions of blocks. Results come back in the order of the calls."""

    def share(self, value: Any) -> Any:
        """A stand-in for ``value`` in the arguments of calls: sent once, however many calls take it."""

    def run(self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
        """``function(*arguments)`` for each of the calls."""


class Serial(BlockRunner):
    """One block after another in this process: the memory of one block."""

    def share(self, value: Any) -> Any:
        return value

    def run(self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
        return [function(*arguments) for arguments in calls]


SERIAL = Serial()
