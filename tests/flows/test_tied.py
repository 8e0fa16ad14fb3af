"""No server outlives the command that started it, whatever ended that."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from congruence.flows.prefect.tied import end, start_tied

SERVER = 'sleep 600 & echo "$! $$"; wait'  # a server that starts a process of its own
STARTS_ONE = f"""
import sys, time
from congruence.flows.prefect.tied import start_tied
start_tied(["sh", "-c", {SERVER!r}])
time.sleep(600)
"""


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_and_what_it_started_end_with_their_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTS_ONE], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert not any(gone(pid) for pid in pids)
    parent.send_signal(number)
    parent.wait()
    assert eventually(lambda: all(gone(pid) for pid in pids))


def test_a_server_that_is_ended_leaves_nothing_and_its_status_is_known(tmp_path: Path) -> None:
    with open(tmp_path / "said", "wb+") as output:
        server = start_tied(["sh", "-c", SERVER], output=output)
        assert eventually(lambda: b"\n" in (tmp_path / "said").read_bytes())
        pids = [int(pid) for pid in (tmp_path / "said").read_text().split()]
        end(server)
    assert eventually(lambda: all(gone(pid) for pid in pids))
    assert start_tied(["sh", "-c", "exit 7"]).wait() == 7


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_mlflows_pages_end_with_the_command(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "congruence.flows.cli.app", "ui", "--home", str(tmp_path), "--port", str(port)]
    shown = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert eventually(lambda: not refuses(port), 240.0)
    shown.terminate()
    assert shown.wait(60) == 143
    assert eventually(lambda: refuses(port))


@pytest.mark.slow
def test_the_embedded_prefect_server_ends_with_a_killed_command(tmp_path: Path) -> None:
    code = """
import os, time
from congruence.flows.prefect.local_server import prefect_server
with prefect_server():
    print(os.environ["PREFECT_API_URL"], flush=True)
    time.sleep(600)
"""
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(tmp_path)
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert killed.stdout is not None
    address = killed.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/api", address)
    port = urlsplit(address).port
    assert port is not None
    assert not refuses(port)
    killed.kill()
    killed.wait()
    assert eventually(lambda: refuses(port))
