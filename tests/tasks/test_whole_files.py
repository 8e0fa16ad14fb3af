"""A file is there whole or not at all, whoever is killed; what was left unfinished is known by its name."""

import errno
import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from congruence.tasks.runtime.files import abandoned, whole_file, write_whole


def test_nothing_is_seen_before_the_end_and_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "rows.npz"
    with whole_file(path) as stream:
        stream.write(b"first")
        assert not path.exists()
    assert path.read_bytes() == b"first"
    with pytest.raises(TypeError), whole_file(path) as stream:
        stream.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == b"first"
    write_whole(path, b"second")
    write_whole(path, b"third", replace=False)
    write_whole(path.with_name("other"), b"third", unfinished=tmp_path / "incoming", replace=False)
    assert path.read_bytes() == b"second"
    assert path.with_name("other").read_bytes() == b"third"
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {"rows.npz", "other"}


def _stop_half_way(path: Path) -> None:
    with whole_file(path) as stream:
        stream.write(b"half")
        stream.flush()
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_killed_writer_leaves_what_was_there_and_a_file_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "a.file.with~odd.name"
    write_whole(path, b"old")
    process = multiprocessing.get_context("fork").Process(target=_stop_half_way, args=(path,))
    process.start()
    deadline = time.monotonic() + 20
    while not (half := [found for found in tmp_path.iterdir() if found != path]) and time.monotonic() < deadline:
        assert abandoned(tmp_path) == []
    (half,) = half
    while half.read_bytes() != b"half":
        assert abandoned(tmp_path) == []  # its writer lives, and locks it in a moment
    assert abandoned(tmp_path) == []
    process.kill()
    process.join()
    assert abandoned(tmp_path) == [half]
    assert abandoned(tmp_path / "nowhere") == []
    assert path.read_bytes() == b"old"


def test_an_empty_file_that_nobody_has_locked_is_abandoned_after_a_minute(tmp_path: Path) -> None:
    half = tmp_path / ".a.1.partial"
    half.touch()
    assert abandoned(tmp_path) == []
    os.utime(half, (time.time() - 61.0,) * 2)
    assert abandoned(tmp_path) == [half]


def test_where_nothing_is_locked_a_file_is_abandoned_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / ".a.1.partial"
    half.write_bytes(b"half")

    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    assert abandoned(tmp_path) == []
    os.utime(half, (0, 0))
    assert abandoned(tmp_path) == [half]
