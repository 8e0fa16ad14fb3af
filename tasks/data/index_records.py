"""Small records kept on disk: written whole or not at all, and never believed when they are damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from congruence.tasks.data.digests import combine
from congruence.tasks.runtime.atomic_files import write_whole


def save_record(path: Path, content: Mapping[str, Any]) -> None:
    """Keep ``content`` as JSON, with a checksum."""
    text = json.dumps(content, sort_keys=True)
    write_whole(path, json.dumps({"checksum": combine([text.encode()]), "content": text}).encode())


def load_record(path: Path) -> dict[str, Any] | None:
    """What was kept, None where nothing is, or where it is damaged."""
    try:
        kept = json.loads(path.read_text())
        if kept["checksum"] != combine([kept["content"].encode()]):
            return None
        content: dict[str, Any] = json.loads(kept["content"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return content
