"""cupyx."""

from contextlib import contextmanager

import numpy as np

_state = {"linalg": "ignore"}
"""What CuPy's linear algebra does where cuSOLVER fails: nothing, by default."""


@contextmanager
def errstate(*, linalg=None):
    """Inside, failures raise where ``linalg`` is "raise"."""
    kept = _state["linalg"]
    _state["linalg"] = linalg or kept
    try:
        yield
    finally:
        _state["linalg"] = kept


def raises():
    """Whether failures raise."""
    return _state["linalg"] == "raise"


def empty_pinned(shape, dtype=float):
    """Host memory."""
    return np.empty(shape, dtype)
