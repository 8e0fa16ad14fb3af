"""Bringing a stack up, and down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from congruence.flows.stack.example import write_example
from congruence.flows.stack.place import Place, open_place, stack_folder, write_environment
from congruence.tasks.runtime.told import Told
from congruence.tasks.stack.account import Account, forget_account, is_up, only_stack, read_account, wait_until_down
from congruence.tasks.stack.errors import StackError
from congruence.tasks.stack.postgresql import binary, make_cluster
from congruence.tasks.stack.tether import adopted, end_processes, is_alive

_NEEDED = {
    "psycopg2": "server",
    "boto3": "server",
    "asyncpg": "pipeline",
    "cryptography": "pipeline",
    "s3fs": "s3",
}
_DOWN_SECONDS = 120.0


def keep_up(home: Path, say: Callable[[str], None], *, s3: str | None = None) -> int:
    """Start every part and keep it until SIGTERM or Ctrl-C; the exit status.

    Args:
        home: the home folder.
        say: takes the lines of the supervisor, which stand in ``logs/supervisor.log``, too.
        s3: address of an S3-protocol server to use in place of one of our own; its keys are AWS_ACCESS_KEY_ID and
            AWS_SECRET_ACCESS_KEY of the environment.

    Raises:
        StackError: a program or package is missing, a stack is up in this folder, or a port is taken.
    """
    require_programs(own_s3=s3 is None)
    folder = stack_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    with only_stack(folder):
        forget_account(folder)
        place = open_place(home, s3, _login() if s3 else None)
        make_cluster(folder / "postgresql", place.words["postgresql"])
        write_environment(place)
        write_example(place)
        from congruence.tasks.stack.warden import under_a_warden

        return under_a_warden(lambda: _supervise(place, say))


def _supervise(place: Place, say: Callable[[str], None]) -> None:
    stopped = Told(signal.SIGTERM)
    from congruence.flows.stack.prepared import make_bucket
    from congruence.flows.stack.topology import topology
    from congruence.tasks.stack.supervisor import Supervisor

    warden, own = os.getppid(), os.getpid()

    def announce(line: str) -> None:
        with (place.folder / "logs" / "supervisor.log").open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        say(line)

    if place.s3 is not None:
        make_bucket(place)
    Supervisor(topology(place), place.folder, announce, lambda: adopted(warden, own)).run(stopped)


def require_programs(*, own_s3: bool) -> None:
    """Refuse before anything is started what cannot be: PostgreSQL's programs and the packages of the servers.

    Raises:
        StackError: names what is missing and how to get it.
    """
    if not sys.platform.startswith("linux"):
        raise StackError("the stack runs on Linux, whose kernel ends what would be left; use infra/compose.yaml here")
    binary("initdb"), binary("postgres")
    missing = {name: extra for name, extra in _NEEDED.items() if find_spec(name) is None}
    if missing:
        extras = ",".join(sorted(set(missing.values())))
        raise StackError(f"{', '.join(missing)}: not installed; run: pip install 'congruence[{extras}]'")
    if own_s3 and (find_spec("moto") is None or find_spec("flask_cors") is None):
        raise StackError(
            "moto's S3 server is not installed; run: pip install 'moto[s3,server]', or give the address of an "
            "S3-protocol server of yours with --s3"
        )


def _login() -> tuple[str, str]:
    try:
        return os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    except KeyError as error:
        raise StackError(f"--s3: {error.args[0]} is not set; export the keys of that server") from None


def start_detached(home: Path, seconds: float, *, s3: str | None = None) -> Account:
    """Start a stack that outlives this command, and wait until every part is well.

    Raises:
        StackError: it ended, or not every part was well within ``seconds``; it is ended then.
    """
    require_programs(own_s3=s3 is None)
    folder = stack_folder(home)
    if is_up(folder):
        raise StackError(
            f"{folder}: a stack is up here; see `congruence stack status`, or end it with `congruence stack down`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)
    said = folder / "logs" / "up.log"
    command = [sys.executable, "-m", "congruence.flows.cli.app", "stack", "up", "--home", str(home)]
    command += ["--s3", s3] if s3 else []
    with said.open("wb") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        return _when_well(started, folder, said, seconds)
    except BaseException:  # nobody waits for it any more
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            started.wait()
        raise


def _when_well(started: subprocess.Popen[bytes], folder: Path, said: Path, seconds: float) -> Account:
    limit = time.monotonic() + seconds
    while True:
        account = read_account(folder)
        if account is not None and account.healthy:
            return account
        if started.poll() is not None:
            raise StackError(f"the stack ended while it started: {said.read_text().strip()[-1000:]}")
        if time.monotonic() > limit:
            waiting = [] if account is None else [f"{p.name} ({p.note})" for p in account.parts if not p.healthy]
            raise StackError(
                f"not well within {seconds:.0f} s: {', '.join(waiting) or 'no part'}; see the logs in {folder / 'logs'}"
            )
        time.sleep(0.2)


def take_down(home: Path) -> bool:
    """End the stack of a home folder in order; False where there is none.

    Raises:
        StackError: it did not end.
    """
    folder = stack_folder(home)
    account = read_account(folder)
    if account is None:
        return False
    os.kill(account.warden, signal.SIGTERM)
    if not wait_until_down(folder, _DOWN_SECONDS):
        end_processes([account.supervisor, account.warden], 0.0)
        if not wait_until_down(folder, 10.0):
            raise StackError(f"{folder}: processes {account.warden} and {account.supervisor} do not end")
    limit = time.monotonic() + 10.0
    while is_alive(account.warden) and time.monotonic() < limit:  # it has nothing left to do but to leave
        time.sleep(0.05)
    return True
