"""Marking as ended what dead processes left open in MLflow and Prefect, by their journals.

MLflow over HTTP or on SQLite, and Prefect, are spoken to directly: loading their
packages takes longer than all the rest.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from congruence.tasks.runtime.masking import MASK, mask_text
from congruence.tasks.runtime.run_journal import Entry, open_entries, rewrite

LOST = "The command ended before this run was finished. Finished work is saved; run the same command to resume."
_SECONDS, _REQUEST_SECONDS, _LOCKED_SECONDS = 9.0, 3.0, 2.0
_OLDEST_SECONDS = 7 * 24 * 3600.0
_ERROR_TAG = "congruence.error"
_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "PREFECT_API_URL")


def sweep(folder: Path, reason: str = LOST, *, addresses: Mapping[str, str] | None = None) -> int:
    """Mark as ended what dead processes left open, for some seconds at most; what cannot be marked stays noted.

    Args:
        folder: of the journals.
        reason: why the runs ended, for those who read them.
        addresses: of servers, by what journals name them: with their passwords, which no journal holds.

    Returns:
        How many runs and claims could not be marked.
    """
    limit, left, silent = time.monotonic() + _SECONDS, 0, set[str]()
    known = {mask_text(value): value for name in _VARIABLES if (value := os.environ.get(name))} | dict(addresses or {})
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        try:
            file = path.open("r+")
        except OSError:
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its process lives, or another sweeps it
                continue
            entries = list(open_entries(file))
            rest = _marked(entries, reason, known, limit, silent)
            written = path.stat().st_mtime
            if not rest or time.time() - written > _OLDEST_SECONDS:
                path.unlink(missing_ok=True)
                continue
            rewrite(file, rest)
            os.utime(path, (written, written))
            left += len(rest)
    return left


def _marked(entries: list[Entry], reason: str, known: Mapping[str, str], limit: float, silent: set[str]) -> list[Entry]:
    """Mark entries; returns those that could not be. A server that failed once is silent, and not asked again."""
    rest: list[Entry] = []
    for entry in entries:
        server = known.get(entry.server, entry.server)
        if entry.server in silent or MASK in server or time.monotonic() > limit:
            rest.append(entry)
            continue
        try:
            _mark(entry, server, reason)
        except Exception:  # whatever it is: another command tries again
            silent.add(entry.server)
            rest.append(entry)
    return rest


def _mark(entry: Entry, server: str, reason: str) -> None:
    if entry.kind == "flow_run":
        _crash_flow_run(server, entry.name[0], reason)
        return
    speaks: Callable[[Entry, str, str], None]
    if server.startswith(("http://", "https://")):
        speaks = _by_http
    else:
        speaks = _in_sqlite if server.startswith("sqlite:///") else _by_client
    try:
        speaks(entry, server, reason)
    except (TimeoutError, urllib.error.URLError) as error:
        if not isinstance(error, urllib.error.HTTPError):  # away or frozen: MLflow's own client would wait for it
            raise
        if error.code != 404:  # of a login that only MLflow's plugins know, for example
            _by_client(entry, server, reason)
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise
        _by_client(entry, server, reason)


def _in_sqlite(entry: Entry, server: str, reason: str) -> None:
    path = Path(server.removeprefix("sqlite:///").partition("?")[0]).absolute()
    if not path.exists():
        return
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_LOCKED_SECONDS)) as database, database:
        if entry.kind == "claim":
            database.execute("DELETE FROM model_version_tags WHERE name = ? AND version = ? AND key = ?", entry.name)
            return
        ended = database.execute(
            "UPDATE runs SET status = 'FAILED', end_time = ? WHERE run_uuid = ? AND status = 'RUNNING'",
            (int(time.time() * 1000), entry.name[0]),
        )
        if ended.rowcount:
            tag = (_ERROR_TAG, reason, entry.name[0])
            database.execute("INSERT OR REPLACE INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", tag)


def _by_http(entry: Entry, server: str, reason: str) -> None:
    api = f"{server.rstrip('/')}/api/2.0/mlflow"
    headers = _mlflow_login()
    if entry.kind == "claim":
        model, version, key = entry.name
        content = {"name": model, "version": version, "key": key}
        _ask(f"{api}/model-versions/delete-tag", content, headers, method="DELETE")
        return
    run = {"run_id": entry.name[0]}
    found = _ask(f"{api}/runs/get?run_id={entry.name[0]}", None, headers, method="GET")
    if found["run"]["info"].get("status") != "RUNNING":
        return
    _ask(f"{api}/runs/set-tag", run | {"key": _ERROR_TAG, "value": reason}, headers)
    _ask(f"{api}/runs/update", run | {"status": "FAILED", "end_time": int(time.time() * 1000)}, headers)


def _by_client(entry: Entry, server: str, reason: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server, registry_uri=server)
    if entry.kind == "claim":
        client.delete_model_version_tag(*entry.name)
    elif client.get_run(entry.name[0]).info.status == "RUNNING":
        client.set_tag(entry.name[0], _ERROR_TAG, reason)
        client.set_terminated(entry.name[0], "FAILED")


def _crash_flow_run(server: str, run: str, reason: str) -> None:
    if not server.startswith(("http://", "https://")):
        raise ValueError("the next command has an embedded server of its own")
    headers: dict[str, str] = {}
    if key := os.environ.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif word := os.environ.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = f"Basic {base64.b64encode(word.encode()).decode()}"
    place = f"{server.rstrip('/')}/flow_runs/{run}"
    try:
        state = _ask(place, None, headers, method="GET").get("state_type")
        wanted = {"type": "CANCELLED", "name": "Cancelled"} if state == "CANCELLING" else {"type": "CRASHED"}
        if state in ("RUNNING", "PENDING", "CANCELLING"):
            _ask(f"{place}/set_state", {"state": wanted | {"message": reason}, "force": True}, headers)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise


def _mlflow_login() -> dict[str, str]:
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, word = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user is None or word is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{word}'.encode()).decode()}"}


def _ask(url: str, content: Any, headers: Mapping[str, str], *, method: str = "POST") -> Any:
    parts = urlsplit(url)
    if parts.username is not None:  # urllib does not read it
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json", **headers}, method=method
    )
    trusted = None
    if url.startswith("https://"):
        trusted = ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"))
        if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS") == "true":
            trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS, context=trusted) as answer:
        return json.loads(answer.read() or b"{}")
