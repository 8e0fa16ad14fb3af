"""Finished evaluations in MLflow: all on a split by one question, their metrics, and under what they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlflow import MlflowClient
from mlflow.entities import Run

from congruence.kernels.verdict import Verdict
from congruence.tasks.mlflow.connection import connect, with_retries
from congruence.tasks.mlflow.identity import COMPLETE, IDENTITY, PREFIX, STATE, all_runs, experiments_of, facts, quoted
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.scores.evaluation import MetricValue, logged_verdict
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name

VERDICT = "verdict"
"""The tag of a run with the verdict in words: "wrong: predicted spread too small"."""

WRONG = "what_is_wrong"
"""The tag of a run with what is wrong with its version, a sentence a line."""

SECONDS = "seconds/"
_FORMER_SECONDS = "seconds_"
_BOUNDS = "intervals"


@dataclass(frozen=True)
class FinishedEvaluation:
    """A complete evaluation that MLflow holds: its run, the version's exact URI, its numbers, verdict and faults.

    ``experiment`` is the id of the run's.
    """

    run_id: str
    model_uri: str
    metrics: dict[str, MetricValue]
    verdict: Verdict = field(default_factory=Verdict)
    wrong: tuple[str, ...] = ()
    experiment: str = ""


def finished_evaluations(split: str, settings: TrackingSettings) -> dict[str, FinishedEvaluation]:
    """The complete evaluations on ``split`` by the digest of their identity."""
    client = connect(settings)
    runs = with_retries("looking for finished evaluations", lambda: complete_runs(client, split, settings), settings)
    # Latest first: of two of one identity the older one stays.
    return {run.data.tags[IDENTITY]: _read(run) for run in runs}


def _read(run: Run) -> FinishedEvaluation:
    return FinishedEvaluation(
        str(run.info.run_id),
        facts(run)["model_uri"],
        run_metrics(run),
        run_verdict(run),
        tuple(run.data.tags.get(WRONG, "").splitlines()),
        str(run.info.experiment_id),
    )


def complete_runs(client: MlflowClient, split: str, settings: TrackingSettings) -> list[Run]:
    """Complete evaluations on a split of this name, whatever their target, latest first."""
    return runs_in(client, experiments_of(client, split, settings), f" and tags.`{PREFIX}split` = {quoted(split)}")


def runs_in(client: MlflowClient, experiments: Sequence[str], wanted: str = "") -> list[Run]:
    """Complete evaluations in the experiments of these ids, latest first."""
    return all_runs(
        client, experiments, f"tags.`{STATE}` = '{COMPLETE}' and tags.`{PREFIX}kind` = 'evaluation'{wanted}"
    )


def run_metrics(run: Run) -> dict[str, MetricValue]:
    """The metrics of an evaluation's run with their intervals, at the digits that it shows; see ``logged_name``."""
    values = run.data.metrics
    found = {}
    for logged, value in values.items():
        section, _, name = logged.rpartition("/")
        if section in SECTIONS and section != _BOUNDS:
            found[name] = MetricValue(value, *(values.get(logged_name(name, bound)) for bound in ("low", "high")))
    return found or _former_metrics(values)


def _former_metrics(values: Mapping[str, float]) -> dict[str, MetricValue]:
    """Of a run of a former release, whose metrics stood under their short names, all digits and no sections."""

    def is_bound(name: str) -> bool:
        stem, _, side = name.rpartition("_")
        return side in ("low", "high") and stem in values

    return {
        name: MetricValue(value, values.get(f"{name}_low"), values.get(f"{name}_high"))
        for name, value in values.items()
        if "/" not in name and not name.startswith(_FORMER_SECONDS) and not is_bound(name)
    }


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
