"""MLflow: whether it answers, its version, the login, and whether runs, artifacts and the registry can be written."""

from __future__ import annotations

import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request

from congruence.kernels.masking import mask_text
from congruence.tasks.doctor.answers import SECONDS, Answer, answer_of, clock, versions, why_none
from congruence.tasks.doctor.findings import Finding, Step, fine, warning, wrong
from congruence.tasks.mlflow.connection import connect, experiment_id
from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.mlflow.runs import SOURCE
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.runtime.mlflow_database import database_file, require_local_store
from congruence.tasks.runtime.mlflow_outages import server_error

TRACKING, REGISTRY, ARTIFACTS = "MLflow", "MLflow's registry", "MLflow's artifacts"
TAG = PREFIX + "doctor"
FILE = "doctor.txt"
_LETTERS = "k\u00fcste \u00b7 \u6d77"
_NAME = re.compile(r"^(?:models:/)?(?P<name>[^/@:]+)(?:[/@][^/@:]+)?$")
_LOGIN = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to those of a user who may "
    "write there"
)
_START = "start one (`congruence ui`, `mlflow server`), or correct tracking.uri of the file or MLFLOW_TRACKING_URI"


def tracking_server(settings: TrackingSettings) -> Iterator[Finding | Step]:
    """Whether ``settings.uri`` answers, knows us, and takes runs and artifacts.

    What is written is a run in the experiment ``<experiment>/doctor``: it is deleted again, as is the experiment, and
    used again by the next look.
    """
    uri = str(settings.uri)
    if uri.startswith(("http://", "https://")):
        found = list(_server(TRACKING, uri))
        yield from found
        if any(item.level == "wrong" for item in found):
            return
    elif (missing := _database(uri)) is not None:
        yield from missing
        return
    yield Step(
        "writing a run",
        "see its log, whether this user may write there, and whether its --allowed-hosts name this address",
    )
    client = connect(settings)
    run = _opened(client, settings)
    try:
        client.set_tag(run.info.run_id, TAG, secrets.token_hex(4))
        client.delete_tag(run.info.run_id, TAG)
        yield fine(TRACKING, "a run can be written")
        yield from _letters(client, str(run.info.run_id))
        yield Step(
            f"{ARTIFACTS}: writing to {_shown(run.info.artifact_uri)}",
            "see whether its disk or bucket is there and may be written; where artifacts do not go through the server, "
            "this machine and the workers need keys of the bucket",
        )
        _write_artifact(str(run.info.artifact_uri), uri)
        yield fine(ARTIFACTS, f"can be written, read and deleted at {_shown(run.info.artifact_uri)}")
    finally:
        client.delete_run(run.info.run_id)
        client.delete_experiment(run.info.experiment_id)


def _letters(client: MlflowClient, run_id: str) -> Iterator[Finding]:
    """Whether MLflow's database stores more than ASCII, by a tag that is written and read."""
    try:
        client.set_tag(run_id, TAG, _LETTERS)
        stored = client.get_run(run_id).data.tags.get(TAG) == _LETTERS
        client.delete_tag(run_id, TAG)
    except MlflowException as error:
        failed = server_error(error)
        if failed is None or not failed.may_be_lasting:
            raise
        stored = False
    if not stored:
        yield warning(
            TRACKING,
            f"its database does not store letters beyond ASCII, such as {_LETTERS!r} in names of splits and slices",
            "on PostgreSQL move it to a database with ENCODING 'UTF8' (createdb -E UTF8 -T template0)",
        )


def registry(settings: TrackingSettings, models: list[str]) -> Iterator[Finding | Step]:
    """Whether the registry answers, has the named models, and lets tags be set on them (one is set and deleted)."""
    uri = str(settings.registry_uri or settings.uri)
    if uri.startswith(("http://", "https://")):
        found = list(_server(REGISTRY, uri))
        if uri != settings.uri:  # else the look at the tracking server says it
            yield from found
        if any(item.level == "wrong" for item in found):
            return
    elif _database(uri) is not None:
        if models:
            yield wrong(REGISTRY, "is empty", f"register a model in {_shown(uri)}, or name the MLflow that has it")
        return
    yield Step("asking the registry", f"see the log of MLflow at {_shown(uri)}; {_LOGIN}")
    client = connect(settings)
    names = dict.fromkeys(match["name"] for model in models if (match := _NAME.match(model)))
    if not names:
        known = client.search_registered_models(max_results=1)
        yield fine(REGISTRY, "answers" if known else "answers, and is empty")
    for name in names:
        yield from _model(client, name)


def _model(client: MlflowClient, name: str) -> Iterator[Finding | Step]:
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            yield wrong(
                REGISTRY, f"there is no model '{name}'", "correct models: of the file (`congruence list` shows them)"
            )
            return
        raise
    yield Step(f"setting a tag on the model '{name}'", f"give this user the right to edit it, or {_LOGIN}")
    client.set_registered_model_tag(name, TAG, "tag")
    client.delete_registered_model_tag(name, TAG)
    yield fine(REGISTRY, f"has the model '{name}', and takes tags on it")


def _server(place: str, uri: str) -> Iterator[Finding]:
    try:
        answer = _version_of(uri)
    except Exception as error:
        why = why_none(error)
        if why is None:
            raise
        yield wrong(place, f"{_shown(uri)}: {why}", _START)
        return
    if answer.status == 401:
        yield wrong(place, f"{_shown(uri)} does not know the login", _LOGIN)
    elif answer.status == 403:
        yield wrong(
            place,
            f"{_shown(uri)} refuses ({answer.text.strip()[:120]})",
            f"start it with --allowed-hosts that name this host and port, or {_LOGIN}",
        )
    elif answer.status != 200 or not re.fullmatch(r"\d+\.\d+\S*", answer.text.strip()):
        yield wrong(place, f"{_shown(uri)} answers ({answer.status}), but not as MLflow does", _START)
    else:
        yield versions(place, _shown(uri), answer, mlflow.__version__)
    yield from clock(place, answer.skew)


def _version_of(uri: str) -> Answer:
    asked, started = time.time(), time.monotonic()
    request: Any = http_request  # as MLflow's own client asks: its login, certificates and headers
    login = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
    response = request(login, "/version", "GET", max_retries=0, timeout=SECONDS, raise_on_status=False)
    return answer_of(response, asked, time.monotonic() - started)


def _database(uri: str) -> list[Finding] | None:
    """What to say of a database file that is not there yet; None where MLflow may open what is there.

    Raises:
        SurroundingsError: it is damaged, or no database.
    """
    file = database_file(uri)
    if file is None:
        return None
    require_local_store(uri)
    if file.exists():
        return None
    return [fine(TRACKING, f"{_shown(uri)} will be made by the first evaluation")]


def _opened(client: MlflowClient, settings: TrackingSettings) -> Run:
    """The run of earlier looks, or a new one."""
    for left in (1, 0):
        try:
            place = experiment_id(client, f"{settings.experiment}/doctor", settings)
            for run in client.search_runs([place], f"tags.`{PREFIX}kind` = 'doctor'", ViewType.ALL, max_results=1):
                client.restore_run(run.info.run_id)
                return run
            return client.create_run(place, run_name="doctor", tags={**SOURCE, PREFIX + "kind": "doctor"})
        except MlflowException:
            if not left:
                raise
            time.sleep(1.0)  # another look deleted the experiment just then
    raise AssertionError


def _write_artifact(place: str, tracking_uri: str) -> None:
    repository: Any = get_artifact_repository(place, tracking_uri=tracking_uri)
    with tempfile.TemporaryDirectory() as folder:
        text, file = secrets.token_hex(8), Path(folder) / FILE
        file.write_text(text)
        repository.log_artifact(str(file))
        (read := Path(folder) / "read").mkdir()
        if Path(repository.download_artifacts(FILE, str(read))).read_text() != text:
            raise OSError(f"{place}: what was written is not what is read")
    repository.delete_artifacts(FILE)


def _shown(uri: object) -> str:
    return mask_text(str(uri))
