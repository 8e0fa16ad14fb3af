"""A command under its parents: whatever is killed, whichever signal comes, nothing is left and the status says why."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

COMMAND = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from congruence.tasks.runtime.parent import run_under_parent
from congruence.tasks.runtime.journal_sweep import sweep
from congruence.tasks.runtime.run_journal import keep_journal, opened
signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by what a shell starts in the background
parent = os.getpid()
run_under_parent(sweep)
keep_journal(Path(sys.argv[1]))
opened("run", "sqlite:///" + sys.argv[1] + "/none.db", "a run")
if "exit" in sys.argv:
    sys.exit(5)
# One in the work's own session, and one in another, each with a child.
started = [subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], start_new_session=own) for own in (False, True)]
time.sleep(0.2)
print(json.dumps([parent, os.getppid(), os.getpid()]), os.isatty(2), flush=True)
time.sleep(300)
"""
SAVED = "Finished work is saved; run the same command to resume."


class Command:
    """One that runs until it is stopped; its processes are known."""

    def __init__(self, folder: Path, *before: str, terminal: int | None = None) -> None:
        command = [*before, sys.executable, "-c", COMMAND, str(folder)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=terminal or subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        pids, self.isatty = self.process.stdout.readline().rsplit(" ", 1)
        self.first, self.second, self.work = eval(pids)
        self.tree = psutil.Process(self.process.pid).children(recursive=True)

    def end(self, pid: int, number: int) -> tuple[int, str]:
        os.kill(pid, number)
        _, said = self.process.communicate(timeout=15)
        _, alive = psutil.wait_procs(self.tree, timeout=12)
        assert alive == []
        return self.process.returncode, said


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    for process in made.tree:
        if process.is_running():
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_tree_with_one_sentence(running: Command, number: signal.Signals, tmp_path: Path) -> None:
    assert len(running.tree) == 8
    assert running.end(running.first, number) == (128 + number, f"Stopped by {number.name}. {SAVED}\n")
    assert list((tmp_path / "open-runs").iterdir()) == []


@pytest.mark.parametrize("which", ["first", "second", "work"])
def test_whichever_process_is_killed_nothing_is_left(running: Command, which: str) -> None:
    status, said = running.end(getattr(running, which), signal.SIGKILL)
    if which == "first":
        assert (status, said) == (-signal.SIGKILL, "")
    else:
        assert status == 128 + signal.SIGKILL
        assert said.startswith("The command was killed (SIGKILL); most often the machine")


def test_the_status_of_the_work_is_that_of_the_command(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, str(tmp_path), "exit"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")


def test_what_nohup_switched_off_stays_off(tmp_path: Path) -> None:
    command = Command(tmp_path, "nohup")
    os.kill(command.first, signal.SIGHUP)
    time.sleep(0.3)
    assert command.process.poll() is None
    assert command.end(command.first, signal.SIGTERM)[0] == 143


def test_the_work_has_the_terminal_whose_cursor_comes_back(tmp_path: Path) -> None:
    mine, its = pty.openpty()
    command = Command(tmp_path, terminal=its)
    assert command.isatty == "True\n"
    assert command.end(command.first, signal.SIGINT)[0] == 130
    assert os.read(mine, 1000).decode() == f"\x1b[?25h\r\r\nStopped by SIGINT. {SAVED}\r\n"
    os.close(mine)
    os.close(its)


def test_as_process_1_of_a_container(tmp_path: Path) -> None:
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("only root may make a namespace of processes")
    command = Command(tmp_path, *alone)
    assert command.first == 1
    (first,) = psutil.Process(command.process.pid).children()
    assert command.end(first.pid, signal.SIGTERM) == (143, f"Stopped by SIGTERM. {SAVED}\n")
