"""Keeps the parts of a stack: starts them in order, asks each whether it is well, starts again what died, ends all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.runtime.told import Stop
from congruence.tasks.stack.account import Account, PartAccount, write_account
from congruence.tasks.stack.part import Part
from congruence.tasks.stack.tether import descendants, end_processes, is_alive, tethered

_LOOK_SECONDS = 0.1
_ASK_STARTING_SECONDS, _ASK_SECONDS = 0.3, 2.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_STEADY_SECONDS = 60.0
_LEFT_SECONDS = 10.0
_MOST_LOG_BYTES = 32 * 2**20


class _Kept:
    """A part, and what is known of it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.process: subprocess.Popen[bytes] | None = None
        self.healthy = False
        self.since = time.time()
        self.starts = 0
        self.note = "not started yet"
        self.wait = 0.0
        self.not_before = 0.0
        self.ask_after = 0.0
        self.prepared = False
        self.asking: Future[str | None] | None = None
        self.clearing: Future[str | None] | None = None
        self.said = ""

    def turn(self, healthy: bool, note: str = "") -> bool:
        """Whether what is known has changed."""
        changed = (healthy, note) != (self.healthy, self.note)
        if healthy != self.healthy:
            self.since = time.time()
        self.healthy, self.note = healthy, note
        return changed

    def account(self) -> PartAccount:
        pid = None if self.process is None else self.process.pid
        return PartAccount(self.part.name, pid, self.part.address, self.healthy, self.since, self.starts, self.note)


class Supervisor:
    """Runs in one process until it is told to stop. Its main thread starts every part (see ``tether``).

    A part that died is started again after 0.5 s, then twice that for every further time, at most 30 s; after a minute
    of health the count begins anew.

    Args:
        parts: in the order in which they are started; ended in the reverse one.
        folder: for the account and, in ``logs``, the output of each part.
        announce: takes a line for the log.
        orphans: the processes of the stack that have lost their parent, such as a run whose worker was killed.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        folder: Path,
        announce: Callable[[str], None],
        orphans: Callable[[], list[int]],
    ) -> None:
        self._kept = {part.name: _Kept(part) for part in parts}
        self._folder, self._announce, self._orphans = folder, announce, orphans
        self._ready = False

    def run(self, stopped: Stop) -> None:
        """Keep the parts until ``stopped`` says so, then end them."""
        (self._folder / "logs").mkdir(exist_ok=True)
        with ThreadPoolExecutor(len(self._kept), thread_name_prefix="ask") as asking:
            try:
                self._write()
                while not stopped.wait(_LOOK_SECONDS):
                    changed = [self._look(kept, asking) for kept in self._kept.values()]
                    if any(changed):
                        self._write()
            finally:
                self._end()

    def _look(self, kept: _Kept, asking: ThreadPoolExecutor) -> bool:
        if kept.process is None:
            return self._start_when_due(kept, asking)
        if (status := kept.process.poll()) is not None:
            return self._died(kept, status)
        now = time.monotonic()
        if kept.asking is not None:
            if not kept.asking.done():
                return False
            why_not, kept.asking = kept.asking.result(), None
            kept.ask_after = now + (_ASK_SECONDS if why_not is None else _ASK_STARTING_SECONDS)
            return self._answered(kept, why_not)
        if now >= kept.ask_after:
            kept.asking = asking.submit(_why_not, kept)
        return False

    def _start_when_due(self, kept: _Kept, asking: ThreadPoolExecutor) -> bool:
        waited_for = [name for name in kept.part.needs if not self._kept[name].healthy]
        if time.monotonic() < kept.not_before:
            return False
        if waited_for:
            return kept.turn(False, f"waits for {', '.join(waited_for)}")
        if kept.part.clear is not None:
            if kept.clearing is None:
                kept.clearing = asking.submit(_failure, kept.part.clear)
            if not kept.clearing.done():
                return False
            why_not, kept.clearing = kept.clearing.result(), None
            if why_not is not None:
                kept.not_before = time.monotonic() + _ASK_SECONDS
                return kept.turn(False, why_not)
        return self._start(kept)

    def _start(self, kept: _Kept) -> bool:
        part = kept.part
        with _log(self._folder / "logs" / f"{part.name}.log") as log:
            kept.process = subprocess.Popen(
                tethered(part.command, part.stop, part.user),
                env=os.environ | dict(part.environment),
                cwd="/" if part.user else self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        kept.starts += 1
        kept.prepared, kept.asking, kept.ask_after = False, None, 0.0
        kept.turn(False, "starting")
        return True

    def _answered(self, kept: _Kept, why_not: str | None) -> bool:
        was = kept.healthy
        changed = kept.turn(why_not is None, "" if why_not is None else why_not)
        if kept.healthy and not was:
            self._announce(f"{kept.part.name} is well: {kept.part.address}")
        elif was and not kept.healthy:
            self._announce(f"{kept.part.name} does not answer ({why_not})")
        elif why_not and why_not != kept.said and why_not != "starting":
            self._announce(f"{kept.part.name}: {why_not}")
        kept.said = why_not or ""
        if kept.healthy and time.time() - kept.since > _STEADY_SECONDS:
            kept.wait = 0.0
        if not self._ready and all(other.healthy for other in self._kept.values()):
            self._ready = True
            self._announce("every part is well")
        return changed

    def _died(self, kept: _Kept, status: int) -> bool:
        assert kept.process is not None
        with suppress(ProcessLookupError):  # what is left of its own group, which holds its port
            os.killpg(kept.process.pid, signal.SIGKILL)
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        again = "" if kept.wait == 0.0 else f" after {kept.wait:.1f} s"
        said = _last_line(self._folder / "logs" / f"{kept.part.name}.log")
        self._announce(f"{kept.part.name} ended ({how}; its log ends: {said}); it is started again{again}")
        kept.process, kept.asking = None, None
        kept.not_before = time.monotonic() + kept.wait
        kept.wait = min(_LONGEST_WAIT, 2.0 * kept.wait or _FIRST_WAIT)
        kept.turn(False, f"ended ({how})")
        return True

    def _end(self) -> None:
        orphans = self._orphans()
        if orphans:
            self._announce(f"{len(orphans)} runs whose worker had ended are stopped")
            end_processes(orphans, _LEFT_SECONDS)
        for kept in reversed(self._kept.values()):
            if kept.process is not None:
                self._end_part(kept, kept.process)
        self._announce("every part has ended")

    def _end_part(self, kept: _Kept, process: subprocess.Popen[bytes]) -> None:
        below = descendants(process.pid)
        began = time.monotonic()
        with suppress(ProcessLookupError):
            process.send_signal(kept.part.stop)
        try:
            process.wait(kept.part.grace)
            how = f"ended after {time.monotonic() - began:.1f} s"
        except subprocess.TimeoutExpired:
            below += descendants(process.pid)
            process.kill()
            process.wait()
            how = f"killed: it had not ended after {kept.part.grace:.0f} s"
        end_processes((pid for pid in below if is_alive(pid)), _LEFT_SECONDS)
        kept.process = None
        kept.turn(False, "stopped")
        self._announce(f"{kept.part.name} {how}")
        self._write()

    def _write(self) -> None:
        parts = tuple(kept.account() for kept in self._kept.values())
        write_account(self._folder, Account(os.getpid(), os.getppid(), parts))


def _why_not(kept: _Kept) -> str | None:
    """Why a part is not well, or not ready for those who need it; None where it is."""
    try:
        if not kept.part.is_well():
            return "does not answer well" if kept.prepared else "starting"
    except OSError as error:
        return str(error) if kept.prepared else "starting"
    if not kept.prepared and kept.part.prepare is not None and (failed := _failure(kept.part.prepare)) is not None:
        return failed
    kept.prepared = True
    return None


def _failure(step: Callable[[], None]) -> str | None:
    """Why a step failed, of whatever client it asked: it is done again at the next look."""
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {mask_text(str(error)).strip()[:300]}"
    return None


def _log(path: Path) -> IO[bytes]:
    """The part's log, to append to; one that has grown large is put aside first."""
    if path.exists() and path.stat().st_size > _MOST_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _last_line(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 4096))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
