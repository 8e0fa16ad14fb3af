"""Looks at versions as MLflow holds them: one run for each look, under the run of their registered model.

A look is opened with the rows that it is of, and closed once with what was found. A closed look is never changed: the
account of a version is the list of its closed looks, which only grows.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mlflow.entities import Metric, Run

from congruence.kernels.monitoring import Look, Monitor, ScoreSums
from congruence.tasks.mlflow.connection import active_experiment, active_run, connect, fetched_artifact, with_retries
from congruence.tasks.mlflow.identity import (
    COMPLETE,
    OPEN,
    PREFIX,
    STATE,
    EvaluationIdentity,
    all_runs,
    identity_digest,
    runs_of,
)
from congruence.tasks.mlflow.runs import SOURCE, close_run, open_identified, set_tags
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion

ROWS_FILE = "rows.npy"
Rows = npt.NDArray[np.uint64]
"""Identities of rows, sorted: see ``tasks.data.row_identity``."""

_PARENT = "mlflow.parentRunId"
_EVALUATION, _EVIDENCE, _WHEN, _NUMBER, _FOUND, _RUN = (
    PREFIX + name for name in ("evaluation", "evidence", "when", "look", "found", "evaluation_run")
)


@dataclass(frozen=True)
class LoggedLook:
    """One look as MLflow holds it.

    Attributes:
        run_id: its run.
        version: number of the version.
        split: name of the split.
        evidence: digest of what it is of.
        evaluation: digest of the evaluation's identity, by which the evaluation is found.
        when: of its rows, as people call it.
        number: its place among the closed looks, from 1; None while it is open.
        evaluation_run: the run of the evaluation that closed it.
        found: what it found; None while it is open.
        sums: of the scores after it, for the next bet.
    """

    run_id: str
    version: str
    split: str
    evidence: str
    evaluation: str
    when: str
    number: int | None = None
    evaluation_run: str = ""
    found: Look | None = None
    sums: ScoreSums | None = field(default=None, repr=False)


def logged_looks(model: ModelVersion, split: str, settings: TrackingSettings) -> list[LoggedLook]:
    """The looks at a version on a split: the closed ones in their order, then those that are open."""
    tags = {"model": model.name, "version": model.version, "split": split}
    found = [_read(run) for run in _search(model.name, tags, settings)]
    closed = sorted((look for look in found if look.number), key=lambda look: (look.number or 0, look.run_id))
    return [*closed, *(look for look in found if not look.number)]


def closed_looks(name: str, settings: TrackingSettings) -> list[LoggedLook]:
    """The closed looks at all versions of a registered model, each version's in their order."""
    found = [_read(run) for run in _search(name, {"state": COMPLETE}, settings)]
    return sorted(found, key=lambda look: (look.number or 0, look.run_id))


def open_evaluations(name: str, settings: TrackingSettings) -> set[str]:
    """The evaluations, by the digest of their identity, of all open looks at versions of a registered model."""
    return {run.data.tags[_EVALUATION] for run in _search(name, {"state": OPEN}, settings)}


def create_look(
    identity: EvaluationIdentity, evidence: str, rows: Rows, when: str, settings: TrackingSettings
) -> LoggedLook:
    """Open a look: it counts from the moment at which its rows are written."""
    client, model = connect(settings), identity.model
    parent = model_run(model.name, settings)
    tags = {
        PREFIX + "kind": "look",
        PREFIX + "model": model.name,
        PREFIX + "version": model.version,
        PREFIX + "split": identity.split_name,
        _EVALUATION: identity.digest,
        _EVIDENCE: evidence,
        _WHEN: when,
        _PARENT: str(parent.info.run_id),
    }
    name = f"{model.label} on {identity.split_name}, {when}"
    run = with_retries(
        "opening a look",
        lambda: client.create_run(parent.info.experiment_id, run_name=name, tags={**SOURCE, **tags}),
        settings,
    )
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        np.save(Path(folder) / ROWS_FILE, rows)
        with_retries("logging the rows of a look", lambda: client.log_artifacts(run.info.run_id, folder), settings)
    with_retries("opening a look", lambda: set_tags(client, run.info.run_id, {STATE: OPEN}), settings)
    return LoggedLook(str(run.info.run_id), model.version, identity.split_name, evidence, identity.digest, when)


def withdraw_look(look: LoggedLook, settings: TrackingSettings) -> None:
    """Take back a look that was opened and never made: its rows are free for another one."""
    client = connect(settings)
    with_retries("withdrawing a look", lambda: client.delete_run(look.run_id), settings)


def finish_look(
    look: LoggedLook,
    number: int,
    monitor: Monitor,
    sums: ScoreSums | None,
    evaluation_run: str,
    settings: TrackingSettings,
) -> None:
    """Close a look: ``monitor`` is the account with it at its end; the mark that it counts is written last."""
    client, found = connect(settings), monitor.looks[-1]
    tags = {
        _NUMBER: str(number),
        _FOUND: json.dumps(asdict(found)),
        _RUN: evaluation_run,
        "cce_looks": monitor.sentence(),
    } | ({} if sums is None else {PREFIX + "sums": json.dumps(asdict(sums))})
    numbers = {
        "p_value": found.p_value,
        "log_e_value": found.log_e,
        "log_evidence": float(monitor.evidence[-1]),
        "log_change": float(monitor.detector[-1]),
    }

    def write() -> None:
        when = int(client.get_run(look.run_id).info.start_time)
        metrics = [Metric(name, value, when, number) for name, value in numbers.items()]
        client.log_batch(look.run_id, metrics=metrics)
        set_tags(client, look.run_id, tags)
        close_run(client, look.run_id, COMPLETE)

    with_retries("closing a look", write, settings)


def read_rows(look: LoggedLook, folder: Path, settings: TrackingSettings) -> Rows:
    """The rows of a look, of which ``folder`` keeps a copy."""
    return kept_rows(look.run_id, ROWS_FILE, folder / f"{look.run_id}.npy", settings)


def kept_rows(run_id: str, artifact: str, path: Path, settings: TrackingSettings) -> Rows:
    """The rows that a run holds; they never change, so that ``path`` keeps a copy."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as place:
            fetched_artifact(run_id, artifact, place, settings).replace(path)
    rows: Rows = np.load(path)
    return rows


def is_open(look: LoggedLook, settings: TrackingSettings) -> bool:
    """Whether a look may still be closed, by what MLflow says now."""
    run = with_retries("reading a look", lambda: active_run(connect(settings), look.run_id), settings)
    return run is not None and run.data.tags.get(STATE) == OPEN


def model_run(name: str, settings: TrackingSettings) -> Run:
    """The run of a registered model over time, which holds its looks and its page."""
    client, tags = connect(settings), {PREFIX + "kind": "over time", PREFIX + "model": name}

    def opened() -> Run:
        experiment, title = settings.looks_experiment_name(name), f"{name} over time"
        run = open_identified(client, experiment, title, _over_time(name), tags, settings)
        if run.data.tags.get(STATE) == OPEN:
            close_run(client, str(run.info.run_id), COMPLETE)
        return run

    return with_retries("opening the run of the model", opened, settings)


def _over_time(name: str) -> str:
    return identity_digest({"over time": name})


def logged_model_run(name: str, settings: TrackingSettings) -> Run | None:
    """The run of a registered model over time, None where nobody has looked at it."""
    client = connect(settings)

    def find() -> Run | None:
        experiment = active_experiment(client, settings.looks_experiment_name(name))
        return next(iter(runs_of(client, _over_time(name), experiment)), None)

    return with_retries("reading the account of looks", find, settings)


def _search(name: str, tags: dict[str, str], settings: TrackingSettings) -> list[Run]:
    client, asked = connect(settings), {"kind": "look"} | tags
    wanted = " and ".join(f"tags.`{PREFIX}{key}` = {_quoted(value)}" for key, value in asked.items())

    def search() -> list[Run]:
        runs = all_runs(client, active_experiment(client, settings.looks_experiment_name(name)), wanted)
        return [run for run in runs if run.data.tags.get(STATE) in (OPEN, COMPLETE)]

    return with_retries("reading the account of looks", search, settings)


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"


def _read(run: Run) -> LoggedLook:
    tags: dict[str, Any] = run.data.tags
    closed = tags[STATE] == COMPLETE
    sums = tags.get(PREFIX + "sums")
    return LoggedLook(
        run_id=str(run.info.run_id),
        version=tags[PREFIX + "version"],
        split=tags[PREFIX + "split"],
        evidence=tags[_EVIDENCE],
        evaluation=tags[_EVALUATION],
        when=tags[_WHEN],
        number=int(tags[_NUMBER]) if closed else None,
        evaluation_run=tags.get(_RUN, ""),
        found=Look(**json.loads(tags[_FOUND])) if closed else None,
        sums=ScoreSums(**json.loads(sums)) if closed and sums else None,
    )
