"""`congruence list`, `open` and `ui`: what is evaluated, its reports, and MLflow's own pages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import typer

from congruence.flows.cli.console import print_line, results, table_of
from congruence.tasks.comparison.differences import CCE
from congruence.tasks.mlflow.connection import TrackingError, connect, file_names, run_link, web_page, with_retries
from congruence.tasks.mlflow.reading import ListedVersion, OpenEvaluation, list_evaluations
from congruence.tasks.models.registry import model_name
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.runtime.files import tracking_uri
from congruence.tasks.sentences.calibration import probability, significant
from congruence.tasks.settings.sections import TrackingSettings

REPORT_FILE = "report.html"


def listing_json(versions: Sequence[ListedVersion]) -> list[dict[str, Any]]:
    """The list as JSON."""
    return [
        {
            "label": item.model.label,
            "uri": item.model.uri,
            "aliases": list(item.model.aliases),
            "gate": item.gate_of(),
            "looks": item.looks,
            "evaluations": [
                {
                    "split": found.split.name,
                    "run_id": found.run_id,
                    "protocol": found.protocol,
                    "ended": _time(found.ended),
                    "verdict": str(found.verdict),
                    "p_value": found.verdict.p_value,
                    "gate": item.gate_of(found),
                    "best": item.best_of(found),
                    "metrics": {name: metric.value for name, metric in found.metrics.items()},
                }
                for found in item.evaluations
            ],
            "under_way": [
                {"split": found.split, "run_id": found.run_id, "began": _time(found.began), "status": _state(found)}
                for found in item.under_way
            ],
        }
        for item in versions
    ]


def print_listing(versions: Sequence[ListedVersion], names: Sequence[str] = ()) -> None:
    """Print one row for each version and split; of what was asked for by ``names``."""
    out = results()
    if not versions and names:
        print_line(f"no version is called {' or '.join(names)}; `congruence list` shows all")
        return
    if not versions:
        out.print("no versions are registered here; register one, or name another server with MLFLOW_TRACKING_URI")
        return
    columns = ("version", "aliases", "split", "verdict", "p", "CCE", "gate", "best by CRPS", "evaluated (UTC)")
    rows: list[Sequence[str]] = []
    for item in versions:
        named = (item.model.label, ", ".join(item.model.aliases))
        for begun in item.under_way:
            remedy = "; run the same command to resume" if begun.is_stale else ""
            state = f"{_state(begun)} since {_time(begun.began)}{remedy}"
            rows.append((*named, begun.split, state, "", "", "", "", ""))
        if not item.evaluations and not item.under_way:
            rows.append((*named, "", "not evaluated", "", "", item.gate_of() or "", "", ""))
        for found in item.evaluations:
            cce = found.metrics.get(CCE)
            judged = found.verdict.short, probability(found.verdict.p_value), significant(cce.value) if cce else ""
            best = (item.best_of(found) or "").replace(" the best", ",")
            rows.append((*named, found.split.name, *judged, item.gate_of(found) or "", best, _time(found.ended)))
    out.print(table_of(columns, rows, words=set(columns) - {"p", "CCE"}))
    for item in versions:
        for looks in item.looks:  # of which the table has the last one alone
            out.print(f"{item.model.label}, over all looks at {looks}", markup=False, highlight=False)


def report_address(version: str, split: str | None, settings: TrackingSettings) -> str:
    """Where the report of a version's latest evaluation is: its page in MLflow, or a file of this machine.

    Raises:
        SettingsError: it was not evaluated, or not on that split; or its run holds no report.
        RegistryError: there is no such version.
        TrackingError: MLflow does not answer, or the run's files are not where it has them.
    """
    item = list_evaluations([version], settings)
    found = [(one.model.label, evaluation) for one in item for evaluation in one.evaluations]
    chosen = [pair for pair in found if split in (None, pair[1].split.name)]
    if not chosen:
        where = ", ".join(sorted({evaluation.split.name for _, evaluation in found}))
        remedy = f"it was on {where}" if where else f"run `congruence evaluate FILE -m {version}` first"
        raise SettingsError(f"{version}: not evaluated{f' on {split}' if split else ''}; {remedy}")
    label, latest = max(chosen, key=lambda pair: pair[1].ended)
    if REPORT_FILE not in file_names(latest.run_id, settings):
        raise SettingsError(f"{label} on {latest.split.name}: its run holds no report (tracking.report was false)")
    return _page(latest.experiment, latest.run_id, REPORT_FILE, settings)


def over_time_address(model: str, settings: TrackingSettings) -> str:
    """Where the page over time of a registered model, or of that of a version, is: in MLflow, or a local file.

    Raises:
        TrackingError: nobody has looked at the model, or MLflow does not answer.
    """
    # Loaded here: what draws pages is of no use to a list.
    from congruence.tasks.monitor.account import OVER_TIME_FILE, over_time_run

    found = over_time_run(model_name(model), settings)
    if found is None:
        raise TrackingError(f"{model_name(model)}: no look at it is logged; `congruence watch` makes them, by date")
    return _page(*found, OVER_TIME_FILE, settings)


def _page(experiment: str, run_id: str, name: str, settings: TrackingSettings) -> str:
    """A page of a run: in MLflow, else MLflow's own file on this machine, else a copy that lives as long as this."""
    if (base := web_page(settings)) is not None:
        return run_link(base, experiment, run_id, f"artifacts/{name}")
    client = connect(settings)
    root = urlparse(str(with_retries("reading the run", lambda: client.get_run(run_id), settings).info.artifact_uri))
    own = Path(url2pathname(root.path)) / name
    if root.scheme in ("", "file") and own.exists():
        return own.as_uri()
    copy = with_retries(f"reading {name}", lambda: client.download_artifacts(run_id, name), settings)
    return Path(copy).as_uri()


def _state(found: OpenEvaluation) -> str:
    """Of an evaluation that MLflow shows as running."""
    if found.is_stale is None:
        return f"running on {found.host}" if found.host else "running"
    return "stale" if found.is_stale else "running"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def serve_ui(home: Path, host: str, port: int) -> int:
    """Serve until the server ends, with the command or by itself; returns its exit status."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri(home)]
    command += ["--default-artifact-root", str(home / "mlartifacts")]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    pages = list_pages(home, f"http://{host}:{port}")
    server = subprocess.Popen(command, env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    for page in pages:
        typer.echo(page)
    return server.wait()


def list_pages(home: Path, base: str) -> list[str]:
    """A line for each split: where its evaluations are listed. None where there is no database yet."""
    uri = tracking_uri(home)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return []
    from mlflow.exceptions import MlflowException

    from congruence.tasks.mlflow.identity import evaluation_lists

    try:
        found = evaluation_lists(TrackingSettings(uri=uri))
    except MlflowException:
        return []  # the server says what is wrong with its database
    return [f"  evaluations on {name}: {base}/{page}" for name, page in found.items()]


_LOOKED_AT = 100


def require_free(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on.

    Raises:
        SettingsError: it is in use, or this user may not; names the next one that is free.
    """
    why, offered = "", "choose another with --port"
    for tried in range(port, min(port + _LOOKED_AT, 2**16)):
        try:
            socket.create_server((host, tried), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            why = why or (os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()
            continue
        if tried == port:
            return
        offered = f"use the next free one: congruence ui --port {tried}"
        break
    raise SettingsError(f"--port: {host}:{port} cannot be listened on ({why}); {offered}")
