"""The scores of a logged evaluation, read column by column: the version's own and those of its rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from congruence.tasks.mlflow.connection import connect, fetched_artifact, with_retries
from congruence.tasks.mlflow.rows import REFERENCE_FILE, ROWS_FILE, rows_run
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.names import is_of_the_version

COLUMNS_FILE = "scores/columns.parquet"
INFLUENCE_FILE = "scores/influence.parquet"
NOISE_FILE = "scores/influence_noise.parquet"


class LoggedFile:
    """A Parquet file of a run, brought to this machine's disk when a column is first asked for, until ``release``."""

    def __init__(self, run_id: str, path: str, settings: TrackingSettings) -> None:
        self.run_id, self.path, self.settings = run_id, path, settings
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file: Path | None = None

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [str(name) for name in pq.read_schema(self._local()).names]

    def read(self, names: Sequence[str]) -> pd.DataFrame:
        """Some of its columns."""
        return pd.read_parquet(self._local(), columns=list(names))

    def release(self) -> None:
        """Remove it from this machine's disk."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = self._file = None

    def _local(self) -> Path:
        if self._file is None:
            self._folder = tempfile.TemporaryDirectory(prefix="congruence-")
            self._file = fetched_artifact(self.run_id, self.path, self._folder.name, self.settings)
        return self._file


def read_column(run_id: str, path: str, name: str, settings: TrackingSettings) -> pd.Series:
    """One column of a Parquet file of a run, which does not stay on this machine's disk."""
    file = LoggedFile(run_id, path, settings)
    try:
        return file.read([name])[name]
    finally:
        file.release()


class SharedRows:
    """The rows that several evaluations share, by their digest; nothing is looked up before it is asked for."""

    def __init__(self, digest: str, split: SplitSummary, settings: TrackingSettings) -> None:
        self.digest, self.split, self.settings = digest, split, settings

    @cached_property
    def _run(self) -> str:
        return rows_run(self.digest, self.split, self.settings)

    @cached_property
    def file(self) -> LoggedFile:
        """Key, validity, reason, targets and slices of every row of the split."""
        return LoggedFile(self._run, ROWS_FILE, self.settings)

    @property
    def reference_keys(self) -> pd.Series:
        """The keys of the reference rows: those of another split, else of the valid rows of this one."""
        client = connect(self.settings)
        present = with_retries("reading the rows", lambda: client.list_artifacts(self._run), self.settings)
        if REFERENCE_FILE in {item.path for item in present}:
            return read_column(self._run, REFERENCE_FILE, "key", self.settings)
        rows = self.file.read(["key", "valid"])
        keys: pd.Series = rows.loc[rows["valid"].to_numpy(bool), "key"].reset_index(drop=True)
        return keys

    def release(self) -> None:
        """Remove what was read of them from this machine's disk."""
        if "file" in self.__dict__:
            self.file.release()


class LoggedScores:
    """The columns of ``Evaluation.scores``, row by row in the split's order: the version's own and its rows'."""

    def __init__(self, own: LoggedFile, rows: SharedRows) -> None:
        self._own, self._rows = own, rows

    @property
    def columns(self) -> list[str]:
        """The names of all columns, those of the rows first."""
        return [*self._rows.file.columns, *self._own.columns]

    def __contains__(self, name: object) -> bool:
        return str(name) in self._file_of(str(name)).columns

    def __getitem__(self, name: str) -> pd.Series:
        return self._file_of(name).read([name])[name]

    def release(self) -> None:
        """Remove what was read from this machine's disk; it is read again where it is asked for."""
        for part in (self._own, self._rows):
            part.release()

    def _file_of(self, name: str) -> LoggedFile:
        return self._own if is_of_the_version(name) else self._rows.file


class LoggedInfluence:
    """The columns of ``Evaluation.influence``, reference row by reference row."""

    def __init__(self, own: LoggedFile, rows: SharedRows) -> None:
        self._own, self._rows = own, rows

    def __contains__(self, name: object) -> bool:
        return name == "key" or name in self._own.columns

    def __getitem__(self, name: str) -> pd.Series:
        if name == "key":
            return self._rows.reference_keys
        return self._own.read([name])[name]

    def release(self) -> None:
        """Remove what was read from this machine's disk; it is read again where it is asked for."""
        self._own.release()
