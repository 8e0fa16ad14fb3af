"""What is wrong with files, data, encoders, ports and logins is said once, before anything is started, in a line."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import CancelledError, KilledWorker
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from congruence.flows.cli import session
from congruence.flows.cli.app import app
from congruence.flows.cli.options import errors_in_words, explaining
from congruence.flows.evaluate import explain, explain_in_logs, is_news
from congruence.flows.operations.validate import about_targets
from congruence.kernels import Normal, Poisson
from congruence.tasks.evaluate.executors import Done
from congruence.tasks.mlflow.connection import TrackingError, with_retries
from congruence.tasks.runtime.errors import ClusterError, SettingsError
from congruence.tasks.runtime.lines import evaluation_file, with_file
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import TrackingSettings

Content = Callable[..., dict[str, Any]]
Register = Callable[..., str]


WRONG_ENCODERS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "custom", "path": "nobodys:Encoder"}, "put its folder on PYTHONPATH, of every worker too"),
    ({"kind": "open_clip", "model": "ViT-B-23"}, "is unknown to open_clip"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"target": "targt"}, "there is no column 'targt' (target); did you mean 'target'? the columns are:"),
    ({"slices": ["weather"]}, "there is no column 'weather' (slices); the columns are:"),
    ({"target": "key"}, "column 'key' (target) holds"),
    ({"uri": "nowhere.parquet"}, "nowhere.parquet"),
]


def test_a_wrong_column_or_encoder_is_said_once_and_starts_nothing(
    content: Content,
    home: Path,
    register_law: Register,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = register_law()
    monkeypatch.setattr(session, "session", lambda: pytest.fail("a server was started"))
    for change, said in [*WRONG, *WRONG_ENCODERS]:
        changed = content(models=[uri], home=str(home))
        if (change, said) in WRONG:
            changed["splits"][0] |= change
        else:
            changed["encoder"] = change
        settings = EvaluationSettings.model_validate(changed)
        capsys.readouterr()
        with pytest.raises(SystemExit), errors_in_words(debug=False):
            session.run_evaluation(settings)
        shown = capsys.readouterr()
        assert (shown.out + shown.err).count(said) == 1
        assert shown.err.startswith("Error: ")


@pytest.mark.parametrize("known", ["nothing", "no store", "an evaluation"])
def test_what_is_needed_starts_early_where_nothing_was_evaluated_yet(
    content: Content, home: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    store, begun = home / "mlflow.db", []
    store.unlink(missing_ok=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    monkeypatch.setattr(session, "load_for_workers_of", lambda _: begun.append("workers"))
    monkeypatch.setattr(session, "server_on_its_way", lambda: nullcontext(begun.append("server")))
    if known != "no store":
        store.touch()
    if known == "an evaluation":
        (home / "plans").mkdir()
    with session.beginning_early(EvaluationSettings.model_validate(content(models=["m"], home=str(home)))):
        assert begun == (["workers", "server"] if known == "nothing" else [])


@pytest.mark.parametrize(
    ("file", "said", "named"),
    [
        ("pyproject.toml", "[project]\nname = 'prefect-user'", False),
        (".env", "PREFECT_API_URL=http://127.0.0.1:9/api", True),
        ("home/profiles.toml", "active = 'own'\n[profiles.own]\nPREFECT_API_URL = 'http://127.0.0.1:9/api'", True),
    ],
)
def test_a_prefect_server_is_named_wherever_prefect_reads_it(tmp_path: Path, file: str, said: str, named: bool) -> None:
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(said)
    script = "from congruence.flows.cli import session; print(session._is_server_named())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    asked = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=kept | {"PREFECT_HOME": str(tmp_path / "home")}, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert asked.stdout.strip() == str(named)


def test_a_server_that_settings_of_a_context_name_is_the_one() -> None:
    """Each evaluation of a process that had loaded Prefect started one of its own."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}), session.server_on_its_way() as started:
        assert started is None


def test_what_a_version_says_of_some_rows_is_set_beside_their_targets() -> None:
    """A mean 1.9 times too large, and a density between counts, were "1 to do"."""
    y = np.random.default_rng(0).poisson(0.5, 400).astype(float)
    assert about_targets(Poisson(np.full(400, np.mean(y))), y) == ["mean prediction over mean target: 1 on 400 rows"]
    (forgotten,) = about_targets(Poisson(np.full(400, 1.9 * np.mean(y))), y)
    assert forgotten.startswith("mean prediction over mean target: 1.9 on 400 rows: is an exposure missing")
    counted, _ = about_targets(Normal(np.full(400, 0.5), np.ones(400)), y)
    assert counted.startswith("the targets are counts, and Normal has a density between them")
    assert about_targets(Normal(y - 5.0, np.ones(400)), y - 5.3) == []


def test_a_port_in_use_is_refused_with_the_next_free_one(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        shown = CliRunner().invoke(app, ["ui", "--port", str(port), "--home", str(tmp_path)])
    assert shown.exit_code == 2
    assert f"--port: 127.0.0.1:{port} cannot be listened on (address already in use)" in shown.output
    assert "use the next free one: congruence ui --port" in shown.output
    assert "MLflow on http" not in shown.output


@contextmanager
def asking_for_a_login(*free: str) -> Iterator[str]:
    """A server that knows nobody, and answers on ``free`` paths alone; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            known = self.path in free
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(b"true" if known else b"You are not authenticated.")

        def log_message(self, *line: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_login_that_mlflow_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter22")
    with asking_for_a_login() as uri:
        settings = TrackingSettings(uri=uri)
        with pytest.raises(TrackingError) as error:
            with_retries("looking for models", lambda: MlflowClient(uri).search_registered_models(), settings)
    said = str(error.value)
    assert f"MLflow at {uri} rejected the credentials; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASS" in said
    assert "hunter22" not in said


def test_a_login_that_prefect_does_not_know() -> None:
    with asking_for_a_login("/api/health") as uri:
        known = {PREFECT_API_URL: f"{uri}/api", PREFECT_API_AUTH_STRING: "somebody:hunter22"}
        with (
            temporary_settings(known),
            pytest.raises(ClusterError) as error,
            explaining(),
            get_client(sync_client=True) as client,
        ):
            client.read_flows()
    said = str(error.value)
    assert f"the Prefect server at {uri}/api rejected the credentials; set PREFECT_API_AUTH_STRING" in said
    assert "hunter22" not in said


FLOW_RUNS = logging.getLogger("prefect.flow_runs")


@contextmanager
def heard_by(handler: logging.Handler) -> Iterator[None]:
    FLOW_RUNS.addHandler(handler)
    try:
        yield
    finally:
        FLOW_RUNS.removeHandler(handler)


def fail(words: str, error: Exception) -> None:
    """As Prefect logs what ended a run."""
    try:
        raise error
    except Exception as raised:
        FLOW_RUNS.exception(words, raised)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SettingsError("models: none given; name one"), ["SettingsError: models: none given; name one"]),
        (CancelledError("the scheduler is gone"), ["CancelledError: the scheduler is gone"]),
        (ZeroDivisionError("nobody foresaw it"), ["it ended", "Traceback"]),
    ],
)
def test_our_own_errors_come_without_a_traceback(
    error: Exception, shown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    explain_in_logs()
    explain_in_logs()
    assert FLOW_RUNS.filters.count(explain) == 1
    with heard_by(caplog.handler):
        fail("it ended: %r", error)
    lines = caplog.text
    assert all(part in lines for part in shown)
    assert ("Traceback" in lines) == ("Traceback" in shown)


def test_a_command_that_prints_its_errors_keeps_them_off_its_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="prefect.flow_runs")
    said = StringIO()
    handler = PrefectConsoleHandler(stream=said)
    handler.addFilter(is_news)
    explain_in_logs()
    with heard_by(handler):
        for error in (SettingsError("models: none given"), ZeroDivisionError("nobody foresaw it")):
            fail("Encountered exception during execution: %r", error)
        FLOW_RUNS.error("Finished in state Failed('models: none given')")
        FLOW_RUNS.warning("the cluster lost a worker")
    assert "models: none given" not in said.getvalue()
    assert "nobody foresaw it" in said.getvalue()
    assert "lost a worker" in said.getvalue()


def test_a_version_that_kills_every_worker_is_named() -> None:
    error = KilledWorker("predict-7", SimpleNamespace(address="tcp://10.0.0.1:1"), 3)  # type: ignore[arg-type]
    said = str(Done("angle/3", error=error).failure("angle/3", "predict rows 100 to 299"))
    assert said.startswith("angle/3: killed 4 workers, all that were to predict rows 100 to 299; it needs more memory")
    assert "make shard_rows of the split smaller" in said


def test_commands_that_are_advised_name_the_evaluation_file() -> None:
    said = "what is wrong is not known (congruence evaluate FILE --again -m models:/a/1); FILE is a file"

    def asked() -> str:
        evaluation_file.set(Path("my evaluation.yaml"))
        return with_file(said)

    assert copy_context().run(asked) == said.replace("evaluate FILE", "evaluate 'my evaluation.yaml'")
    assert with_file(said) == said, "where a command has none"
