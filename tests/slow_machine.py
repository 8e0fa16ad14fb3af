"""A slow machine out of any: processes that are stopped for most of the time, as a container's limit does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

SHARE, SLICE_SECONDS = 0.25, 0.2


@contextmanager
def a_quarter_of_the_processor(process: psutil.Process) -> Iterator[None]:
    """Stops the process and all that it started for three quarters of the time."""
    ended = threading.Event()

    def family() -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [process, *process.children(recursive=True)]
        return []

    def limit() -> None:
        while not ended.is_set():
            stopped = family()
            for one in stopped:
                with suppress(psutil.Error):
                    one.suspend()
            time.sleep((1 - SHARE) * SLICE_SECONDS)
            for one in stopped:
                with suppress(psutil.Error):
                    one.resume()
            time.sleep(SHARE * SLICE_SECONDS)

    limiter = threading.Thread(target=limit, daemon=True)
    limiter.start()
    try:
        yield
    finally:
        ended.set()
        limiter.join()
