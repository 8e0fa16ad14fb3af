"""The stack's own passwords and keys, made once: a file that its owner alone may read."""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path

from congruence.tasks.stack.errors import StackError

NAMES = ("postgresql", "prefect", "s3_access_key", "s3_secret_key", "webhook", "mlflow_webhook_key")


def passwords(file: Path) -> dict[str, str]:
    """What ``file`` holds, made where it is not there.

    Raises:
        StackError: others may read it, or it is not what was written there.
    """
    if not file.exists():
        _write(file, {name: secrets.token_urlsafe(24) for name in NAMES} | {"mlflow_webhook_key": _fernet_key()})
    if file.stat().st_mode & 0o077:
        raise StackError(
            f"{file}: others may read it; make new passwords (move it and postgresql away), or chmod 600 it"
        )
    try:
        found = json.loads(file.read_text())
        return {name: str(found[name]) for name in NAMES}
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(
            f"{file}: is not what was written there ({error}); restore it, or begin anew: move the folder away"
        ) from error


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _write(file: Path, content: dict[str, str]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream, indent=2)


def write_private(file: Path, text: str) -> None:
    """``text`` as a file that its owner alone may read."""
    temporary = file.with_name(f".{file.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    temporary.replace(file)
