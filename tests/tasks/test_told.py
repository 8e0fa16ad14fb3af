"""Signals that ask work to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from congruence.tasks.runtime.told import Told


@pytest.fixture(autouse=True)
def handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_a_long_wait_and_the_next_one_is_told_from_it() -> None:
    heard: list[bool] = []
    told = Told(signal.SIGUSR1, heard=heard.append)
    assert not told.wait(0.0)
    assert not told.is_set()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    started = time.monotonic()
    assert told.wait(60.0)
    assert time.monotonic() - started < 30.0
    os.kill(os.getpid(), signal.SIGUSR1)
    assert told.wait(0.0)
    assert told.is_set()
    assert heard == [False, True]
