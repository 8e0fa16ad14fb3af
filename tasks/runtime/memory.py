"""Memory that a process no longer uses, given back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Have the C library return what is free in its heap; workers keep freed arrays for the next ones (``preloading``).

    Before a step that holds columns of all rows, so that what earlier steps needed in passing does not lie beside them.
    Nothing where the library has no such function.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; musl has none
    if trim is not None:
        trim(0)
