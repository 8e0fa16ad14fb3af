"""How results print at a prompt: the numbers that people ask for, in four digits."""

from __future__ import annotations

from typing import Any


def printed(result: object, **said: Any) -> str:
    """``Name(mean=0.1234, band=[0.01, 0.02], ...)``."""
    return f"{type(result).__name__}({', '.join(f'{name}={_short(value)}' for name, value in said.items())})"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)
