"""JSON with a checksum of itself: what is read back is what was written, or damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from congruence.tasks.runtime.atomic_files import write_whole

_DIGITS = 32


class DamagedError(Exception):
    """A record that is cut off, changed, or about something else: says which."""


def digest_of(value: Any) -> str:
    """32 hexadecimal digits for a value that JSON can hold."""
    return content_digest(json.dumps(value, sort_keys=True).encode())


def content_digest(data: bytes) -> str:
    """32 hexadecimal digits (128 bits of SHA-256) for the bytes of an object."""
    return sha256(data).hexdigest()[:_DIGITS]


def sealed(content: Mapping[str, Any]) -> bytes:
    """``content`` as JSON with a checksum of itself."""
    return json.dumps({**content, "checksum": digest_of(dict(content))}, sort_keys=True).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """What ``sealed`` was given.

    Raises:
        DamagedError: not JSON, or without its checksum.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        checksum = content.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError("is damaged") from error
    if checksum != digest_of(content):
        raise DamagedError("is damaged")
    return content


def save_record(path: Path, content: Mapping[str, Any]) -> None:
    """Keep ``content`` in a file, whole or not at all."""
    write_whole(path, sealed(content))


def load_record(path: Path) -> dict[str, Any] | None:
    """What was kept, None where nothing is, or where it is damaged."""
    try:
        return unsealed(path.read_bytes())
    except (OSError, DamagedError):
        return None
