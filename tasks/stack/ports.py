"""Ports on loopback: each part's usual one where it is free, else another; what was chosen once stays."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from congruence.tasks.stack.errors import StackError


def chosen_ports(file: Path, usual: Mapping[str, int]) -> dict[str, int]:
    """A port for each name of ``usual``, as kept in ``file``.

    Raises:
        StackError: another program listens on a port that was chosen before.
    """
    known = {name: int(port) for name, port in json.loads(file.read_text()).items()} if file.exists() else {}
    for name, port in known.items():
        if not _is_free(port):
            raise StackError(
                f"port {port} of {name} is taken by another program; end that, or delete {file} for other ports"
            )
    for name, port in usual.items():
        if name not in known:
            known[name] = port if port not in known.values() and _is_free(port) else _any(known)
    file.write_text(json.dumps(known, indent=2))
    return known


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one that has ended does not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _any(known: Mapping[str, int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in known.values():
            return port
