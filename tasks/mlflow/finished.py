"""Evaluations that are logged already, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from mlflow.entities import Run

from congruence.tasks.comparison.differences import ComparedVersion
from congruence.tasks.data.settings import STORED_ROWS
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
from congruence.tasks.scores.evaluation import MetricValue, SplitSummary
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

VERDICT = "verdict"
"""The tag of a run with the verdict in words: "wrong: predicted spread too small"."""

WRONG = "what_is_wrong"
"""The tag of a run with what is wrong with its version, a sentence a line."""

SECONDS = "seconds/"
_FORMER_SECONDS = "seconds_"
_BOUNDS = "intervals"


def evaluation_in(run: Run) -> ComparedVersion:
    """The complete evaluation that a run holds, as the run itself says it: without scores."""
    known = facts(run)
    return ComparedVersion(
        model=ModelVersion(known["model"], known["version"], known["model_uri"], known.get("model_id") or None),
        split=SplitSummary(
            known["split"],
            known["split_digest"],
            int(known["rows"]),
            int(known["valid_rows"]),
            known.get("target", ""),
            known.get("period", ""),
        ),
        protocol_name=known["protocol"],
        protocol_digest=known["protocol_digest"],
        metrics=run_metrics(run),
        scores=pd.DataFrame(),
        run_id=str(run.info.run_id),
        settings_digest=known.get("settings_digest", ""),
        rows_digest=known.get("rows_digest", ""),
        said=run.data.tags.get(VERDICT, ""),
        wrong=tuple(run.data.tags.get(WRONG, "").splitlines()),
        is_stored=known.get("own_settings", "").startswith(STORED_ROWS),
        experiment=str(run.info.experiment_id),
        ended=int(run.info.end_time or run.info.start_time),
    )


def finished_evaluations(split: str, settings: TrackingSettings) -> dict[str, ComparedVersion]:
    """The complete evaluations on ``split`` by the digest of their identity."""
    # Latest first: of two of one identity the older one stays.
    return {run.data.tags[IDENTITY]: evaluation_in(run) for run in complete_runs(settings, split)}


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
    evaluations: tuple[ComparedVersion, ...] = ()
    under_way: tuple[OpenEvaluation, ...] = ()

    def gate_of(self, evaluation: ComparedVersion | None = None) -> str | None:
        """The gate's last outcome, which may be of another encoder's or protocol's numbers than an evaluation's."""
        outcome, judged = self.model.tags.get("cce_gate"), self.model.tags.get(GATE_PROTOCOL)
        if outcome is None or evaluation is None or judged in (None, evaluation.protocol_digest):
            return outcome
        return f"{outcome} by another protocol"

    def best_of(self, evaluation: ComparedVersion) -> str | None:
        """Whether it may be the best on the evaluation's split, as compare, gate or watch last said of that run."""
        said, _, run_id = self.model.tags.get(BEST + evaluation.split.name, "").partition(" (run ")
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
            tuple(evaluation_in(run) for (uri, _), run in done.items() if uri == version.uri),
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
