"""Passwords and tokens in addresses and settings are masked before anything is logged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_USER_INFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.\-]*://)[^/\s@'\"]*@")
_QUERY = re.compile(
    r"(?P<key>[?&;\s](?:[\w\-]*(?:password|passwd|secret|token|signature|credential|api[_-]?key|access[_-]?key)[\w\-]*|sig|key)=)"
    r"[^&\s;'\"]+",
    re.IGNORECASE,
)
_NAME = re.compile(r"password|passwd|secret|token|credential|api_?key|access_?key", re.IGNORECASE)


def mask_text(text: str) -> str:
    """``text`` with ``user:password@`` and secret query values of every address in it replaced by ``***``."""
    return _QUERY.sub(rf"\g<key>{MASK}", _USER_INFO.sub(rf"\g<scheme>{MASK}@", text))


def mask_secrets(value: Any) -> Any:
    """``value`` with every text in it masked, however nested, and the values of keys like ``password``."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {
            str(key): MASK if _NAME.search(str(key)) and isinstance(item, str) and item else mask_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [mask_secrets(item) for item in value]
    return value
