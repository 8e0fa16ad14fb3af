"""A stack of real servers with what their clients see."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from client_stage import ROWS, SHARD_ROWS, Stage, eventually
from stack_servers import Part, Servers, is_alive

__all__ = ["ROWS", "SHARD_ROWS", "StackStage", "eventually"]


class StackStage(Stage):
    """The servers in a home folder that PostgreSQL's user may enter."""

    def __init__(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="congruence-stack-"))
        home.chmod(0o711)
        self.servers = Servers(home)
        super().__init__(home, self.servers.environment, self.servers.cluster)
        self.folder = self.servers.folder
        self.seen: set[int] = set()

    def up(self) -> None:
        self.servers.up()
        self.look()

    def down(self) -> None:
        self.look()
        self.servers.down()

    def part(self, name: str) -> Part:
        return self.servers.parts[name]

    def look(self) -> set[int]:
        """Every process of the servers that has been seen, for the question what is left of them."""
        for part in self.servers.parts.values():
            with suppress(psutil.NoSuchProcess):
                if part.pid is not None:
                    below = psutil.Process(part.pid).children(recursive=True)
                    self.seen |= {part.pid, *(process.pid for process in below)}
        return self.seen

    def left(self) -> list[str]:
        found = []
        for pid in filter(is_alive, self.seen):
            with suppress(psutil.NoSuchProcess):  # it has ended since
                found.append(f"{pid} {' '.join(psutil.Process(pid).cmdline())[:150]}")
        return found

    def kill(self, name: str) -> None:
        pid = self.part(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def well(self) -> bool:
        return self.servers.well()
