"""A run in MLflow: opened once, written to by several at once, ended; and the tables in it."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from congruence.tasks.mlflow.connection import (
    TrackingError,
    active_run,
    connect,
    of_deleted_run,
    open_experiment,
    run_place,
    set_version_tags,
    with_retries,
)
from congruence.tasks.mlflow.identity import (
    COMPLETE,
    IDENTITY,
    NOTE,
    OPEN,
    PREFIX,
    STATE,
    EvaluationIdentity,
    evaluations_in,
    prepare_experiment,
    runs_of,
)
from congruence.tasks.runtime.errors import mask_text
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.scores.evaluation import Evaluation, SplitSummary
from congruence.tasks.scores.metrics.registry import explained_columns
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

ERROR = PREFIX + "error"
PROCESS = PREFIX + "process"
"""The tag of a run that is open with the process that works on it: host, number and start."""
log = logging.getLogger(__name__)
T = TypeVar("T")
LONGEST_MESSAGE = 1000
_LONGEST_PARAM = 500
_WRITERS = 3
_CLOCK_SECONDS = 5.0
"""A process's start follows the machine's clock, which is set now and then."""
SOURCE = {"mlflow.source.name": "congruence", "mlflow.source.type": "JOB"}


def open_run(identity: EvaluationIdentity, settings: TrackingSettings) -> str:
    """Returns the run of this evaluation, found or made; one that is open is marked with this process."""
    client, process = connect(settings), f"{os.getpid()} {psutil.Process().create_time():.0f}"

    def open_it() -> str:
        run = find_or_create(client, identity, settings, RunTag(PROCESS, f"{socket.gethostname()} {process}"))
        return str(run.info.run_id)

    return among_writers(lambda: with_retries("opening the run", open_it, settings))


def has_ended(process: str) -> bool | None:
    """Whether the process that a run's tag ``PROCESS`` names has ended; None where it is another machine's, or none."""
    if len(parts := process.split()) != 3 or parts[0] != socket.gethostname():
        return None
    try:
        return abs(psutil.Process(int(parts[1])).create_time() - float(parts[2])) > _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True


def find_or_create(
    client: MlflowClient, identity: EvaluationIdentity, settings: TrackingSettings, *marks: RunTag
) -> Run:
    """The one run of this evaluation; an open one runs, and is given its parameters and some ``marks``.

    Of several made at the same moment the oldest stays, the others are deleted.
    """
    # A step of its own: a server that goes away after it has answered is waited for, whoever writes.
    held = with_retries("looking for evaluations", lambda: evaluations_in(client, settings), settings)
    experiment = open_experiment(client, settings.evaluations, settings)
    prepare_experiment(client, experiment, "evaluation", identity.split_name, identity.target)
    places = list({str(each.experiment_id) for each in (experiment, *held.values())})
    runs = []
    for run in runs_of(client, identity.digest, places):
        # MLflow keeps a run's start for ever: a failed attempt goes, so that a run lasts as long as its own attempt.
        if run.info.status == "FAILED" and is_open(run):
            client.delete_run(run.info.run_id)
        else:
            runs.append(run)
    if not runs:
        client.create_run(
            str(experiment.experiment_id),
            run_name=identity.run_name,
            tags={**identity.tags, **SOURCE, IDENTITY: identity.digest, STATE: OPEN},
        )
        runs = runs_of(client, identity.digest, places)
    first, *others = runs
    for run in others:
        client.delete_run(run.info.run_id)
    if is_open(first):
        log_params(client, first, identity.params, marks)
        if first.info.status != "RUNNING":  # it was cut off just before its end
            client.update_run(first.info.run_id, status="RUNNING")
    return first


def is_open(run: Run) -> bool:
    """Whether a run is still to be written."""
    return bool(run.data.tags.get(STATE) == OPEN)


def among_writers(write: Callable[[], T]) -> T:
    """The result of ``write``, once more where its run was deleted meanwhile.

    Of several who open a run at the same moment one deletes the others' runs: these go on in its own.
    """
    for _ in range(_WRITERS):
        try:
            return write()
        except TrackingError as error:
            if not of_deleted_run(error):
                raise
    return write()


def fail_run(run_id: str, message: str, settings: TrackingSettings) -> None:
    """Mark an opened run as failed with its error; the next attempt has a run of its own in its place.

    The caller may have lost a worker that goes on and completes the run meanwhile: then it is complete.
    """
    client = connect(settings)

    def mark() -> None:
        run = active_run(client, run_id)
        if run is not None and is_open(run):
            client.set_tag(run_id, ERROR, mask_text(message))
            client.set_terminated(run_id, "FAILED")
            _settle_complete(client, run_id)

    with_retries("marking the run as failed", mark, settings)


def log_failure(model: ModelVersion, split: str, message: str, settings: TrackingSettings) -> None:
    """Show on the version that its evaluation failed and why, until one succeeds."""
    tags = {"cce_error": mask_text(f"{split}: {message}")[:LONGEST_MESSAGE]}
    if settings.headline_split in (None, split):
        tags["cce_status"] = "failed"
    if model.version:
        set_version_tags(model, tags, settings)


def _settle_complete(client: MlflowClient, run_id: str) -> None:
    """Take what marks a failure, or work, off a run that is complete; called by who marks and who completes.

    Each of them writes first and looks then, so the later of two who do so at once sees what the other has written.
    """
    run = client.get_run(run_id)
    if run.data.tags.get(STATE) != COMPLETE:
        return
    for tag in {ERROR, PROCESS} & run.data.tags.keys():
        try:
            client.delete_tag(run_id, tag)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # another one was here before
                raise
    if run.info.status != "FINISHED":
        client.set_terminated(run_id, "FINISHED", end_time=run.info.end_time)


def log_params(client: MlflowClient, run: Run, params: Mapping[str, object], marks: Sequence[RunTag] = ()) -> bool:
    """Log the parameters that ``run`` lacks, without secrets, those that are None left out; and some ``marks``.

    False where one that it has differs, since MLflow never changes one.
    """
    present = run.data.params
    wanted = {key: mask_text(str(value))[:_LONGEST_PARAM] for key, value in params.items() if value is not None}
    if any(key in present and present[key] != value for key, value in wanted.items()):
        return False
    missing = [Param(key, value) for key, value in wanted.items() if key not in present]
    if missing or marks:
        client.log_batch(run.info.run_id, params=missing, tags=marks)
    return True


def _close_run(client: MlflowClient, run_id: str) -> None:
    """End a run; its state is written last, so that a run that says complete is complete."""
    client.set_terminated(run_id, "FINISHED", end_time=int(time.time() * 1000))
    client.set_tag(run_id, STATE, COMPLETE)
    _settle_complete(client, run_id)


DATASET_DIGEST = 36
"""Characters of a digest that MLflow takes."""


@dataclass(frozen=True)
class RunContent:
    """What a run holds beside the files of its folder.

    Attributes:
        params: by name.
        metrics: by name.
        tables: the paths of files in the form that MLflow's page renders (``table_json``); the page offers them.
        note: in Markdown; the page shows it first.
        tags: others that people search by.
        splits: with what each is used for.
        model_id: of the logged model that it is about.
        headline: the metrics that the logged model's page has, too, with the first split.
    """

    params: Mapping[str, object]
    metrics: Mapping[str, float]
    tables: Collection[str]
    note: str
    tags: Mapping[str, str] = field(default_factory=dict)
    splits: Sequence[tuple[SplitSummary, str]] = ()
    model_id: str | None = None
    headline: Collection[str] = ()


class LoggedRun(NamedTuple):
    """A run's id, and where people find it."""

    run_id: str
    place: str


def log_once(
    experiment: str,
    name: str,
    identity: Mapping[str, Any],
    tags: Mapping[str, str],
    content: Callable[[Path], RunContent],
    settings: TrackingSettings,
) -> LoggedRun:
    """The run of that identity in an experiment, written the first time and left as it is from then on.

    Args:
        experiment: its name.
        name: of the run.
        identity: what makes two runs the same one.
        tags: that it is opened with.
        content: what it holds, made if it is to be written; it is given the folder of the run's files, to fill it.
        settings: where to log.
    """
    client, digest = connect(settings), digest_of(identity)

    def opened() -> Run:
        place = open_experiment(client, experiment, settings)
        prepare_experiment(client, place, tags.get(PREFIX + "kind", ""))
        found = runs_of(client, digest, [str(place.experiment_id)])
        marks = {**SOURCE, **tags, IDENTITY: digest, STATE: OPEN}
        return found[0] if found else client.create_run(str(place.experiment_id), run_name=name, tags=marks)

    run = with_retries("opening the run", opened, settings)
    if is_open(run):
        write_run(client, run, content, settings)
    run_id = str(run.info.run_id)
    return LoggedRun(run_id, run_place(settings, str(run.info.experiment_id), run_id))


def write_run(
    client: MlflowClient, run: Run, content: Callable[[Path], RunContent], settings: TrackingSettings
) -> None:
    """Write the content of an open run and close it; each step may be repeated without doubling anything."""
    run_id, when = str(run.info.run_id), int(run.info.start_time)
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        made = content(Path(folder))
        with_retries("logging parameters", lambda: log_params(client, run, made.params), settings)
        with_retries("logging tables and report", lambda: client.log_artifacts(run_id, folder), settings)
    datasets = [_dataset(split, context) for split, context in made.splits]
    models = [] if made.model_id is None else [LoggedModelInput(made.model_id)]
    with_retries("logging the inputs", lambda: client.log_inputs(run_id, datasets, models), settings)
    about: dict[str, Any] = {}
    if made.headline:
        split = made.splits[0][0]
        about = {"model_id": made.model_id, "dataset_name": split.name, "run_id": run_id}
        about["dataset_digest"] = split.digest[:DATASET_DIGEST]
    # One time stamp for the run, so that a repeated step writes the very same points, which MLflow keeps once.
    metrics = [
        Metric(name, float(value), when, 0, **(about if name in made.headline else {}))
        for name, value in made.metrics.items()
    ]
    with_retries("logging metrics", lambda: client.log_batch(run_id, metrics), settings)
    offered = json.dumps([{"path": path, "type": "table"} for path in made.tables])
    tags = {"mlflow.loggedArtifacts": offered, NOTE: mask_text(made.note), **made.tags}
    marks = [RunTag(key, value) for key, value in tags.items()]
    try:
        with_retries("tagging the run", lambda: client.log_batch(run_id, tags=marks), settings)
    except TrackingError as error:
        if of_deleted_run(error):
            raise
        log.warning("%s: its numbers are logged; %s", run.info.run_name, error)
    with_retries("closing the run", lambda: _close_run(client, run_id), settings)


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by their paths under a folder."""
    for path, text in texts.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


def _dataset(split: SplitSummary, context: str) -> DatasetInput:
    source = json.dumps({"split": split.name, "digest": split.digest})
    profile = json.dumps({"num_rows": split.rows, "valid_rows": split.valid_rows})
    dataset = Dataset(split.name, split.digest[:DATASET_DIGEST], "congruence_split", source, profile=profile)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])


QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LONGEST_TEXT = 120
_WRITTEN_ROWS = 2**18  # of a row group
_MOST_SLICE_COLUMNS = 8


def points_table(evaluation: Evaluation, rows: int) -> pd.DataFrame:
    """The ``rows`` highest and lowest CCE and every column's quantiles, one table with a column ``part``."""
    scores = evaluation.valid_scores
    explained = explained_columns()
    columns = [name for name in explained if name in scores and name not in ("valid", "reason")]
    extra = [name for name in scores.columns if name not in explained][:_MOST_SLICE_COLUMNS]
    count = min(rows, len(scores) // 2)
    from congruence.tasks.plots.evaluation import extreme_rows  # and with it Matplotlib, which no other table needs

    highest, lowest = extreme_rows(evaluation, count)
    worst, best = (scores.loc[list(chosen), columns + extra] for chosen in (highest, lowest))
    with np.errstate(invalid="ignore"):  # between two infinite scores lies no number, and none is shown
        numeric = [name for name in columns if pd.api.types.is_numeric_dtype(scores[name])]
        # Column by column: all at once would be copied, and copied again in order.
        numbers = pd.DataFrame({name: scores[name].quantile(list(QUANTILES)) for name in numeric})
    parts = [
        worst.assign(row=worst.index, part=[f"highest CCE {i + 1}" for i in range(count)]),
        best.assign(row=best.index, part=[f"lowest CCE {i + 1}" for i in range(count)]),
        numbers.assign(part=[f"quantile {q:g} of each column" for q in QUANTILES]),
    ]
    return pd.DataFrame(
        [record for part in parts for record in part.to_dict("records")], columns=["part", "row", *columns, *extra]
    )


def table_json(table: pd.DataFrame) -> str:
    """A table in the form that MLflow's page renders: columns and data, no NaN, numbers at six digits."""
    data = [[_cell(value) for value in record] for record in table.itertuples(index=False)]
    return json.dumps({"columns": [str(name) for name in table.columns], "data": data}, allow_nan=False)


def _cell(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        if not np.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def write_parquet(table: pd.DataFrame, path: Path, *, single: Sequence[str] = ()) -> None:
    """Write a table with a checksum of each page, in parts, so that no copy of all of it is made.

    Args:
        table: its index is not written; texts by their code are texts.
        path: of the file.
        single: columns whose numbers of double precision are written in single precision, which takes half the place.
    """
    import pyarrow.parquet as pq  # not loaded by commands that only look at runs

    narrow: dict[str, Any] = {name: "float32" for name in single if table[name].dtype == np.float64}
    narrow |= dict.fromkeys(table.select_dtypes("category").columns, str)
    # A column of reasons may have its first one in the last part.
    first = {name: table[name].dropna().head(1).astype(narrow.get(name, table[name].dtype)) for name in table.columns}
    types = pa.schema([pa.field(str(name), pa.array(column).type) for name, column in first.items()])
    with pq.ParquetWriter(path, types, write_page_checksum=True) as writer:
        for start in range(0, max(len(table), 1), _WRITTEN_ROWS):
            part = table.iloc[start : start + _WRITTEN_ROWS].astype(narrow)
            writer.write_table(pa.Table.from_pandas(part, types, preserve_index=False))
