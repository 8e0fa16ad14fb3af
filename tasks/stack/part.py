"""One server of a stack: how it is started, how it is known to be well, and how it is ended."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """A server.

    Attributes:
        name: of the part, of its log, and what others need it by.
        command: program and arguments; no secret stands there.
        address: where it is reached.
        is_well: asked again and again, from a thread; an OSError means no.
        environment: beside this process's.
        needs: the parts that must be well before it is started.
        clear: done before each of its starts, once those that it needs are well.
        prepare: done each time that it has become well, before those start that need it.
        stop: the signal that ends it in order.
        grace: seconds that it is given for that.
        user: as whom it runs, where this process may choose.
    """

    name: str
    command: tuple[str, ...]
    address: str
    is_well: Callable[[], bool] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    needs: tuple[str, ...] = ()
    clear: Callable[[], None] | None = field(default=None, repr=False)
    prepare: Callable[[], None] | None = field(default=None, repr=False)
    stop: signal.Signals = signal.SIGTERM
    grace: float = 15.0
    user: str | None = None


def answers(url: str) -> Callable[[], bool]:
    """Whether ``url`` answers with a page; one that asks who is there answers, too."""

    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code in (401, 403)

    return ask
