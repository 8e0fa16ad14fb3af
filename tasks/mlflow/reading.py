"""Reading logged evaluations back, for comparison and for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
from mlflow.entities import Run

from congruence.kernels.arrays import Array
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.mlflow.conditions import ANY, Conditions
from congruence.tasks.mlflow.connection import TrackingError, connect, with_retries
from congruence.tasks.mlflow.finished import SLICES, WRONG_PLACES, complete_runs, run_metrics
from congruence.tasks.mlflow.identity import COMPLETE, PREFIX, STATE
from congruence.tasks.mlflow.logged_scores import (
    COLUMNS_FILE,
    INFLUENCE_FILE,
    NOISE_FILE,
    LoggedFile,
    LoggedInfluence,
    LoggedScores,
    SharedRows,
    read_column,
)
from congruence.tasks.mlflow.rows import ROWS_DIGEST
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import Metric, SplitSummary
from congruence.tasks.scores.wrong import WrongPlace


def logged_versions(split: str, settings: TrackingSettings, *, conditions: Conditions = ANY) -> list[ComparedVersion]:
    """The latest complete evaluation of every version on ``split``, oldest version first.

    Args:
        split: the split's name.
        settings: where evaluations are logged.
        conditions: under these alone. The content of the split and the protocol are those of the latest evaluation of
            the split, where the conditions leave them open.

    Raises:
        TrackingError: MLflow does not answer, or nothing was evaluated on this split under these conditions.
    """
    client = connect(settings)
    runs = with_retries("looking for evaluations", lambda: complete_runs(client, split, settings), settings)
    admitted = [run for run in runs if conditions.admit(run.data.tags)]
    if not admitted:
        raise TrackingError(
            f"split '{split}': no complete evaluation"
            + (" as asked" if runs else "")
            + f" in the experiments {settings.experiment_name(split)}; run `congruence evaluate` first"
        )
    latest = replace(Conditions.of(admitted[0].data.tags), settings_digest=None)
    kept = {run.data.tags[PREFIX + "model_uri"]: run for run in reversed(admitted) if latest.admit(run.data.tags)}
    return [read_version(str(run.info.run_id), settings) for run in sorted(kept.values(), key=_version_order)]


def read_version(run_id: str, settings: TrackingSettings) -> ComparedVersion:
    """The logged evaluation in a run; its scores are read column by column, when they are asked for.

    Raises:
        TrackingError: MLflow does not answer, or the run holds no complete evaluation.
    """
    run = _complete_run(run_id, settings)
    tags, params, client = run.data.tags, run.data.params, connect(settings)
    folder, places = INFLUENCE_FILE.partition("/")[0], tags.get(WRONG_PLACES)
    found = with_retries("looking for the influence", lambda: client.list_artifacts(run_id, folder), settings)
    files = {item.path for item in found}  # no influence where CCE was not asked for
    rows = _shared_rows(run, settings)
    influence = LoggedInfluence(LoggedFile(run_id, INFLUENCE_FILE, settings), rows)
    return ComparedVersion(
        model=ModelVersion(
            name=tags[PREFIX + "model"],
            version=tags[PREFIX + "version"],
            uri=tags[PREFIX + "model_uri"],
            model_id=tags[PREFIX + "model_id"] or None,
        ),
        split=rows.split,
        protocol_name=params["protocol"],
        protocol_digest=tags[PREFIX + "protocol_digest"],
        metrics=run_metrics(run),
        scores=LoggedScores(LoggedFile(run_id, COLUMNS_FILE, settings), rows),
        run_id=run_id,
        settings_digest=tags.get(PREFIX + "settings_digest", ""),
        influence=influence if INFLUENCE_FILE in files else None,
        influence_noise=np.asarray(read_column(run_id, NOISE_FILE, "noise", settings)) if NOISE_FILE in files else None,
        rows_digest=rows.digest,
        slices=tuple(json.loads(tags.get(SLICES, "[]"))),
        wrong_places=None if places is None else tuple(WrongPlace(**place) for place in json.loads(places)),
    )


def read_scores(
    run_id: str, settings: TrackingSettings | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """The scores of every row of a logged evaluation: its own, beside the keys, targets and slices of the rows.

    One row per row of the split, in its order; see ``Evaluation.scores`` for the columns. Numbers that the version made
    are in single precision.

    Args:
        run_id: the run of the evaluation in MLflow.
        settings: where it is logged; by default where MLflow points.
        columns: these alone; by default all.

    Raises:
        TrackingError: MLflow does not answer, the run holds no complete evaluation or no such column, or the run of the
            rows, which the evaluations on a split share, was deleted.
    """
    where = settings or TrackingSettings()
    with _open_scores(run_id, where) as scores:
        present = scores.columns
        if missing := [name for name in columns or () if name not in present]:
            raise TrackingError(f"run {run_id}: no score {', '.join(missing)}; there are {', '.join(present)}")
        return pd.DataFrame({name: scores[name] for name in (present if columns is None else columns)})


@contextmanager
def _open_scores(run_id: str, settings: TrackingSettings) -> Iterator[LoggedScores]:
    run = _complete_run(run_id, settings)
    scores = LoggedScores(LoggedFile(run_id, COLUMNS_FILE, settings), _shared_rows(run, settings))
    try:
        yield scores
    finally:
        scores.release()


def _complete_run(run_id: str, settings: TrackingSettings) -> Run:
    run = with_retries("reading the run", lambda: connect(settings).get_run(run_id), settings)
    if run.data.tags.get(STATE) != COMPLETE or run.data.tags.get(PREFIX + "kind") != "evaluation":
        raise TrackingError(
            f"run {run.info.run_id}: holds no complete evaluation; run `congruence evaluate` on its version"
        )
    return run


def _shared_rows(run: Run, settings: TrackingSettings) -> SharedRows:
    tags, params = run.data.tags, run.data.params
    digest = tags.get(ROWS_DIGEST)
    if digest is None:  # taken off by hand, or refused by the server when the run was tagged
        raise TrackingError(
            f"run {run.info.run_id}: its tag {ROWS_DIGEST} is missing, by which the keys and targets of its rows are "
            "found; evaluate the version again: congruence evaluate FILE --again -m VERSION"
        )
    split = SplitSummary(
        name=tags[PREFIX + "split"],
        digest=tags[PREFIX + "split_digest"],
        rows=int(params["rows"]),
        valid_rows=int(params["valid_rows"]),
    )
    return SharedRows(digest, split, settings)


def logged_pit(run_id: str, settings: TrackingSettings) -> Array | None:
    """The PIT values of the valid rows of a logged evaluation, None where its targets are vectors.

    Raises:
        TrackingError: MLflow does not answer, or the run holds no complete evaluation.
    """
    with _open_scores(run_id, settings) as scores:
        if "pit" not in scores:
            return None
        pit = scores["pit"].to_numpy(np.float64)
        return np.asarray(pit[np.isfinite(pit)])


def logged_metrics(run_id: str, settings: TrackingSettings) -> dict[str, Metric]:
    """The metrics of a logged evaluation with their intervals, without its scores."""
    client = connect(settings)
    return run_metrics(with_retries("reading the run", lambda: client.get_run(run_id), settings))


def _version_order(run: Run) -> tuple[str, int, str]:
    version = run.data.tags[PREFIX + "version"]
    return run.data.tags[PREFIX + "model"], int(version) if version.isdigit() else 0, str(run.info.run_id)
