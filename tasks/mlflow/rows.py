"""What all evaluations on a split share, logged once: the keys, targets, validity and slices of its rows.

They are a run of their own in the experiment ``<experiment>/<split>/rows``, found by the digest of their content, so
that deleting a version's run takes nothing from the others. A version's run names the digest in a tag.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from congruence.tasks.mlflow.connection import (
    TrackingError,
    active_experiment,
    connect,
    experiment_id,
    with_retries,
)
from congruence.tasks.mlflow.identity import COMPLETE, IDENTITY, OPEN, PREFIX, STATE, runs_of
from congruence.tasks.mlflow.links import run_place
from congruence.tasks.mlflow.runs import SOURCE, among_writers, close_run
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.tables import write_parquet
from congruence.tasks.scores.evaluation import Evaluation, SplitSummary
from congruence.tasks.scores.names import is_of_the_version

ROWS_FILE, REFERENCE_FILE = "rows.parquet", "reference.parquet"
ROWS_DIGEST, ROWS_PLACE = PREFIX + "rows_digest", "rows"
_NOTE = (
    "What the evaluations on this split share: `rows.parquet` has the key, validity, target and slices of every row. "
    "The scores of a version are `scores/columns.parquet` of its own run, row by row in the same order; "
    "`congruence.tasks.mlflow.reading.read_scores(run_id)` joins the two."
)


def log_rows(evaluation: Evaluation, settings: TrackingSettings) -> dict[str, str]:
    """Log the rows of an evaluation, unless their run is there; of several writers at once one run stays.

    Returns:
        What the run of the evaluation says of them, as tags: their digest, and where people find them.
    """
    client = connect(settings)
    with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
        digest = _write(evaluation, Path(folder))
        run = among_writers(
            lambda: with_retries(
                "logging the rows", lambda: _logged(client, folder, digest, evaluation, settings), settings
            )
        )
    place = run_place(settings, str(run.info.experiment_id), str(run.info.run_id))
    return {ROWS_DIGEST: digest, ROWS_PLACE: place}


def rows_run(digest: str, split: SplitSummary, settings: TrackingSettings) -> str:
    """The id of the run that holds the rows of this digest.

    Raises:
        TrackingError: MLflow does not answer, or the run was deleted: says how to get it back.
    """
    client = connect(settings)
    for run in with_retries("looking for the rows", lambda: _runs(client, digest, split.name, settings), settings):
        if run.data.tags.get(STATE) == COMPLETE:
            return str(run.info.run_id)
    gone = with_retries(
        "looking for deleted rows",
        lambda: _runs(client, digest, split.name, settings, ViewType.DELETED_ONLY),
        settings,
    )
    restore = f"restore it (mlflow runs restore --run-id {gone[0].info.run_id}), or " if gone else ""
    raise TrackingError(
        f"split '{split.name}': the run that holds the keys and targets of its rows is "
        f"{'deleted' if gone else 'not there'} (experiment {settings.rows_experiment_name(split.name)}); {restore}"
        "evaluate one of the versions again: congruence evaluate FILE --again -m VERSION"
    )


def _write(evaluation: Evaluation, folder: Path) -> str:
    """Write what is shared, and give the digest of it: 32 hexadecimal digits."""
    scores = evaluation.scores
    shared = scores[[name for name in scores.columns if not is_of_the_version(str(name))]]
    tables = {ROWS_FILE: shared}
    if evaluation.influence is not None:
        keys = evaluation.influence[["key"]].reset_index(drop=True)
        own = evaluation.valid_scores["key"].reset_index(drop=True)
        if not keys["key"].equals(own):
            tables[REFERENCE_FILE] = keys
    digest = hashlib.sha256(f"{evaluation.split.digest}".encode())
    for name, table in tables.items():
        write_parquet(table, folder / name)
        with (folder / name).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def _logged(client: MlflowClient, folder: str, digest: str, evaluation: Evaluation, settings: TrackingSettings) -> Run:
    """The complete run of these rows, found or made."""
    split = evaluation.split
    found = _runs(client, digest, split.name, settings)
    if not found:
        client.create_run(
            experiment_id(client, settings.rows_experiment_name(split.name), settings),
            run_name=f"rows of {split.name}",
            tags={
                **SOURCE,
                IDENTITY: digest,
                STATE: OPEN,
                PREFIX + "kind": "rows",
                PREFIX + "split": split.name,
                PREFIX + "split_digest": split.digest,
                "mlflow.note.content": _NOTE,
            },
        )
        found = _runs(client, digest, split.name, settings)
    first, *others = found
    for run in others:
        client.delete_run(run.info.run_id)
    if first.data.tags.get(STATE) != COMPLETE:
        client.log_artifacts(first.info.run_id, folder)
        close_run(client, str(first.info.run_id), COMPLETE)
    return first


def _runs(
    client: MlflowClient, digest: str, split: str, settings: TrackingSettings, view: int = ViewType.ACTIVE_ONLY
) -> list[Run]:
    """The runs of these rows: complete ones first, then the oldest."""
    found = runs_of(client, digest, active_experiment(client, settings.rows_experiment_name(split)), view)
    return sorted(found, key=lambda run: run.data.tags.get(STATE) != COMPLETE)
