"""Log lines as JSON: one object a line, with what it is about, without secrets; text stays text."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from congruence.tasks.runtime import lines as logs
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.lines import JsonLines, know, log_fields, require_known_kind, use_json_lines

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Iterator[Capture]:
    """Standard error of a process that writes JSON; logging is put back afterwards."""
    monkeypatch.setenv(logs.VARIABLE, "json")
    monkeypatch.setattr(logs, "_known", [])
    names = [None, logs.LOGGER, *logs._OWN_HANDLERS]
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).level) for name in names}
    yield capsys
    for name, (handlers, level) in before.items():
        logging.getLogger(name).handlers = handlers
        logging.getLogger(name).setLevel(level)


def lines(written: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.readouterr().err.splitlines()]


def test_a_line_is_an_object_with_its_fields_and_no_secret(written: Capture) -> None:
    use_json_lines()
    use_json_lines()
    know(lambda record: {"stage": "embed", "logger_of": record.name})
    logger = logging.getLogger("congruence.tasks.x")
    with log_fields(version="angle/3"), log_fields(shard="0-7"):
        logger.info("reading %s\nthen more", "s3://me:hunter22@host/x")
    secret = "abcdefgh" + "12345"  # the line itself stands in the traceback
    try:
        raise ValueError(f"token={secret}")
    except ValueError:
        logger.exception("it ended")
    found = lines(written)
    first, second = found
    assert first["time"].endswith("+00:00")
    del first["time"]
    assert first == {
        "level": "info", "logger": "congruence.tasks.x", "message": "reading s3://***@host/x\nthen more",
        "stage": "embed", "logger_of": "congruence.tasks.x", "version": "angle/3", "shard": "0-7",
    }  # fmt: skip
    assert "version" not in second
    assert "ValueError: token=***" in second["traceback"]
    assert secret not in str(found)


def test_lines_of_other_packages_come_the_same_way_and_once(written: Capture) -> None:
    own = logging.StreamHandler(sys.stderr)
    kept = logging.StreamHandler(io.StringIO())
    distributed = logging.getLogger("distributed")
    distributed.handlers, distributed.propagate = [own, kept], False
    distributed.disabled = False  # a migration of MLflow's database in this process disables the loggers that there are
    use_json_lines()
    use_json_lines()
    distributed.error("a worker died")
    logging.getLogger("somebody.else").warning("careful")
    assert [line["message"] for line in lines(written)] == ["a worker died", "careful"]
    assert kept in distributed.handlers


def test_without_the_variable_nothing_changes_and_a_typo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    before = logging.getLogger().handlers[:]
    use_json_lines()
    require_known_kind()
    assert logging.getLogger().handlers == before
    monkeypatch.setenv(logs.VARIABLE, "jsn")
    with pytest.raises(SettingsError, match="CONGRUENCE_LOG: is 'jsn'; write json"):
        require_known_kind()


def test_other_scripts_stay_readable() -> None:
    record = logging.LogRecord("a", logging.INFO, "f", 1, "%s", ("ü\u2028",), None)
    assert json.loads(JsonLines().format(record))["message"] == "ü\u2028"
