"""Evaluations that are logged already, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlflow.entities import Run

from congruence.kernels.verdict import Verdict
from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.identity import (
    COMPLETE,
    GATE_PROTOCOL,
    IDENTITY,
    OPEN,
    PREFIX,
    STATE,
    all_runs,
    evaluations_in,
    facts,
    quoted,
)
from congruence.tasks.mlflow.pages import BEST
from congruence.tasks.mlflow.runs import PROCESS, has_ended
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.scores.evaluation import MetricValue, logged_verdict
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

VERDICT = "verdict"
"""The tag of a run with the verdict in words: "wrong: predicted spread too small"."""

WRONG = "what_is_wrong"
"""The tag of a run with what is wrong with its version, a sentence a line."""

SECONDS = "seconds/"
_BOUNDS = "intervals"


@dataclass(frozen=True)
class LoggedEvaluation:
    """A complete evaluation that MLflow holds, as its run says it.

    Attributes:
        run_id: of its run.
        experiment: the id of the run's.
        model_uri: of the version, exact.
        split: its name.
        protocol: its name and digest.
        protocol_digest: the digest alone.
        ended: in milliseconds since 1970.
        metrics: at the digits that the run shows.
        verdict: of the version.
        wrong: what is wrong with it, in sentences.
    """

    run_id: str
    experiment: str
    model_uri: str
    split: str
    protocol: str
    protocol_digest: str
    ended: int
    metrics: dict[str, MetricValue] = field(repr=False)
    verdict: Verdict
    wrong: tuple[str, ...]

    @classmethod
    def of(cls, run: Run) -> LoggedEvaluation:
        """Returns what a run says."""
        known = facts(run)
        digest = known.get("protocol_digest", "")
        return cls(
            run_id=str(run.info.run_id),
            experiment=str(run.info.experiment_id),
            model_uri=known["model_uri"],
            split=known["split"],
            protocol=f"{known.get('protocol', '')} ({digest})",
            protocol_digest=digest,
            ended=int(run.info.end_time or run.info.start_time),
            metrics=run_metrics(run),
            verdict=run_verdict(run),
            wrong=tuple(run.data.tags.get(WRONG, "").splitlines()),
        )


def finished_evaluations(split: str, settings: TrackingSettings) -> dict[str, LoggedEvaluation]:
    """The complete evaluations on ``split`` by the digest of their identity."""
    # Latest first: of two of one identity the older one stays.
    return {run.data.tags[IDENTITY]: LoggedEvaluation.of(run) for run in complete_runs(settings, split)}


def complete_runs(settings: TrackingSettings, split: str = "", wanted: Mapping[str, str] | None = None) -> list[Run]:
    """Complete evaluations, latest first: on a split of this name, and with ``wanted`` by the names of our tags.

    Raises:
        TrackingError: MLflow does not answer.
    """
    tags = {"state": COMPLETE, "kind": "evaluation", **({"split": split} if split else {}), **(wanted or {})}
    return _search(settings, " and ".join(f"tags.`{PREFIX}{name}` = {quoted(value)}" for name, value in tags.items()))


def _search(settings: TrackingSettings, wanted: str) -> list[Run]:
    client = connect(settings)
    return with_retries(
        "looking for evaluations", lambda: all_runs(client, evaluations_in(client, settings), wanted), settings
    )


def run_metrics(run: Run) -> dict[str, MetricValue]:
    """The metrics of an evaluation's run with their intervals, at the digits that it shows; see ``logged_name``."""
    values = run.data.metrics
    found = {}
    for logged, value in values.items():
        section, _, name = logged.rpartition("/")
        if section in SECTIONS and section != _BOUNDS:
            found[name] = MetricValue(value, *(values.get(logged_name(name, bound)) for bound in ("low", "high")))
    return found


def run_verdict(run: Run) -> Verdict:
    """The verdict of an evaluation's run."""
    rows = int(run.data.params.get("valid_rows", 0))
    return logged_verdict(run.data.tags.get(VERDICT, ""), run_metrics(run), rows)


_WORDS = {
    "split_digest": "content of the split",
    "protocol_digest": "protocol",
    "settings_digest": "predictions, model_inputs, solver, seed and store.dtype",
}


@dataclass(frozen=True)
class Conditions:
    """The digests that an evaluation must have; None where any will do.

    Attributes:
        split_digest: of the split's content.
        protocol_digest: of the protocol with its encoder and reference split.
        settings_digest: of the settings that change a number beyond these (``tasks.settings_digest``).
    """

    split_digest: str | None = None
    protocol_digest: str | None = None
    settings_digest: str | None = None

    @classmethod
    def of(cls, run: Run) -> Conditions:
        """Those of a logged evaluation."""
        known = facts(run)
        return cls(**{name: known.get(name, "") for name in _WORDS})

    def admit(self, run: Run) -> bool:
        """Whether a logged evaluation was made under these."""
        return not self.unmet(run)

    def unmet(self, run: Run) -> list[str]:
        """In what a logged evaluation differs, in words."""
        known = facts(run)
        return [
            f"{words} {self._shown(known.get(name, ''))} instead of {self._shown(wanted)}"
            for name, words in _WORDS.items()
            if (wanted := getattr(self, name)) is not None and known.get(name, "") != wanted
        ]

    @staticmethod
    def _shown(digest: str) -> str:
        return digest[:16] or "unknown"


ANY = Conditions()
"""Under whatever conditions."""


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
    evaluations: tuple[LoggedEvaluation, ...] = ()
    under_way: tuple[OpenEvaluation, ...] = ()

    def gate_of(self, evaluation: LoggedEvaluation | None = None) -> str | None:
        """The gate's last outcome, which may be of another encoder's or protocol's numbers than an evaluation's."""
        outcome, judged = self.model.tags.get("cce_gate"), self.model.tags.get(GATE_PROTOCOL)
        if outcome is None or evaluation is None or judged in (None, evaluation.protocol_digest):
            return outcome
        return f"{outcome} by another protocol"

    def best_of(self, evaluation: LoggedEvaluation) -> str | None:
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
    versions = with_retries("listing model versions", lambda: matching_versions(patterns or ["*"]), settings)
    done, under_way = _latest(complete_runs(settings)), _latest(_search(settings, _UNDER_WAY))
    return [
        ListedVersion(
            version,
            tuple(LoggedEvaluation.of(run) for (uri, _), run in done.items() if uri == version.uri),
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
