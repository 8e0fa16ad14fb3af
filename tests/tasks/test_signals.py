"""A command that is stopped: one sentence, a status that says by what, and no process left, whatever the work does."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from loopback import is_alive

from congruence.flows.cli.options import END_SECONDS

COMMAND = """
import signal, subprocess, sys, time
from pathlib import Path
from congruence.flows.cli.options import Stopped, ended_by_signals, take_signals_back
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by what a shell starts in the background
with ended_by_signals("Finished work is saved; run the same command to resume."):
    if sys.argv[2] == "exits":
        sys.exit(5)
    children = [subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], start_new_session=own) for own in (False, True)]
    time.sleep(0.2)
    if sys.argv[2] == "replaces the handler":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        take_signals_back()  # as a flow does, in which Prefect has put a handler of its own
    try:
        print("ready", flush=True)
        time.sleep(300)
    except Stopped as stopped:
        Path(sys.argv[1]).write_text(f"marked: {stopped}")
        print("said by a library", file=sys.stderr)
        if sys.argv[2] == "hangs":
            time.sleep(300)
        raise
"""
SAVED = "Finished work is saved; run the same command to resume."


class Command:
    """One that runs until it is stopped; its processes are known."""

    def __init__(self, mark: Path, how: str, *before: str, terminal: int | None = None) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", COMMAND, str(mark), how],
            stdout=subprocess.PIPE, stderr=terminal or subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"
        self.tree = psutil.Process(self.process.pid).children(recursive=True)
        self.work = self.tree[0].pid if before and before[0] == "unshare" else self.process.pid

    def end(self, *numbers: int) -> tuple[int, str, float]:
        began = time.monotonic()
        for number in numbers:
            os.kill(self.work, number)
            time.sleep(0.2)
        _, said = self.process.communicate(timeout=15)
        time.sleep(0.2)
        assert not [each for each in self.tree if is_alive(each.pid)]
        return self.process.returncode, said, time.monotonic() - began


@pytest.mark.parametrize("how", ["waits", "replaces the handler"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_tree_with_one_sentence(number: signal.Signals, how: str, tmp_path: Path) -> None:
    status, said, _ = Command(tmp_path / "mark", how).end(number)
    assert (status, said) == (128 + number, f"Stopped by {number.name}. {SAVED}\n")
    assert (tmp_path / "mark").read_text() == f"marked: Stopped by {number.name}."


def test_what_hangs_is_ended_and_at_once_by_a_second_signal(tmp_path: Path) -> None:
    status, said, took = Command(tmp_path / "mark", "hangs").end(signal.SIGTERM)
    assert (status, said) == (143, f"Stopped by SIGTERM. {SAVED}\n")
    assert END_SECONDS - 0.5 < took < END_SECONDS + 10.0  # half a second, but for a machine that stands still
    assert Command(tmp_path / "mark", "hangs").end(signal.SIGTERM, signal.SIGTERM)[2] < END_SECONDS - 0.5


def test_the_status_of_the_work_is_that_of_the_command(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, str(tmp_path), "exits"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")


def test_what_nohup_switched_off_stays_off(tmp_path: Path) -> None:
    command = Command(tmp_path / "mark", "waits", "nohup")
    os.kill(command.work, signal.SIGHUP)
    time.sleep(0.3)
    assert command.process.poll() is None
    assert command.end(signal.SIGTERM)[0] == 143


def test_a_terminals_cursor_comes_back(tmp_path: Path) -> None:
    mine, its = pty.openpty()
    assert Command(tmp_path / "mark", "waits", terminal=its).end(signal.SIGINT)[0] == 130
    said = b""
    while select.select([mine], [], [], 0.5)[0]:
        said += os.read(mine, 1000)
    os.close(mine)
    os.close(its)
    assert said.decode() == f"\x1b[?25h\r\r\nStopped by SIGINT. {SAVED}\r\n"


def test_as_process_1_of_a_container(tmp_path: Path) -> None:
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("only root may make a namespace of processes")
    status, said, _ = Command(tmp_path / "mark", "waits", *alone).end(signal.SIGTERM)
    assert (status, said) == (143, f"Stopped by SIGTERM. {SAVED}\n")
