"""What a registry holds and what is known of it: versions, their latest evaluations, their gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mlflow.entities import Run

from congruence.kernels.verdict import Verdict
from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.finished import run_metrics, run_verdict, runs_in
from congruence.tasks.mlflow.identity import GATE_PROTOCOL, OPEN, PREFIX, STATE, all_experiments, all_runs, facts
from congruence.tasks.mlflow.runs import PROCESS, has_ended
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.version_tags import BEST
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.models.version import ModelVersion
from congruence.tasks.scores.evaluation import MetricValue

_UNDER_WAY = f"tags.`{STATE}` = '{OPEN}' and tags.`{PREFIX}kind` = 'evaluation' and attributes.status = 'RUNNING'"


@dataclass(frozen=True)
class ListedEvaluation:
    """The latest evaluation of a version on a split."""

    split: str
    run_id: str
    experiment: str
    protocol: str
    protocol_digest: str
    ended: int
    """In milliseconds since 1970."""
    metrics: dict[str, MetricValue] = field(repr=False)
    verdict: Verdict = field(default_factory=Verdict)


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
    evaluations: tuple[ListedEvaluation, ...] = ()
    under_way: tuple[OpenEvaluation, ...] = ()

    def gate_of(self, evaluation: ListedEvaluation | None = None) -> str | None:
        """The gate's last outcome, which may be of another encoder's or protocol's numbers than an evaluation's."""
        outcome, judged = self.model.tags.get("cce_gate"), self.model.tags.get(GATE_PROTOCOL)
        if outcome is None or evaluation is None or judged in (None, evaluation.protocol_digest):
            return outcome
        return f"{outcome} by another protocol"

    def best_of(self, evaluation: ListedEvaluation) -> str | None:
        """Whether it may be the best on the evaluation's split, as compare, gate or watch last said of that run."""
        said, _, run_id = self.model.tags.get(BEST + evaluation.split, "").partition(" (run ")
        return said if run_id == f"{evaluation.run_id})" else None


def list_evaluations(patterns: Sequence[str], settings: TrackingSettings) -> list[ListedVersion]:
    """Every ready version of the models whose names match, oldest first, with what was evaluated of it.

    Args:
        patterns: names with shell wildcards, or URIs of single versions.
        settings: where versions are registered and evaluations are logged.

    Raises:
        RegistryError: a URI that the registry cannot resolve.
    """
    client = connect(settings)
    versions = with_retries("listing model versions", lambda: matching_versions(patterns or ["*"]), settings)
    places = with_retries("listing experiments", lambda: all_experiments(client, settings), settings)
    done = _latest(with_retries("listing evaluations", lambda: runs_in(client, places), settings))
    under_way = _latest(with_retries("listing open runs", lambda: all_runs(client, places, _UNDER_WAY), settings))
    return [
        ListedVersion(
            version,
            tuple(_listed(run, split) for (uri, split), run in done.items() if uri == version.uri),
            tuple(_open(run, split) for (uri, split), run in under_way.items() if uri == version.uri),
        )
        for version in versions
    ]


def _latest(runs: Iterable[Run]) -> dict[tuple[str, str], Run]:
    """The first run of each version on each split; they come latest first."""
    found: dict[tuple[str, str], Run] = {}
    for run in runs:
        known = facts(run)
        if "model_uri" in known:  # its process opened it, and has not said yet of which version
            found.setdefault((known["model_uri"], known["split"]), run)
    return found


def _open(run: Run, split: str) -> OpenEvaluation:
    process = run.data.tags.get(PROCESS, "")
    host = process.partition(" ")[0]
    return OpenEvaluation(split, str(run.info.run_id), int(run.info.start_time), host, has_ended(process))


def _listed(run: Run, split: str) -> ListedEvaluation:
    known = facts(run)
    name, digest = known.get("protocol", ""), known["protocol_digest"]
    return ListedEvaluation(
        split=split,
        run_id=str(run.info.run_id),
        experiment=str(run.info.experiment_id),
        protocol=f"{name} ({digest})",
        protocol_digest=digest,
        ended=int(run.info.end_time or run.info.start_time),
        metrics=run_metrics(run),
        verdict=run_verdict(run),
    )
