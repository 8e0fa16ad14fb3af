"""Python's collector of cycles, while much is made at once that it would look through again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, young: bool = False) -> Iterator[None]:
    """Inside, nothing is collected; afterwards as before.

    Args:
        young: what was made inside is garbage by now, and is collected while it is in the youngest generation.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
            if young:
                gc.collect(0)
