"""A new home's Prefect database is a copy of the first that Prefect made for this user, and holds nobody's runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from congruence.flows.prefect.new_database import new_database


def made_by_prefect(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE alembic_version (version_num)")


def test_the_first_is_kept_and_the_next_begins_with_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / "first" / "prefect.db", tmp_path / "second" / "prefect.db"
    with new_database(first):
        assert not first.exists()
        made_by_prefect(first)
    with closing(sqlite3.connect(first)) as used, used:
        used.execute("INSERT INTO alembic_version VALUES ('a run of the first home')")
    with new_database(second), closing(sqlite3.connect(second)) as copy:
        assert copy.execute("SELECT count(*) FROM alembic_version").fetchone() == (0,)
    (kept,) = (tmp_path / "cache" / "congruence").iterdir()
    assert kept.name.startswith("prefect-3.")


def test_a_database_that_is_there_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made_by_prefect(tmp_path / "home" / "prefect.db")
    with new_database(tmp_path / "home" / "prefect.db"):
        pass
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with new_database(tmp_path / "home" / "prefect.db"):
        made_by_prefect(tmp_path / "home" / "prefect.db")
