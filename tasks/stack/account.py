"""What a stack says of itself to those who ask: a file that its supervisor writes, and a lock that it holds."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from congruence.tasks.runtime.atomic_files import write_whole
from congruence.tasks.stack.errors import StackError

_FILE, _LOCK = "stack.json", "stack.lock"


@dataclass(frozen=True)
class PartAccount:
    """A part at a moment.

    Attributes:
        name: of the part.
        pid: of its process; None where it does not run.
        address: where it is reached.
        healthy: whether it was well when it was last asked.
        since: since when it is so, in seconds since 1970.
        starts: how often it was started.
        note: why it does not run, where it does not.
    """

    name: str
    pid: int | None
    address: str
    healthy: bool
    since: float
    starts: int
    note: str = ""


@dataclass(frozen=True)
class Account:
    """A stack at a moment: who supervises it, who ends what it leaves, and its parts."""

    supervisor: int
    warden: int
    parts: tuple[PartAccount, ...]

    @property
    def healthy(self) -> bool:
        """Whether every part is well."""
        return all(part.healthy for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON has it."""
        return asdict(self)


def write_account(folder: Path, account: Account) -> None:
    """Put ``account`` where ``read_account`` finds it."""
    write_whole(folder / _FILE, json.dumps(account.as_dict(), indent=2).encode())


def read_account(folder: Path) -> Account | None:
    """What the stack in ``folder`` said last; None where there is none or it has ended."""
    if not is_up(folder):
        return None
    try:
        found = json.loads((folder / _FILE).read_text())
    except FileNotFoundError:
        return None
    return Account(found["supervisor"], found["warden"], tuple(PartAccount(**part) for part in found["parts"]))


def forget_account(folder: Path) -> None:
    """Take the account away: what an earlier stack said is no longer so."""
    (folder / _FILE).unlink(missing_ok=True)


@contextmanager
def only_stack(folder: Path) -> Iterator[None]:
    """For as long as the body runs, in this process or one that it forks, no other stack is up in ``folder``.

    Raises:
        StackError: one is.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"{folder}: a stack is up here; see `congruence stack status`, or end it with `congruence stack down`"
            ) from None
        yield
    finally:
        os.close(descriptor)


def is_up(folder: Path) -> bool:
    """Whether somebody holds the lock of ``only_stack``: until the last process of a stack that matters has ended."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until_down(folder: Path, seconds: float) -> bool:
    """Whether the stack in ``folder`` ended within ``seconds``."""
    limit = time.monotonic() + seconds
    while is_up(folder):
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True
