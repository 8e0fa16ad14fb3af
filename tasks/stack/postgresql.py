"""A PostgreSQL of our own in a folder: made once, as a user who is not root, with a password."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from congruence.tasks.stack.errors import StackError

OWNER = "congruence"
_DEBIAN = Path("/usr/lib/postgresql")
_SECONDS = 120


def binary(name: str) -> str:
    """The path of one of PostgreSQL's programs: on the path, else the newest of Debian's.

    Raises:
        StackError: PostgreSQL is not installed.
    """
    found = shutil.which(name)
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]), reverse=True)
    if found is None and not versions:
        raise StackError(
            f"PostgreSQL is not installed (no {name} on the path); install it: apt install postgresql, "
            "dnf install postgresql-server or brew install postgresql"
        )
    return found or str(versions[0])


def server_user() -> str | None:
    """As whom PostgreSQL runs: it refuses root, so the system's own ``postgres``, else ``nobody``; else as we do."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise StackError(
        "PostgreSQL refuses to run as root, and there is no user postgres; start the stack as another user"
    )


def make_cluster(data: Path, password: str) -> None:
    """PostgreSQL's folder ``data``, owned by ``server_user``, where the user ``congruence`` has ``password``.

    Raises:
        StackError: that user cannot enter the folder, or initdb says no.
    """
    if data.exists():
        return
    user = server_user()
    made = data.with_name(f"{data.name}.new")  # in place only when it is whole
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    with tempfile.NamedTemporaryFile("w") as word:
        word.write(password)
        word.flush()
        if user is not None:
            _require_enterable(made, user)
            owner = pwd.getpwnam(user)
            for path in (str(made), word.name):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = [binary("initdb"), "-D", str(made), "-U", OWNER, "--auth=scram-sha-256", f"--pwfile={word.name}"]
        command += ["--encoding=UTF8", "--no-locale"]
        done = subprocess.run(
            command, user=user, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )
    if done.returncode != 0:
        raise StackError(f"initdb: {(done.stderr or done.stdout).strip()[-500:]}")
    made.rename(data)


def server_command(data: Path, port: int) -> tuple[str, ...]:
    """What runs the server on loopback alone, without a socket file."""
    return (binary("postgres"), "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1",
            "-c", "unix_socket_directories=", "-c", "max_connections=200")  # fmt: skip


def address(port: int, password: str, database: str, driver: str = "postgresql") -> str:
    """The address of one of the databases, with the password in it."""
    return f"{driver}://{OWNER}:{password}@127.0.0.1:{port}/{database}"


def is_well(port: int, password: str) -> bool:
    """Whether the server answers a query."""
    import psycopg2

    try:
        connection = psycopg2.connect(address(port, password, "postgres"), connect_timeout=5)
    except psycopg2.Error:
        return False
    connection.close()
    return True


def make_databases(port: int, password: str, *names: str) -> None:
    """The databases of those names, where they are not there."""
    import psycopg2

    connection = psycopg2.connect(address(port, password, "postgres"), connect_timeout=5)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database")
            known = {row[0] for row in cursor.fetchall()}
            for name in names:
                if name not in known:
                    cursor.execute(f'CREATE DATABASE "{name}"')
    finally:
        connection.close()


def _require_enterable(folder: Path, user: str) -> None:
    for parent in folder.resolve().parents:
        if not parent.stat().st_mode & 0o001:
            raise StackError(
                f"{parent}: user {user}, as whom PostgreSQL runs since it refuses root, cannot enter it; start the "
                f"stack as a user who is not root, give a --home that others may enter, or run chmod o+x {parent}"
            )
