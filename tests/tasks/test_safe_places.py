"""Signals wait until the main thread is in code of ours or waits, and what they raise leaves no lock behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from types import FrameType
from typing import Any

import pytest
from asked_to_end import Asked, ask, hearing

from congruence.tasks.runtime import safe_places as module
from congruence.tasks.runtime.safe_places import at_safe_places


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with hearing({signal.SIGTERM: ask, signal.SIGINT: ask}):
        yield


def ours(*steps: Callable[[], object]) -> None:
    """Take ``steps`` one after the other, a line each, in code of this package; the tests are somebody else's."""
    names = [f"step_{number}" for number in range(len(steps))]
    lines = "\n".join(f"    {name}()" for name in names)
    space: dict[str, Any] = {"__name__": "congruence.example", **dict(zip(names, steps, strict=True))}
    exec(f"def work():\n{lines}\n", space)
    space["work"]()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_library_is_handled_at_the_next_line_of_ours(number: signal.Signals) -> None:
    done = []

    def library() -> None:
        os.kill(os.getpid(), number)
        done.append("of the library")
        sum(range(1000))
        done.append("also of the library")

    with at_safe_places(), pytest.raises(Asked):
        ours(library, lambda: done.append("ours"))
    assert done == ["of the library", "also of the library"]
    assert sys.gettrace() is None
    assert signal.getsignal(number) is ask


def test_it_is_handled_where_the_library_calls_us() -> None:
    done = []

    def library() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("of the library")
        ours(lambda: done.append("ours"))
        done.append("never")

    with at_safe_places(), pytest.raises(Asked):
        ours(library)
    assert done == ["of the library"]


@pytest.mark.parametrize("traced", [False, True])
def test_it_is_handled_in_a_call_that_waits_also_where_a_debugger_traces(traced: bool) -> None:
    before = sys.gettrace()
    other = threading.Event()

    def debugger(frame: FrameType, event: str, argument: Any) -> None: ...

    def library() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        other.wait()

    if traced:
        sys.settrace(debugger)
    try:
        with at_safe_places(), pytest.raises(Asked):
            ours(library)
        assert sys.gettrace() is (debugger if traced else before)
    finally:
        sys.settrace(before)


def test_after_two_seconds_it_is_handled_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def library() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("put off")
        monkeypatch.setattr(module, "URGENT_SECONDS", 0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("never")

    with at_safe_places(), pytest.raises(Asked):
        ours(library)
    assert done == ["put off"]


def test_one_that_nothing_of_ours_follows_is_handled_at_the_end() -> None:
    done = []

    def library() -> None:
        with at_safe_places():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("put off")

    with pytest.raises(Asked):
        library()
    assert done == ["put off"]
    assert signal.getsignal(signal.SIGTERM) is ask


def test_once_one_was_handled_none_is_put_off_by_any_that_stands_around() -> None:
    """Prefect raises an exception of its own and, on its way, sends the signal again to the handler before its own."""

    def library() -> None:
        with at_safe_places():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    def prefect() -> None:
        try:
            library()
        except Asked:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Asked:
                done.append("at once")

    done: list[str] = []
    with at_safe_places():
        ours(prefect)
    assert done == ["at once"]


def test_no_lock_of_logging_is_left_where_threads_log_at_once() -> None:
    """Where exceptions are raised at once, every third round leaves a lock."""
    handler = logging.StreamHandler(StringIO())
    names = [f"congruence-test.{number}" for number in range(4)]
    loggers = [logging.getLogger(name) for name in names]
    over = threading.Event()

    def log(logger: logging.Logger) -> None:
        logger.info("said")
        logger.debug("not said")
        logger.setLevel(logging.INFO)  # what is cached of levels is looked up anew, by a lock

    def keep_logging(logger: logging.Logger) -> None:
        while not over.is_set():
            log(logger)

    def interrupted() -> bool:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        with at_safe_places():
            sender.start()
            end = time.monotonic() + 60.0
            try:
                while time.monotonic() < end:
                    ours(lambda: log(loggers[0]))
            except Asked:
                return True
        return False

    def free(lock: Any) -> bool:
        found = []
        looker = threading.Thread(target=lambda: found.append(lock.acquire(timeout=5) and lock.release() is None))
        looker.start()
        looker.join()
        return found == [True]

    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
    noisy = [threading.Thread(target=keep_logging, args=(logger,)) for logger in loggers[1:]]
    for thread in noisy:
        thread.start()
    try:
        for _ in range(15):
            assert interrupted()
            assert free(handler.lock)
            assert free(logging._lock)  # type: ignore[attr-defined]
    finally:
        over.set()
        for thread in noisy:
            thread.join(10)
