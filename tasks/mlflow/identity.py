"""How an evaluation is found again in MLflow: by version and everything else that changes its numbers.

These are the digests of split, protocol and settings, the metric list, and the release of the arithmetic (``FORMAT``).
What is found is read from its run alone, without scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType
from mlflow.store.entities import PagedList

from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.data.settings import STORED_ROWS
from congruence.tasks.mlflow.connection import all_pages, connect, with_retries
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.scores.evaluation import Evaluation, MetricValue, SplitSummary, WrongPlace, metric_list_digest
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

PREFIX = "congruence."
IDENTITY = PREFIX + "identity"
STATE = PREFIX + "state"
OPEN, COMPLETE = "open", "complete"
INPUTS = PREFIX + "inputs"
"""The tag of a look's run that says in words how far its inputs are from those of the first look."""

FOUND_AGAIN = PREFIX + "found_again"
"""The tag of a look's run at labels that changed and changed back: when, in milliseconds since 1970."""

_TAGS = ("kind", "model", "version", "split", "period")
"""What a run says in tags, by which people search; the rest it says in parameters."""
GATE_PROTOCOL = "cce_gate_protocol"
FORMAT = "7"  # to be counted up where the same settings give other numbers: evaluations of before are made again


@dataclass(frozen=True)
class EvaluationIdentity:
    """What makes two evaluations the same one, known before any work.

    ``metric_list`` is the list that was asked for: a metric that does not exist for a family leaves no gap to fill.
    ``settings_digest`` covers the settings that change a number beyond split and protocol
    (``tasks.settings.evaluation.settings_digest``).
    ``own_settings`` is the digest of how this version is read, where an entry of ``models:`` says that: versions that
    are read in different ways compare, as each is read as it is meant.
    ``target`` names the columns that are predicted, for the list of runs; which they are, the split's digest says.
    ``period`` is that of the split's files, where they come by date: such an evaluation is a look (``tasks.monitor``).
    """

    model: ModelVersion
    split_name: str
    split_digest: str
    protocol_digest: str
    metric_list: tuple[str, ...]
    settings_digest: str = ""
    own_settings: str = ""
    target: str = ""
    period: str = ""

    @classmethod
    def of(cls, evaluation: Evaluation) -> EvaluationIdentity:
        """The identity under which ``evaluation`` is logged."""
        return cls(
            model=evaluation.model,
            split_name=evaluation.split.name,
            split_digest=evaluation.split.digest,
            protocol_digest=evaluation.protocol.digest,
            metric_list=evaluation.requested_metrics,
            settings_digest=evaluation.settings_digest,
            own_settings=evaluation.own_settings,
            target=evaluation.split.target,
            period=evaluation.split.period,
        )

    @property
    def run_name(self) -> str:
        """The name of its run, which says version, split and dates."""
        return f"{self.model.label} on {self.split_name}" + (f", {dates_in_words(self.period)}" if self.period else "")

    @property
    def tags(self) -> dict[str, str]:
        """The identifying tags of its run."""
        return {PREFIX + name: value for name, value in self._facts.items() if name in _TAGS}

    @property
    def params(self) -> dict[str, str]:
        """What else identifies it: parameters of its run."""
        known = self._facts | {"target": self.target}
        return {name: value for name, value in known.items() if value and name not in _TAGS}

    @property
    def _facts(self) -> dict[str, str]:
        some = {"period": self.period, "own_settings": self.own_settings}
        return {
            "kind": "evaluation",
            "model": self.model.name,
            "version": self.model.version,
            "model_uri": self.model.uri,
            "model_id": self.model.model_id or "",
            "split": self.split_name,
            "split_digest": self.split_digest,
            "protocol_digest": self.protocol_digest,
            "metrics_digest": metric_list_digest(self.metric_list),
            "settings_digest": self.settings_digest,
            "format": FORMAT,
        } | {name: value for name, value in some.items() if value}

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return digest_of({PREFIX + name: value for name, value in self._facts.items()})


def facts(run: Run) -> dict[str, str]:
    """What a run of an evaluation says of it: its parameters and our tags; former releases said all of it in tags."""
    tags = {name.removeprefix(PREFIX): value for name, value in run.data.tags.items() if name.startswith(PREFIX)}
    return {**run.data.params, **tags}


def dates_in_words(period: str) -> str:
    """Returns ``2026-03-01 to 2026-03-07``, or the one date, of an ISO 8601 interval of dates."""
    first, _, last = period.partition("/")
    return first if first == last else f"{first} to {last}"


def runs_of(client: MlflowClient, digest: str, experiments: Sequence[str]) -> list[Run]:
    """Every run with an identity of this digest in the experiments of these ids, oldest first."""
    runs = all_runs(client, experiments, f"tags.`{IDENTITY}` = '{digest}'")
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def all_runs(client: MlflowClient, experiments: Sequence[str], wanted: str) -> list[Run]:
    """Every run that a filter admits in the experiments of these ids, latest first."""
    if not experiments:
        return []
    order = ["attributes.start_time DESC"]

    def search(token: str | None) -> PagedList[Run]:
        return client.search_runs(list(experiments), wanted, ViewType.ACTIVE_ONLY, order_by=order, page_token=token)

    return list(all_pages(search))


def evaluations_in(client: MlflowClient, settings: TrackingSettings) -> dict[str, Experiment]:
    """The experiments that may hold evaluations, by name: one, and those of former releases, which had many."""
    start = f"{settings.experiment}/"
    asked = start.partition("'")[0]  # a quotation mark would end the pattern, and "_" stands for any character in it
    found = all_pages(lambda token: client.search_experiments(filter_string=f"name LIKE '{asked}%'", page_token=token))
    return {str(each.name): each for each in found if each.name.startswith(start)}


def quoted(value: str) -> str:
    """A text in a filter of MLflow's search."""
    return f'"{value}"' if "'" in value else f"'{value}'"


VERDICT = "verdict"
"""The tag of a run with the verdict in words: "wrong: predicted spread too small"."""

WRONG = "what_is_wrong"
"""The tag of a run with what is wrong with its version, a sentence a line."""

ADVICE = "what_to_do"
"""The tag of a run with what helps its version: "Recalibrate. ..."; none where nothing is said."""

SECONDS = "seconds/"
_FORMER_SECONDS = "seconds_"
_BOUNDS = "intervals"


def evaluation_in(run: Run) -> ComparedVersion:
    """The complete evaluation that a run holds, as the run itself says it: without scores, at its page's digits."""
    known, tags = facts(run), run.data.tags
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
        said=tags.get(VERDICT, ""),
        wrong=tuple(tags.get(WRONG, "").splitlines()),
        advice=tags.get(ADVICE, ""),
        is_stored=known.get("own_settings", "").startswith(STORED_ROWS),
        experiment=str(run.info.experiment_id),
        # Runs of former releases have these two in tags; now they lie with the rows.
        slices=tuple(json.loads(known.get("slices", "[]"))),
        wrong_places=wrong_places(json.loads(known.get("wrong_places", "null"))),
        identity=tags.get(IDENTITY, ""),
        ended=int(run.info.end_time or run.info.start_time),
        made=int(tags.get(FOUND_AGAIN, run.info.start_time)),
        inputs=tags.get(INPUTS, ""),
    )


def wrong_places(recorded: list[dict[str, Any]] | None) -> tuple[WrongPlace, ...] | None:
    """The places that a run records as wrong; None where it does not say."""
    return None if recorded is None else tuple(WrongPlace(**place) for place in recorded)


def finished_evaluations(
    settings: TrackingSettings, split: str = "", version: ModelVersion | None = None
) -> list[ComparedVersion]:
    """Complete evaluations, latest first: on a split of this name, and of one version.

    Raises:
        TrackingError: MLflow does not answer.
    """
    tags = {"state": COMPLETE, "kind": "evaluation", **({"split": split} if split else {})}
    tags |= {} if version is None else {"model": version.name, "version": version.version}
    filters = (f"tags.`{PREFIX}{name}` = {quoted(value)}" for name, value in tags.items())
    return [evaluation_in(run) for run in search_evaluations(settings, " and ".join(filters))]


def search_evaluations(settings: TrackingSettings, wanted: str) -> list[Run]:
    """Evaluations that a filter of MLflow's search finds, latest first."""
    client = connect(settings)

    def search() -> list[Run]:
        places = [str(each.experiment_id) for each in evaluations_in(client, settings).values()]
        return all_runs(client, places, wanted)

    return with_retries("looking for evaluations", search, settings)


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
        settings_digest: of the settings that change a number beyond these
            (``tasks.settings.evaluation.settings_digest``).
    """

    split_digest: str | None = None
    protocol_digest: str | None = None
    settings_digest: str | None = None

    @classmethod
    def of(cls, found: ComparedVersion) -> Conditions:
        """Those of a logged evaluation."""
        return cls(found.split.digest, found.protocol_digest, found.settings_digest)

    def admit(self, found: ComparedVersion) -> bool:
        """Whether a logged evaluation was made under these."""
        return not self.unmet(found)

    def unmet(self, found: ComparedVersion) -> list[str]:
        """In what a logged evaluation differs, in words."""
        own = vars(Conditions.of(found))
        return [
            f"{words} {own[name][:16] or 'unknown'} instead of {wanted[:16] or 'unknown'}"
            for name, words in _WORDS.items()
            if (wanted := getattr(self, name)) is not None and own[name] != wanted
        ]


ANY = Conditions()
"""Under whatever conditions."""
