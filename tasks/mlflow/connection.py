"""How MLflow is reached: by its address, for people too; requests that are tried again; experiments, files and tags."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlparse
from urllib.request import url2pathname

import mlflow
import requests
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import chain, mask_text, require_database, trouble
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

_LIBRARIES = ("sqlalchemy", "sqlite3", "alembic", "psycopg2", "boto3", "botocore", "google")
"""Of MLflow's databases and stores of files, some of whose errors it lets pass as they are."""
_CODES = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "RESOURCE_EXHAUSTED", "REQUEST_LIMIT_EXCEEDED", "ABORTED"}


def all_pages(search: Callable[[str | None], Any]) -> Iterator[Any]:
    """Yields the items of every page; ``search`` is given the token of the page that it is to ask for."""
    token: str | None = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if "database is locked" in str(error):  # another process writes
        return True
    if trouble(error) is not None:
        return False
    if isinstance(error, MlflowException):
        text = str(error).lower()
        # Two writers, such as two commands on one split, insert the same dataset: the second finds it at its next try.
        is_race = error.error_code == "BAD_REQUEST" and ("unique" in text or "duplicate" in text)
        return error.error_code in _CODES or is_race
    response = getattr(error, "response", None)
    if response is not None:
        return bool(response.status_code >= 500 or response.status_code == 429)
    # Two writers that put the same folder of artifacts in place: it is there at the next try.
    return isinstance(
        error, (requests.ConnectionError, requests.Timeout, ConnectionError, TimeoutError, FileExistsError)
    )


def is_refusal(error: BaseException) -> bool:
    """Whether connections were refused: nothing listens at that address, which waiting seldom changes."""
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in chain(error))
    return refused or "Connection refused" in str(error)  # MLflow tells its cause as text


ARTIFACTS = "mlartifacts"
_SQLITE = "sqlite:///"

_looked_at: set[str] = set()


def database_file(uri: str) -> Path | None:
    """The file of an SQLite address, None of another."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute() if uri.startswith(_SQLITE) else None


def artifacts_folder(uri: str) -> Path | None:
    """Where the runs and models of a database on this machine keep their files: beside it."""
    file = database_file(uri)
    return None if file is None else file.resolve().parent / ARTIFACTS


def require_local_store(uri: str) -> None:
    """Look once at a database file before MLflow opens it: MLflow tries a damaged one for two minutes.

    Raises:
        SurroundingsError: it is none, or is damaged.
    """
    file = database_file(uri)
    if file is not None and uri not in _looked_at:
        require_database(file)
        _looked_at.add(uri)


def point_mlflow_at(uri: str) -> None:
    """Set MLflow's tracking address; a database on this machine is made if need be.

    It is made so that what names no experiment keeps its files beside it: MLflow decides that when it makes a database,
    and takes ``mlruns`` in the working folder of the first process.

    Raises:
        SurroundingsError: the file at that address is no database, or is damaged.
    """
    require_local_store(uri)
    file = database_file(uri)
    if file is not None and not file.exists() and file.parent.is_dir():
        # Loaded here: it brings sqlalchemy and alembic, which an MLflow server's clients need not wait for.
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(uri, str(artifacts_folder(uri)))  # type: ignore[no-untyped-call]
    mlflow.set_tracking_uri(uri)


log = logging.getLogger(__name__)

T = TypeVar("T")
KIND = "custom_model_development"  # else MLflow shows the page of language models, where metrics come last
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0
REFUSED_SECONDS = 10.0
"""How long a server that refuses connections, and never answered this process, is asked: nothing listens there."""

_answered: set[str] = set()


class TrackingError(CongruenceError):
    """MLflow refused or did not answer: names the server, the step and how to go on."""


class FailedRequestError(TrackingError):
    """MLflow answered that it refuses, and would again: says its words."""


def connect(settings: TrackingSettings) -> MlflowClient:
    """A client of the tracking server and the registry of ``settings``; nothing global is changed."""
    return MlflowClient(tracking_uri=settings.uri, registry_uri=settings.registry)


def registry_of(client: MlflowClient) -> Any:
    """What a client writes to the registry by; itself it asks before every tag whether the model is a prompt."""
    return client._get_registry_client()  # type: ignore[no-untyped-call]


def use_tracking(settings: TrackingSettings) -> None:
    """Point this process's MLflow at the servers of ``settings``, where they name any: models are loaded from there."""
    # It shows the traceback of every error of a database; we say what the error means.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    point_mlflow_at(tracking_address(settings))
    if settings.registry is not None and mlflow.get_registry_uri() != settings.registry:
        mlflow.set_registry_uri(settings.registry)


def tracking_address(settings: TrackingSettings) -> str:
    """The tracking server or database, with the login that may be in it."""
    return settings.uri or str(mlflow.get_tracking_uri())


def server(settings: TrackingSettings) -> str:
    """The same without secrets, for messages."""
    return mask_text(tracking_address(settings))


# Without it a link opens in MLflow's view of language models, which has neither the registry nor the list of runs.
_VIEW = "workflowType=machine_learning"
_USER_INFO = re.compile(r"(?<=://)[^/\s@]*@")


def web_page(settings: TrackingSettings) -> str | None:
    """Where people open MLflow: ``settings.link``, else the tracking server; None for a database, which has no page."""
    base = settings.link or tracking_address(settings)
    return _USER_INFO.sub("", base).rstrip("/") if base.startswith(("http://", "https://")) else None


def run_link(base: str, experiment: str, run_id: str, page: str = "") -> str:
    """The address of a run's page, or of one of its pages such as ``artifacts/report.html``."""
    return f"{base.rstrip('/')}/{run_page(experiment, run_id, page)}"


def run_page(experiment: str, run_id: str, page: str = "") -> str:
    """``run_link`` as texts on MLflow's own pages write it: without the server, whose name they need not know."""
    return f"#/experiments/{experiment}/runs/{run_id}{'/' + quote(page) if page else ''}?{_VIEW}"


def list_page(experiment: str, view: str) -> str:
    """An experiment's list of runs in one of its saved views (``view_key``), as ``run_page`` is written."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={quote(view)}&{_VIEW}"


def run_place(settings: TrackingSettings, experiment: str, run_id: str) -> str:
    """Where a run is found: its address, or how to get at it where there is only a database."""
    base = web_page(settings)
    return f"run {run_id} (see it with: congruence ui)" if base is None else run_link(base, experiment, run_id)


def with_retries(step: str, operation: Callable[[], T], settings: TrackingSettings) -> T:
    """Returns the result of ``operation``, tried again with growing pauses while MLflow does not answer.

    ``operation`` may have been carried out by a server that failed to say so: it must be idempotent. A server that
    answered before and refuses connections now is being started again, and is waited for; one that never answered is
    given up sooner.

    Raises:
        TrackingError: MLflow refused, or did not answer within ``settings.patience`` seconds.
    """
    started, wait = time.monotonic(), _FIRST_WAIT
    while True:
        try:
            result = operation()
        except Exception as error:
            if not _is_of_mlflow(error):
                raise
            if not is_transient(error):
                raise _refused(step, error, settings) from error
            waited, patience = time.monotonic() - started, settings.patience
            if tracking_address(settings) not in _answered and is_refusal(error):
                patience = min(patience, REFUSED_SECONDS)
            if waited + wait > patience:
                raise TrackingError(
                    f"{step}: MLflow at {server(settings)} is unreachable: {_first_line(error)} (asked for "
                    f"{waited:.0f} s). Start it (`congruence ui`, `mlflow server`), correct tracking.uri or "
                    "MLFLOW_TRACKING_URI, or raise tracking.patience; what was computed is saved: run the same command "
                    "to resume"
                ) from error
            said = _first_line(error)
            log.warning(
                "%s: MLflow at %s is unreachable: %s; trying again in %.1f s", step, server(settings), said, wait
            )
            time.sleep(wait)
            wait = min(2.0 * wait, _LONGEST_WAIT)
        else:
            _answered.add(tracking_address(settings))
            return result


def _refused(step: str, error: Exception, settings: TrackingSettings) -> TrackingError:
    place = f"{step}: MLflow at {server(settings)}"
    if (message := trouble(error)) is not None:
        return TrackingError(f"{step}: {server(settings)}: {message}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 or getattr(error, "error_code", None) in ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"):
        return TrackingError(
            f"{place} rejected the credentials; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, to those of a user whom it knows"
        )
    return FailedRequestError(f"{place} refused: {_first_line(error)}")


def _is_of_mlflow(error: Exception) -> bool:
    is_own = isinstance(error, (MlflowException, requests.RequestException, OSError))
    return is_own or type(error).__module__.partition(".")[0] in _LIBRARIES


def _first_line(error: Exception) -> str:
    if is_refusal(error):
        return "it refuses connections"
    text = str(error).strip()
    text = mask_text(text.partition("(Caused by ")[2] or text)  # before it stands the request that MLflow's client made
    # Of a file that MLflow could not fetch it says why below folder and file.
    told = -1 if text.startswith("The following failures") else 0
    return text.splitlines()[told][:400] if text else type(error).__name__


@cache
def _address_of_files(run_id: str, uri: str) -> str:
    return str(MlflowClient(uri).get_run(run_id).info.artifact_uri)


def _files(run_id: str, settings: TrackingSettings) -> ArtifactRepository:
    """The files of a run, by their address, which never changes.

    By the run's id MLflow asks for that each time, then for a logged model of the file's name, and says of any error
    that there is no such file, also where its store did not answer.
    """
    address = _address_of_files(run_id, tracking_address(settings))
    return get_artifact_repository(address, settings.uri)


def fetch_file(run_id: str, path: str, folder: str | Path, settings: TrackingSettings) -> Path:
    """Bring a file of a run into a folder.

    Raises:
        TrackingError: MLflow does not answer, or lacks the file.
    """

    def fetched() -> str:
        files: Any = _files(run_id, settings)  # which MLflow does not type
        try:
            return str(files.download_artifacts(path, str(folder)))
        except MlflowException as error:  # by which a server's lack of a file looks like an error of its own
            if path in {item.path for item in files.list_artifacts()}:
                raise
            raise MlflowException(str(error), RESOURCE_DOES_NOT_EXIST) from error

    return Path(with_retries(f"reading {path}", fetched, settings))


def file_names(run_id: str, settings: TrackingSettings) -> set[str]:
    """The names of the files and folders of a run.

    Raises:
        TrackingError: MLflow does not answer, or has a folder of this machine for them that is not there.
    """
    found = with_retries("looking for tables", lambda: _files(run_id, settings).list_artifacts(), settings)
    if not found:
        place = urlparse(_address_of_files(run_id, tracking_address(settings)))
        if place.scheme in ("", "file") and not Path(url2pathname(place.path)).exists():
            raise TrackingError(
                f"run {run_id}: there is no {url2pathname(place.path)}, where MLflow has its files; move a home folder "
                "that was moved or copied back to its place, or evaluate the version again: congruence evaluate FILE "
                "--again -m VERSION"
            )
    return {str(item.path) for item in found}


def of_deleted_run(error: TrackingError) -> bool:
    """Whether MLflow refused because the run has been deleted meanwhile."""
    return isinstance(error.__cause__, MlflowException) and "Current state is deleted" in str(error.__cause__)


def active_run(client: MlflowClient, run_id: str) -> Run | None:
    """A run; None where it was deleted."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def open_experiment(client: MlflowClient, name: str, settings: TrackingSettings) -> Experiment:
    """The experiment of that name, which is made if need be (by one of several processes at once).

    Raises:
        TrackingError: its files are in the home folder that this one was copied from.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            location = _artifact_location(name, settings)
            client.create_experiment(name, location, {"mlflow.experimentKind": KIND})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
    _require_own_files(name, experiment.artifact_location, settings)
    if experiment.lifecycle_stage != "active":
        client.restore_experiment(experiment.experiment_id)
    return experiment


def _require_own_files(experiment: str, location: str, settings: TrackingSettings) -> None:
    """Refuse to write what would go into the home folder that this one was copied from: MLflow's paths are absolute."""
    beside = artifacts_folder(tracking_address(settings))
    if beside is None or settings.artifact_location is not None:
        return
    made, ours = Path(location), beside / experiment
    if made == ours or not location.endswith(f"/{ARTIFACTS}/{experiment}"):  # the latter is where somebody wanted them
        return
    if not (made.exists() and ours.exists() and made.samefile(ours)):
        raise TrackingError(
            f"MLflow's database {server(settings)} keeps the files of {experiment} in {made}: its folder was copied or "
            "moved from there. Evaluate in a new folder (--home), move this one back, or keep evaluations in an MLflow "
            "server (`mlflow server`, MLFLOW_TRACKING_URI), which other folders can share"
        )


def _artifact_location(experiment: str, settings: TrackingSettings) -> str | None:
    if settings.artifact_location is not None:
        return f"{settings.artifact_location.rstrip('/')}/{experiment}"
    beside = artifacts_folder(tracking_address(settings))
    # MLflow would take the working folder of whichever process comes first.
    return None if beside is None else str(beside / experiment)


LOOKS = "cce_looks:"
"""Before the name of a split: the tag of a version that says in words what all looks at it there say."""

BEST = "cce_best:"
"""The tag of a version that says whether it may be the best on a split; the split's name follows."""


def set_version_tags(model: ModelVersion, tags: Mapping[str, str], settings: TrackingSettings) -> None:
    """Set tags on a registered version: those that it had not when it was read."""
    registry = registry_of(connect(settings))

    def tag() -> None:
        for key, value in tags.items():
            if model.tags.get(key) != value:
                registry.set_model_version_tag(model.name, model.version, key, value)

    with_retries(f"tagging {model.label}", tag, settings)


def tag_run(what: str, run_id: str, tag: str, value: str, settings: TrackingSettings) -> None:
    """Set a tag on a run; ``what`` is done by that stands in the error where MLflow does not answer."""
    client = connect(settings)
    with_retries(what, lambda: client.set_tag(run_id, tag, value), settings)


def alias_holder(name: str, alias: str, settings: TrackingSettings) -> str | None:
    """The number of the version that ``alias`` is on, None where it is on none.

    Raises:
        TrackingError: there is no such registered model, or MLflow does not answer.
    """
    client = connect(settings)
    held = with_retries("reading the aliases", lambda: client.get_registered_model(name), settings).aliases
    return str(held[alias]) if alias in held else None


def set_alias(model: ModelVersion, alias: str, settings: TrackingSettings) -> None:
    """Point ``alias`` at a version."""
    client = connect(settings)
    with_retries(
        f"setting alias {alias}",
        lambda: client.set_registered_model_alias(model.name, alias, model.version),
        settings,
    )
