"""No password or token reaches a log, whatever it is wrapped in; log lines as JSON are one object a line."""

import io
import json
import logging
import pickle
import re
import string
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from congruence.flows.evaluate import explain_in_logs
from congruence.kernels.errors import CongruenceError
from congruence.tasks.evaluate.executors import reason
from congruence.tasks.runtime import lines as logs
from congruence.tasks.runtime.errors import MASK, SettingsError, mask_secrets, mask_text
from congruence.tasks.runtime.lines import JsonLines, know, log_fields, require_known_kind, use_json_lines

PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
SECRETS = st.text(PRINTABLE, min_size=8, max_size=24)
SCHEMES = st.sampled_from(["postgresql", "mysql+pymysql", "http", "https", "s3", "redis", "tcp"])
AROUND = st.sampled_from(
    [
        ("", ""),
        ("the database at ", " did not answer"),
        ("connect('", "', timeout=3) failed: see https://docs.example/errors"),
        ('{"uri": "', '"}'),
        ("models:/law@champion: MLflow at ", " refused: no version 3"),
        ("first http://127.0.0.1:4200/api, then ", ", then gs://bucket/x"),
    ]
)


def leaks(secret: str, text: str) -> bool:
    """Whether half of the secret stands in the text."""
    half = len(secret) // 2
    return any(secret[start : start + half] in text for start in range(len(secret) - half + 1))


@settings(max_examples=200, deadline=None)
@given(secret=SECRETS, scheme=SCHEMES, around=AROUND, user=st.sampled_from(["ann", "", "a.b-c"]))
@example(secret="Ab/Cd+Ef12/Zz==", scheme="postgresql", around=("MLflow at ", " refused"), user="user")
@example(secret="12/ab@cd:ef?gh#", scheme="https", around=("", ""), user="user")
@example(secret="a s3://b@c, d'e", scheme="https", around=("", ""), user="user")
def test_no_password_of_an_address_is_left(secret: str, scheme: str, around: tuple[str, str], user: str) -> None:
    # What a text cannot tell from a host with a port and prose behind it; no driver takes it either.
    assume(not re.match(r"(\d{1,5}([/?#@]|['\"`)\]}>,;|.!]*:? )|['\"`)\]}>,;|.!]* ).*", secret) or " " not in secret)
    assume(not leaks(secret, f"{scheme}://{user}:{MASK}@db.example:5432/mlflow".join(around)))
    for written in (secret, quote(secret, safe="")):
        masked = mask_text(f"{around[0]}{scheme}://{user}:{written}@db.example:5432/mlflow{around[1]}")
        assert not leaks(written, masked)
        assert f"{MASK}@db.example:5432/mlflow" in masked


@settings(max_examples=100, deadline=None)
@given(secret=SECRETS, name=st.sampled_from(["Authorization", "X-MLflow-Signature", "Cookie", "x-goog-api-key"]))
@example(secret="''000000", name="X-MLflow-Signature")
@example(secret="'', 00000", name="Cookie")
def test_no_header_is_left(secret: str, name: str) -> None:
    assume(not leaks(secret, f"POST /x {name}: Bearer Host: h {MASK}"))
    value = f"Bearer {secret}" if name == "Authorization" else secret
    for shown in (
        f"{name}: {value}",
        f"POST /x\n{name}: {value}\nHost: h",
        str({name: value}),
        json.dumps({name: value}),
    ):
        assert not leaks(secret, mask_text(shown).replace("Host: h", ""))


@settings(max_examples=100, deadline=None)
@given(secret=SECRETS, name=st.sampled_from(["password", "aws_secret_access_key", "X-Amz-Security-Token", "api-key"]))
@example(secret="''000000", name="password")
def test_no_value_under_a_telling_name_is_left(secret: str, name: str) -> None:
    around = f"https://h/x?a=1&{name}=&b=2 {{'store': [{{'options': {{'{name}s': ['{MASK}', {{'x': '"
    assume(not leaks(secret, around))
    shown = [f"https://h/x?a=1&{name}={quote(secret, safe='')}&b=2", str({name: secret}), json.dumps({name: secret})]
    for text in shown:
        assert secret not in mask_text(text)
        assert not leaks(quote(secret, safe=""), mask_text(text))
    nested = mask_secrets({"store": [{"options": {name: secret, f"{name}s": [secret, {"x": secret}]}}]})
    assert not leaks(secret, str(nested))


@settings(max_examples=50, deadline=None)
@given(secret=st.text(string.digits + string.ascii_letters + string.punctuation, min_size=8, max_size=24))
def test_no_secret_of_the_environment_is_left_wherever_it_stands(secret: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"postgresql://ann:{quote(secret, safe='')}@db/mlflow")
        assert secret not in mask_text(f"authentication with {secret} failed")
        patch.setenv("MLFLOW_TRACKING_URI", "http://mlflow")
        patch.setenv("PREFECT_API_KEY", secret)
        assert secret not in mask_text(f"authentication with {secret} failed")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://ann:hunter2@db:5432/mlflow", "postgresql://***@db:5432/mlflow"),
        ("postgresql+psycopg2://ann:hun%40ter2@db/mlflow", "postgresql+psycopg2://***@db/mlflow"),
        ("https://token@host/x and s3://key:secret@bucket", "https://***@host/x and s3://***@bucket"),
        ("https://h/x?a=1&token=abc&b=2", "https://h/x?a=1&token=***&b=2"),
        (
            "https://h/x?X-Amz-Signature=0af&X-Amz-Credential=AK/1",
            "https://h/x?X-Amz-Signature=***&X-Amz-Credential=***",
        ),
        ("host=db password=hunter2 user=ann", "host=db password=*** user=ann"),
        ("host=db password='hun ter2' user=ann", "host=db password=*** user=ann"),
        ("(token=abc), next", "(token=***), next"),
        ("Authorization: Basic YW5uOmh1", "Authorization: ***"),
    ],
)
def test_what_is_masked(text: str, masked: str) -> None:
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "models:/digit-angle@champion",
        "s3://bucket/a@b/file.parquet",
        "looking up models:/law@champion: MLflow at http://127.0.0.1:5000 refused: no models:/law@champion",
        "http://127.0.0.1:5000/#/models/law/versions/3; then models:/law@champion",
        "webhook secret: has 5 characters, expected at least 16",
        "sqlite:////home/ann/mlflow.db: mail ann@example.org",
        "tcp://127.0.0.1:8786 lost; cluster.address: tcp://10.0.0.1:8786",
        "http://[::1]:5000 asks ann@example.org",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_text(text) == text


def test_a_long_text_takes_no_time() -> None:
    text = "a" * 200_000 + "://" + "b:" * 100_000 + "'" * 1_000 + "@h " + "password='" * 1_000
    assert "b:b:" not in mask_text(text)


def test_everything_inside_settings() -> None:
    settings = {
        "tracking": {"uri": "http://ann:hunter2@mlflow:5000"},
        "storage_options": {"key": "AKIA", "secret": "hunter2", "endpoint": ("http://u:hunter2@s3",)},
        "MLFLOW_TRACKING_PASSWORD": "hunter2",
        "seed": 7,
        "max_tokens": 512,
        "aws_secret_access_key": "hunter2",
        "landmarks": None,
    }
    masked = mask_secrets(settings)
    assert "hunter2" not in str(masked)
    assert (masked["seed"], masked["max_tokens"], masked["landmarks"]) == (7, 512, None)
    assert masked["tracking"] == {"uri": "http://***@mlflow:5000"}


ADDRESS = "postgresql://user:Ab/Cd+Ef12/Zz==@host/db"


def test_our_errors_tell_no_secret_wherever_they_go() -> None:
    error = pickle.loads(pickle.dumps(CongruenceError(f"cannot reach {ADDRESS}")))
    for shown in (str(error), f"{error}", reason(error), reason(OSError(f"cannot reach {ADDRESS}"))):
        assert "Ab/Cd" not in shown
        assert shown.endswith("postgresql://***@host/db")
    assert "Ab/Cd" not in repr(error)
    assert error.args == ("cannot reach postgresql://***@host/db",)


def test_a_secret_of_the_environment_is_masked_when_the_error_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "a long winter")
    error = CongruenceError("refused: a long winter")
    monkeypatch.delenv("STORE_PASSWORD")
    assert str(error) == "refused: ***"


@pytest.mark.parametrize("kind", [CongruenceError, OSError])
def test_prefects_log_tells_no_secret_not_even_in_a_traceback(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    explain_in_logs()
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(caplog.handler)
    try:
        logger.warning("asking %s", ADDRESS)
        raise kind(f"cannot reach {ADDRESS}")
    except (CongruenceError, OSError) as error:
        logger.exception("it ended: %r", error)
    finally:
        logger.removeHandler(caplog.handler)
    assert "Ab/Cd" not in caplog.text
    assert "postgresql://***@host/db" in caplog.text


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
