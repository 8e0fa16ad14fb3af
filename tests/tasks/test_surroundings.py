"""Damaged databases, full disks and files in the way are said in a sentence, at once, with the remedy."""

import errno
import os
import re
import runpy
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlflow
import pytest

from congruence.flows.cli import session as prefect_server
from congruence.flows.cli.options import embed_servers, errors_in_words, explained
from congruence.kernels.errors import CongruenceError
from congruence.tasks.mlflow.connection import TrackingError, connect, use_tracking, with_retries
from congruence.tasks.runtime.errors import SettingsError, SurroundingsError, require_database, trouble
from congruence.tasks.runtime.files import write_whole
from congruence.tasks.settings.sections import TrackingSettings
from congruence.tasks.store.objects import ObjectStore


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """One of some pages."""
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE runs (name TEXT PRIMARY KEY, note TEXT)")
        made.executemany("INSERT INTO runs VALUES (?, ?)", ((f"run {row}", "x" * 300) for row in range(200)))
    made.close()
    return path


def no_database(path: Path) -> None:
    path.write_text("these are notes\n" * 100)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(1, 8):
            file.seek(4096 * page)
            file.write(bytes(4096))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_database, "it is no SQLite database; restore it from a backup, or move it away"),
        (half, "it is damaged; restore it from a backup"),
        (zeroed, "is damaged .*restore it from a backup"),
        (a_folder, "found a folder; move it away"),
    ],
)
def test_a_damaged_database_is_refused_at_once_with_a_remedy(
    damage: Callable[[Path], None], said: str, database: Path
) -> None:
    require_database(database)
    damage(database)
    started = time.monotonic()
    with pytest.raises(SurroundingsError, match=said):
        use_tracking(TrackingSettings(uri=f"sqlite:///{database}"))
    assert time.monotonic() - started < 5.0


def test_databases_that_are_new_empty_or_in_use_are_none_of_our_business(database: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    require_database(tmp_path / "empty.db")
    require_database(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()
    with sqlite3.connect(database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        require_database(database)
        other.execute("ROLLBACK")
    other.close()


WRITER = """
import sqlite3, sys
while True:
    database = sqlite3.connect(sys.argv[1], isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
    database.execute("PRAGMA wal_autocheckpoint = 5")
    for turn in range(20):
        database.executemany("INSERT INTO runs (note) VALUES (?)", [("y" * 900,)] * 40)
        database.execute("DELETE FROM runs WHERE name IS NULL")
        database.execute("VACUUM")
    database.close()
"""


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_healthy_database_is_never_called_damaged_while_another_process_writes_it(database: Path, mode: str) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(database), mode])
    try:
        seen: set[int] = set()
        until = time.monotonic() + 3.0  # some 2,000 looks on an idle machine
        while time.monotonic() < until or len(seen) < 2:
            require_database(database)
            seen.add(database.stat().st_size)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


def test_a_database_that_breaks_in_the_run_is_not_waited_for(tmp_path: Path) -> None:
    settings = TrackingSettings(uri=f"sqlite:///{tmp_path / 'notes.db'}", patience=600.0)
    no_database(tmp_path / "notes.db")
    connect(TrackingSettings(uri="http://127.0.0.1:9"))

    def full() -> None:
        raise mlflow.MlflowException("(sqlite3.OperationalError) database or disk is full")

    started = time.monotonic()
    with pytest.raises(TrackingError, match="the disk is full; make room"):
        with_retries("opening the run", full, settings)

    def malformed() -> None:
        with sqlite3.connect(tmp_path / "notes.db") as opened:
            opened.execute("SELECT 1 FROM runs")

    with pytest.raises(TrackingError, match="no SQLite database; restore it"):
        with_retries("opening the run", malformed, settings)
    assert time.monotonic() - started < 5.0


def test_a_database_that_another_process_holds_is_waited_for_and_then_said(database: Path) -> None:
    settings = TrackingSettings(uri=f"sqlite:///{database}", patience=0.1)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    def read() -> None:
        with sqlite3.connect(database, timeout=0.01) as opened:
            opened.execute("SELECT count(*) FROM runs").fetchone()

    with pytest.raises(TrackingError, match="is unreachable: database is locked"):
        with_retries("looking up law", read, settings)
    holder.close()


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "predictions").write_text("x")
    with pytest.raises(OSError, match="predictions") as error:
        ObjectStore(str(tmp_path), {}).put("predictions/split/model/done/1.json", b"{}")
    told = explained(error.value)
    assert isinstance(told, CongruenceError)
    assert f"{tmp_path / 'predictions'} is a file where a folder is needed; move it away" in str(told)


def test_a_folder_where_a_file_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "complete.json").mkdir()
    with pytest.raises(OSError, match="directory") as error:
        write_whole(tmp_path / "complete.json", b"{}")
    assert f"{tmp_path / 'complete.json'} is a folder where a file is needed; move it away" in str(trouble(error.value))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "is full; make room; finished work is saved"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "make it writable, or give another folder with --home"),
        (errno.EFBIG, "would be larger than files may be here .*ulimit -f"),
        (errno.EMFILE, "too many files are open .*ulimit -n"),
    ],
)
def test_what_a_disk_refuses_is_said(number: int, said: str, tmp_path: Path) -> None:
    task = RuntimeError("a task failed")
    task.__cause__ = OSError(number, os.strerror(number), str(tmp_path / "measurements" / "a.npz"))
    assert re.search(said, str(trouble(task)))
    assert trouble(FileNotFoundError(errno.ENOENT, "No such file", "/nowhere")) is None
    assert explained(ZeroDivisionError("nobody foresaw it")) is None


def test_a_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, errors_in_words(debug=False):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
    assert left.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_before_anything_is_started(small_disk: Path) -> None:
    with pytest.raises(SettingsError, match=r"full \(.* MiB free, a run needs at least 16 .*; make room"):
        embed_servers(small_disk / "home")


def test_what_reads_alone_goes_on_a_full_disk_and_on_one_that_is_read_only(small_disk: Path) -> None:
    home = embed_servers(small_disk / "home", writes=False)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert embed_servers(home, writes=False) == home
    with pytest.raises(SettingsError, match=r"other cannot be written .*; give another folder with --home"):
        embed_servers(home.with_name("other"), writes=False)


def test_a_prefect_server_that_was_named_but_is_not_there_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "REFUSED_SECONDS", 0.1)
    with pytest.raises(SettingsError, match=r"PREFECT_API_URL: no Prefect server listens at .*; start one"):
        prefect_server.require_server("http://127.0.0.1:9/api")


def test_an_address_of_a_prefect_server_without_its_api_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(prefect_server, "REFUSED_SECONDS", 0.1)
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SettingsError, match=r"\(404 Not Found; its address ends in /api\)"):
            prefect_server.require_server(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_damaged_database_of_our_own_prefect_server_is_refused_and_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for name in ("API_URL", "API_DATABASE_CONNECTION_URL", "SERVER_DATABASE_CONNECTION_URL"):
        monkeypatch.delenv(f"PREFECT_{name}", raising=False)
    no_database(tmp_path / "prefect.db")
    with pytest.raises(SurroundingsError, match=r"Prefect server's database cannot be used: .*move it away"):
        prefect_server._prepare_database()
    assert (tmp_path / "prefect.db").exists()


def test_a_new_database_of_our_own_prefect_server_has_the_tables_that_this_prefect_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "home" / "prefect.db"
    prefect_server.make_database(made)
    prefect_server.make_database(made)  # what is there stays
    import prefect

    newest = sorted((Path(prefect.__file__).parent / "server/database/_migrations/versions/sqlite").glob("*.py"))[-1]
    with closing(sqlite3.connect(made)) as database:
        ((revision,),) = database.execute("SELECT version_num FROM alembic_version").fetchall()
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert f"_{revision}_" in newest.name, "Prefect is newer: run python infra/prefect_tables.py"
    assert {"flow_run", "task_run", "log", "artifact"} <= tables

    monkeypatch.setattr(prefect.__spec__, "origin", str(tmp_path / "older" / "__init__.py"))
    prefect_server.make_database(tmp_path / "older.db")
    assert not (tmp_path / "older.db").exists()


@pytest.mark.exercise
def test_the_tables_are_those_of_prefects_own_migrations() -> None:
    def parts(statements: str) -> list[list[str]]:
        """Of each statement; those of a table, and the indexes, come in the order of a set."""
        return sorted(sorted(part.strip(" );") for part in line.split(", ")) for line in statements.splitlines())

    script = runpy.run_path(str(Path(__file__).parents[2] / "infra" / "prefect_tables.py"))
    assert parts(script["FILE"].read_text()) == parts(script["prefect_tables"]())
