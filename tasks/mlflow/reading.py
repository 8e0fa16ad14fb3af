"""What evaluations logged, read again: of single versions, of a gate's baseline, and the list of all."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Run

from congruence.kernels.errors import ProtocolError
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.mlflow.connection import (
    BEST,
    LOOKS,
    TrackingError,
    connect,
    fetch_file,
    file_names,
    with_retries,
)
from congruence.tasks.mlflow.identity import (
    ANY,
    COMPLETE,
    GATE_PROTOCOL,
    OPEN,
    PREFIX,
    STATE,
    Conditions,
    evaluation_in,
    facts,
    finished_evaluations,
    search_evaluations,
    wrong_places,
)
from congruence.tasks.mlflow.runs import PROCESS, has_ended
from congruence.tasks.models.registry import STORED, matching_versions
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

SCORES_FILE = "scores.parquet"
INFLUENCE_FILE = "influence.parquet"
_FORMER_NOISE = "influence_noise.parquet"
PROVENANCE_FILE = "provenance.json"
_REMEDY = "; evaluate its version again: congruence evaluate FILE --again -m VERSION"


class LoggedTable:
    """The columns of a Parquet file of a run, which is on this machine's disk from their first use until ``close``.

    Raises:
        TrackingError: MLflow does not answer, or the file is damaged.
    """

    def __init__(self, run_id: str, path: str, settings: TrackingSettings) -> None:
        self.run_id, self.path, self.settings = run_id, path, settings
        self._file: pq.ParquetFile | None = None

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        with self._reported() as file:
            return [str(name) for name in file.schema_arrow.names]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> pd.Series:
        with self._reported() as file:
            if name not in file.schema_arrow.names:
                raise pa.ArrowInvalid(f"No match for FieldRef.Name({name}) in {', '.join(file.schema_arrow.names)}")
            column: pd.Series = file.read(columns=[name]).to_pandas()[name]
            return column

    def close(self) -> None:
        """Remove the file from this machine's disk; it is fetched again where it is asked for."""
        if self._file is not None:
            self._file.close()
            self._remove()
        self._file = None

    def _opened(self) -> pq.ParquetFile:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="congruence-")
            self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            try:
                file = fetch_file(self.run_id, self.path, folder, self.settings)
            except TrackingError as error:
                if self.path in file_names(self.run_id, self.settings):
                    raise
                raise TrackingError(
                    f"run {self.run_id}: holds no {self.path}, as a former release logged it{_REMEDY}"
                ) from error
            # Not buffered ahead: what is read of one column would be kept until the next one.
            self._file = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
        return self._file

    @contextmanager
    def _reported(self) -> Iterator[pq.ParquetFile]:
        try:
            yield self._opened()
        except (OSError, pa.ArrowException) as error:
            raise TrackingError(f"run {self.run_id}: {self.path} is damaged ({error}){_REMEDY}") from error


class _Influence(LoggedTable):
    """Of a run of a former release, which kept no keys where those of the valid rows of the split were meant."""

    def __getitem__(self, name: str) -> pd.Series:
        if name != "key" or "key" in self.columns:
            return super().__getitem__(name)
        with closing(LoggedTable(self.run_id, SCORES_FILE, self.settings)) as scores:
            return scores["key"][scores["valid"].to_numpy(bool)].reset_index(drop=True)


def logged_versions(
    split: str, finished: Sequence[ComparedVersion], settings: TrackingSettings, *, conditions: Conditions = ANY
) -> list[ComparedVersion]:
    """The latest complete evaluation of every version on ``split``, oldest version first.

    Args:
        split: the split's name.
        finished: the evaluations on it, see ``finished_evaluations``.
        settings: where evaluations are logged.
        conditions: under these alone. The content of the split and the protocol are those of the latest evaluation of
            the split, where the conditions leave them open.

    Raises:
        TrackingError: MLflow does not answer, or nothing was evaluated on this split under these conditions.
    """
    admitted = [found for found in finished if conditions.admit(found)]
    if not admitted:
        raise TrackingError(
            f"split '{split}': no complete evaluation"
            + (" as asked" if finished else "")
            + f" in MLflow's experiment {settings.evaluations}; run `congruence evaluate` first"
        )
    latest = replace(Conditions.of(admitted[0]), settings_digest=None)
    kept = {found.model.uri: found for found in reversed(admitted) if latest.admit(found)}

    def order(found: ComparedVersion) -> tuple[str, int, str]:
        version = found.model.version
        return found.model.name, int(version) if version.isdigit() else 0, found.run_id

    return [with_rows(found, settings) for found in sorted(kept.values(), key=order)]


def read_version(run_id: str, settings: TrackingSettings) -> ComparedVersion:
    """The logged evaluation in a run; its scores are read column by column, when they are asked for.

    Raises:
        TrackingError: MLflow does not answer, or the run holds no complete evaluation.
    """
    return with_rows(evaluation_in(_complete_run(run_id, settings)), settings)


def with_rows(found: ComparedVersion, settings: TrackingSettings) -> ComparedVersion:
    """A logged evaluation with its scores, what its reference rows contribute, and its metrics at all digits."""
    run_id, recorded = found.run_id, dict[str, Any]()
    names = file_names(run_id, settings)
    if PROVENANCE_FILE in names:
        with tempfile.TemporaryDirectory(prefix="congruence-") as folder:
            recorded = json.loads(fetch_file(run_id, PROVENANCE_FILE, folder, settings).read_text())
    noise = recorded.get("influence_noise")
    if noise is None and _FORMER_NOISE in names:
        noise = LoggedTable(run_id, _FORMER_NOISE, settings)["noise"]
    return replace(
        found,
        metrics={name: MetricValue(**metric) for name, metric in recorded.get("metrics", {}).items()} or found.metrics,
        scores=LoggedTable(run_id, SCORES_FILE, settings),
        influence=_Influence(run_id, INFLUENCE_FILE, settings) if INFLUENCE_FILE in names else None,
        influence_noise=None if noise is None else np.asarray(noise),
        slices=tuple(recorded.get("slices", found.slices) or ()),
        stated=recorded.get("stated", "all"),
        levels=tuple(recorded.get("levels", ())),
        wrong_places=wrong_places(recorded["wrong_places"]) if "wrong_places" in recorded else found.wrong_places,
    )


def read_scores(
    run_id: str, settings: TrackingSettings | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Returns the scores of every row of a logged evaluation, with the rows' keys, targets and slices.

    One row per row of the split, in its order; see ``Evaluation.scores`` for the columns. Numbers that the version made
    are in single precision.

    Args:
        run_id: the run of the evaluation in MLflow.
        settings: where it is logged; by default where MLflow points.
        columns: these alone; by default all.

    Raises:
        TrackingError: MLflow does not answer, the run holds no complete evaluation or no such column, or its file is
            damaged.
    """
    where = settings or TrackingSettings()
    _complete_run(run_id, where)
    with closing(LoggedTable(run_id, SCORES_FILE, where)) as scores:
        present = scores.columns
        if missing := [name for name in columns or () if name not in present]:
            raise TrackingError(f"run {run_id}: no score {', '.join(missing)}; there are {', '.join(present)}")
        return pd.DataFrame({name: scores[name] for name in (present if columns is None else columns)})


def _complete_run(run_id: str, settings: TrackingSettings) -> Run:
    run = with_retries("reading the run", lambda: connect(settings).get_run(run_id), settings)
    if run.data.tags.get(STATE) != COMPLETE or facts(run).get("kind") != "evaluation":
        raise TrackingError(
            f"run {run.info.run_id}: holds no complete evaluation; run `congruence evaluate` on its version"
        )
    return run


def comparable_versions(
    split: str,
    versions: Sequence[ModelVersion],
    finished: Sequence[ComparedVersion],
    settings: TrackingSettings,
    *,
    conditions: Conditions = ANY,
) -> list[ComparedVersion]:
    """The evaluations of ``versions`` on ``split`` under the latest content and protocol that all of them share.

    Args:
        split: the split's name.
        versions: that all must have an evaluation; their tags go with it.
        finished: the evaluations on the split, see ``finished_evaluations``.
        settings: where evaluations are logged.
        conditions: under these alone, for example those of an evaluation file.

    Raises:
        ProtocolError: no split content and protocol under which every one of them was evaluated.
        TrackingError: a version was never evaluated on the split under the conditions, or MLflow does not answer.
    """
    found: dict[str, dict[tuple[str, str], ComparedVersion]] = defaultdict(dict)
    for each in finished:  # latest first
        if conditions.admit(each):
            found[each.model.uri].setdefault((each.split.digest, each.protocol_digest), each)
    for version in versions:
        if version.uri not in found:
            raise TrackingError(_not_evaluated(version, split, conditions, finished))
    own = [found[version.uri] for version in versions]
    shared = set.intersection(*map(set, own))
    if not shared:
        raise ProtocolError(_nothing_shared(split, {each.label: list(found[each.uri]) for each in versions}))
    latest = max(shared, key=lambda under: max(each[under].made for each in own))
    return [with_rows(with_tags(each[latest], version), settings) for each, version in zip(own, versions, strict=True)]


def with_tags(found: ComparedVersion, version: ModelVersion) -> ComparedVersion:
    """A logged evaluation with the tags of its version, which its run does not have."""
    return replace(found, model=replace(found.model, tags=version.tags))


def _not_evaluated(
    version: ModelVersion, split: str, conditions: Conditions, finished: Sequence[ComparedVersion]
) -> str:
    said = f"{version.label}: not evaluated on split '{split}'"
    if conditions.protocol_digest is not None:
        said += f" under protocol {conditions.protocol_digest}"
    if not finished:
        said += ", nor is another version (`congruence list` names the splits that were evaluated)"
    own = [conditions.unmet(found) for found in finished if found.model.uri == version.uri]
    if own:
        closest = min(own, key=len)
        said += f" as asked; its closest evaluation has another {'; another '.join(closest)}"
    return f"{said}; run `congruence evaluate FILE -m {version.uri}` first"


def _nothing_shared(split: str, own: dict[str, list[tuple[str, str]]]) -> str:
    listed = "; ".join(
        f"{label} under " + ", ".join(f"protocol {protocol} (split {content[:16]})" for content, protocol in items)
        for label, items in own.items()
    )
    protocols = [{protocol for _, protocol in items} for items in own.values()]
    what = "split" if set.intersection(*protocols) else "protocol"
    return (
        f"{what} differs, so the numbers do not compare: on split '{split}' there are {listed}; "
        f"evaluate the versions with one evaluation file"
    )


def gate_baseline(
    candidate: ComparedVersion,
    version: ModelVersion,
    finished: Iterable[ComparedVersion],
    *,
    on_other_rows: bool = False,
) -> ComparedVersion:
    """The evaluation of the ``version`` that ``candidate`` would replace, of those on its split; without scores.

    Of those under the candidate's protocol that under the same settings, else the latest; of stored predictions also
    ``on_other_rows`` of a split of that name.

    Raises:
        TrackingError: the version has no evaluation under the candidate's split and protocol.
    """
    under = Conditions(None if on_other_rows else candidate.split.digest, candidate.protocol_digest)
    fitting = [found for found in finished if found.model.uri == version.uri and under.admit(found)]
    if not fitting:
        raise TrackingError(
            f"{version.uri}: the gate's baseline has no evaluation on split '{candidate.split.name}' "
            f"({candidate.split.digest[:16]}) under protocol {candidate.protocol_digest}; evaluate it too: congruence "
            f"evaluate FILE -m {version.uri}"
        )
    same = (each for each in fitting if each.settings_digest == candidate.settings_digest)
    return next(same, fitting[0])


_UNDER_WAY = f"tags.`{STATE}` = '{OPEN}' and tags.`{PREFIX}kind` = 'evaluation' and attributes.status = 'RUNNING'"


@dataclass(frozen=True)
class OpenEvaluation:
    """An evaluation that MLflow shows as running.

    Attributes:
        split: its name.
        run_id: of its run.
        began: in milliseconds since 1970.
        host: where it runs, or ran.
        is_stale: whether its command has ended without it; None on another machine, where nobody can see that.
    """

    split: str
    run_id: str
    began: int
    host: str
    is_stale: bool | None


@dataclass(frozen=True)
class ListedVersion:
    """A registered version, with its latest evaluation on every split where it has one, and those under way."""

    model: ModelVersion
    evaluations: tuple[ComparedVersion, ...] = ()
    under_way: tuple[OpenEvaluation, ...] = ()

    def gate_of(self, evaluation: ComparedVersion | None = None) -> str | None:
        """The gate's last outcome, which may be of another encoder's or protocol's numbers than an evaluation's."""
        outcome, judged = self.model.tags.get("cce_gate"), self.model.tags.get(GATE_PROTOCOL)
        if outcome is None or evaluation is None or judged in (None, evaluation.protocol_digest):
            return outcome
        return f"{outcome} by another protocol"

    @property
    def looks(self) -> list[str]:
        """What all looks of a watch said together when it last told, by split."""
        return sorted(said for tag, said in self.model.tags.items() if tag.startswith(LOOKS))

    def best_of(self, evaluation: ComparedVersion) -> str | None:
        """Whether it may be the best on the evaluation's split, as compare, gate or watch last said of that run."""
        said, _, run_id = self.model.tags.get(BEST + evaluation.split.name, "").partition(" (run ")
        return said if run_id == f"{evaluation.run_id})" else None


def list_evaluations(patterns: Sequence[str], settings: TrackingSettings) -> list[ListedVersion]:
    """Every ready version of the models whose names match, oldest first, with what was evaluated of it.

    Versions of stored predictions that were evaluated come after those of the registry.

    Args:
        patterns: names with shell wildcards, or URIs of single versions.
        settings: where versions are registered and evaluations are logged.

    Raises:
        RegistryError: a URI that the registry cannot resolve.
    """
    versions = with_retries("listing model versions", lambda: matching_versions(patterns or ["*"]), settings)
    done: dict[tuple[str, str], ComparedVersion] = {}
    for found in finished_evaluations(settings):  # latest first, and so are those under way
        done.setdefault((found.model.uri, found.split.name), found)
    stored = {found.model.uri: found.model for found in done.values() if found.model.uri.startswith(STORED)}
    asked = {each.uri for each in versions}
    for uri, version in stored.items():
        if uri not in asked and (not patterns or any(fnmatchcase(version.label, each) for each in patterns)):
            versions.append(version)
    under_way: dict[tuple[str, str], OpenEvaluation] = {}
    for run in search_evaluations(settings, _UNDER_WAY):
        known, process = facts(run), run.data.tags.get(PROCESS, "")
        if "model_uri" in known:  # its process opened it, and has not said yet of which version
            host, began = process.partition(" ")[0], int(run.info.start_time)
            opened = OpenEvaluation(known["split"], str(run.info.run_id), began, host, has_ended(process))
            under_way.setdefault((known["model_uri"], known["split"]), opened)
    return [
        ListedVersion(
            version,
            tuple(each for (uri, _), each in done.items() if uri == version.uri),
            tuple(each for (uri, _), each in under_way.items() if uri == version.uri),
        )
        for version in versions
    ]
