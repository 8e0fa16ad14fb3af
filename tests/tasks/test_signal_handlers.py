"""What stands in the place of handlers leaves alone what is no handler, and what other threads do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from asked_to_end import ask, hearing

from congruence.tasks.runtime.safe_places import at_safe_places
from congruence.tasks.runtime.uninterrupted import uninterrupted


@pytest.mark.parametrize("instead", [uninterrupted, at_safe_places])
def test_a_signal_that_is_ignored_stays_so_and_other_threads_do_nothing(
    instead: Callable[[], AbstractContextManager[None]],
) -> None:
    seen = []

    def elsewhere() -> None:
        with instead():
            seen.append(signal.getsignal(signal.SIGINT))

    with hearing({signal.SIGINT: ask}):
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            with instead():
                os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGTERM, before)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [ask]
