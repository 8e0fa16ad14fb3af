"""Parts of a stack: started in order, started again where they die, and never left, whoever of them is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from congruence.tasks.stack import postgresql
from congruence.tasks.stack.account import Account, is_up, only_stack, read_account, wait_until_down
from congruence.tasks.stack.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from congruence.tasks.stack.errors import StackError
from congruence.tasks.stack.passwords import NAMES, passwords
from congruence.tasks.stack.ports import chosen_ports
from congruence.tasks.stack.tether import is_alive, tethered

STACK = """
import os, signal, sys
from pathlib import Path
from congruence.tasks.stack.account import only_stack
from congruence.tasks.stack.part import Part
from congruence.tasks.stack.supervisor import Supervisor
from congruence.tasks.stack.tether import adopted
from congruence.tasks.runtime.told import Told
from congruence.tasks.stack.warden import under_a_warden

folder = Path(sys.argv[1])
lasting = "trap 'echo ended >> {folder}/order.{name}; exit 0' TERM; {work}; while :; do sleep 0.05; done"

def part(name, work, *needs):
    command = ("sh", "-c", lasting.format(folder=folder, name=name, work=work))
    return Part(name, command, name, (folder / f"{name}.well").exists, needs=needs, grace=5.0)

parts = [
    part("first", f"touch {folder}/first.well"),
    part("second", f"setsid sleep 600 & echo $! > {folder}/run.pid; touch {folder}/second.well", "first"),
]

def supervise():
    stopped = Told(signal.SIGTERM)
    warden, own = os.getppid(), os.getpid()
    Supervisor(parts, folder, lambda line: print(line, flush=True), lambda: adopted(warden, own)).run(stopped)

with only_stack(folder):
    sys.exit(under_a_warden(supervise))
"""


def eventually(holds: Callable[[], object], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Started:
    """A stack of two shell loops; the second starts a process in a session of its own, as Prefect's worker does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "said").open("w") as said:
            self.process = subprocess.Popen([sys.executable, "-c", STACK, str(folder)], stdout=said, stderr=said)
        assert eventually(lambda: (found := read_account(folder)) and found.healthy), self.said()
        self.run = int((folder / "run.pid").read_text())
        self.pids = [self.run, *(part.pid for part in self.account().parts if part.pid)]

    def account(self) -> Account:
        found = read_account(self.folder)
        assert found is not None, self.said()
        return found

    def starts(self, name: str) -> int:
        return next(part.starts for part in self.account().parts if part.name == name)

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def is_gone(self) -> bool:
        return eventually(lambda: not any(is_alive(pid) for pid in self.pids)) and wait_until_down(self.folder, 20)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    assert made.is_gone(), "killed by the test's end"


def test_parts_start_in_order_and_end_in_the_reverse_one(started: Started) -> None:
    lines = started.said().splitlines()
    assert [line.split()[0] for line in lines if "is well:" in line] == ["first", "second"]
    assert all(is_alive(pid) for pid in started.pids)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(30) == 0
    assert started.is_gone()
    ended = [line.split()[0] for line in started.said().splitlines() if " ended after " in line]
    assert ended == ["second", "first"]
    assert (started.folder / "order.first").exists()  # asked to end, not killed
    assert read_account(started.folder) is None


def test_a_part_that_died_is_started_again_and_waits_longer_each_time(started: Started) -> None:
    for starts in (2, 3):
        (part,) = (part for part in started.account().parts if part.name == "first")
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
        limit = time.monotonic() + 30
        while started.starts("first") < starts:
            assert time.monotonic() < limit, started.said()
            time.sleep(0.02)
    said = [line for line in started.said().splitlines() if "SIGKILL" in line]
    assert [line.partition("started again")[2] for line in said] == ["", " after 0.5 s"]
    assert started.starts("second") == 1


def test_what_a_killed_part_had_started_goes_on_and_ends_with_the_stack(started: Started) -> None:
    """A run outlives the worker that started it: what it computes is not lost."""
    (part,) = (part for part in started.account().parts if part.name == "second")
    assert part.pid is not None
    os.kill(part.pid, signal.SIGKILL)
    assert eventually(lambda: started.starts("second") == 2)
    assert is_alive(started.run)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(30) == 0
    assert not is_alive(started.run)
    assert "1 runs whose worker had ended are stopped" in started.said()


@pytest.mark.parametrize("who", ["supervisor", "warden", "both"])
def test_nothing_is_left_by_a_kill_of_those_who_watch(started: Started, who: str) -> None:
    account = started.account()
    for pid in {"supervisor": [account.supervisor], "warden": [account.warden]}.get(
        who, [account.warden, account.supervisor]
    ):
        os.kill(pid, signal.SIGKILL)
    if who == "both":  # nobody is left to end what the parts themselves have put into other sessions
        started.pids.remove(started.run)
        os.kill(started.run, signal.SIGKILL)
    assert started.is_gone(), started.said()


def test_a_tethered_command_takes_ctrl_c_again() -> None:
    """A supervisor ignores it, which is inherited, and servers such as Prefect's worker end by it."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        said = subprocess.run(tethered([sys.executable, "-c", code], signal.SIGTERM), capture_output=True, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert said.stdout.strip() == "True", said.stderr


def test_one_stack_in_a_folder(tmp_path: Path) -> None:
    with only_stack(tmp_path):
        assert is_up(tmp_path)
        with pytest.raises(StackError, match="a stack is up here"), only_stack(tmp_path):
            pass
    assert not is_up(tmp_path)


def test_passwords_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "passwords.json"
    made = passwords(file)
    assert set(made) == set(NAMES)
    assert len(set(made.values())) == len(NAMES)
    assert min(map(len, made.values())) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert passwords(file) == made
    file.chmod(0o640)
    with pytest.raises(StackError, match="others may read it"):
        passwords(file)
    file.chmod(0o600)
    file.write_text(json.dumps({"postgresql": "x"}))
    with pytest.raises(StackError, match="is not what was written there"):
        passwords(file)


def test_ports_that_are_taken_are_others_and_stay(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = chosen_ports(tmp_path / "ports.json", {"a": port, "b": port})
        assert port not in first.values()
        assert first["a"] != first["b"]
    assert chosen_ports(tmp_path / "ports.json", {"a": port, "b": port}) == first
    with (
        socket.create_server(("127.0.0.1", first["b"])),
        pytest.raises(StackError, match=f"port {first['b']} of b is taken by another program"),
    ):
        chosen_ports(tmp_path / "ports.json", {"a": port, "b": port})


def test_certificates_are_of_one_authority_and_kept(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in (AUTHORITY, CERTIFICATE, KEY)}
    authority, certificate = (x509.load_pem_x509_certificate(before[name]) for name in (AUTHORITY, CERTIFICATE))
    certificate.verify_directly_issued_by(authority)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in before} == {0o600}
    make_certificates(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_machine_without_postgresql_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgresql, "_DEBIAN", tmp_path)
    with pytest.raises(StackError, match=r"PostgreSQL is not installed .*apt install postgresql"):
        postgresql.binary("initdb")


def test_a_folder_that_postgresqls_user_cannot_enter_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(StackError, match=r"user postgres, as whom PostgreSQL runs since it refuses root.*chmod o\+x"):
        postgresql._require_enterable(closed / "data", "postgres")
