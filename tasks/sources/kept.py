"""Small records kept on disk: written whole or not at all, and never believed when they are damaged."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from congruence.tasks.sources.digests import combine


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes ``path`` at the end: whoever looks sees all of it, or what was there before.

    Each writer has a name of its own, so that several may write the same content at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_record(path: Path, content: Mapping[str, Any]) -> None:
    """Keep ``content`` as JSON, with a checksum."""
    text = json.dumps(content, sort_keys=True)
    with written_whole(path) as temporary:
        temporary.write_text(json.dumps({"checksum": combine([text.encode()]), "content": text}))


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
