"""How an evaluation is found again in MLflow: by version and everything else that changes its numbers.

These are the digests of split, protocol and settings, the metric list, and the release of the arithmetic (``FORMAT``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.store.entities import PagedList

from congruence.tasks.mlflow.connection import all_pages, connect, with_retries
from congruence.tasks.scores.evaluation import Evaluation, metric_list_digest
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

PREFIX = "congruence."
IDENTITY = PREFIX + "identity"
STATE = PREFIX + "state"
OPEN, COMPLETE = "open", "complete"
PERIOD = PREFIX + "period"
OWN = PREFIX + "own_settings"
_TAGS = ("kind", "model", "version", "split", "period")
"""What a run says in tags, by which people search; the rest it says in parameters."""
GATE_PROTOCOL = "cce_gate_protocol"
FORMAT = "5"  # to be counted up where the same settings give other numbers: evaluations of before are made again


@dataclass(frozen=True)
class EvaluationIdentity:
    """What makes two evaluations the same one, known before any work.

    ``metric_list`` is the list that was asked for: a metric that does not exist for a family leaves no gap to fill.
    ``settings_digest`` covers the settings that change a number beyond split and protocol (``tasks.settings_digest``).
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
        return {name: value for name, value in self._facts.items() if name.removeprefix(PREFIX) in _TAGS}

    @property
    def params(self) -> dict[str, str]:
        """What else identifies it: parameters of its run."""
        rest = {name.removeprefix(PREFIX): value for name, value in (self._facts | {"target": self.target}).items()}
        return {name: value for name, value in rest.items() if value and name not in _TAGS}

    @property
    def _facts(self) -> dict[str, str]:
        return {
            PREFIX + "kind": "evaluation",
            PREFIX + "model": self.model.name,
            PREFIX + "version": self.model.version,
            PREFIX + "model_uri": self.model.uri,
            PREFIX + "model_id": self.model.model_id or "",
            PREFIX + "split": self.split_name,
            PREFIX + "split_digest": self.split_digest,
            PREFIX + "protocol_digest": self.protocol_digest,
            PREFIX + "metrics_digest": metric_list_digest(self.metric_list),
            PREFIX + "settings_digest": self.settings_digest,
            PREFIX + "format": FORMAT,
        } | {name: value for name, value in ((PERIOD, self.period), (OWN, self.own_settings)) if value}

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return identity_digest(self._facts)


def facts(run: Run) -> dict[str, str]:
    """What a run of an evaluation says of it: its parameters and our tags; former releases said all of it in tags."""
    tags = {name.removeprefix(PREFIX): value for name, value in run.data.tags.items() if name.startswith(PREFIX)}
    return {**run.data.params, **tags}


def dates_in_words(period: str) -> str:
    """Returns ``2026-03-01 to 2026-03-07``, or the one date, of an ISO 8601 interval of dates."""
    first, _, last = period.partition("/")
    return first if first == last else f"{first} to {last}"


def identity_digest(parts: Mapping[str, Any]) -> str:
    """32 hexadecimal digits for what makes two runs the same one."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def find_evaluation(identity: EvaluationIdentity, settings: TrackingSettings) -> str | None:
    """The id of the run that holds this evaluation, if it is complete."""
    client = connect(settings)

    def find() -> list[Run]:
        return runs_of(client, identity.digest, evaluations_in(client, settings))

    runs = with_retries("looking for finished evaluations", find, settings)
    return next((str(run.info.run_id) for run in runs if run.data.tags.get(STATE) == COMPLETE), None)


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


def evaluations_in(client: MlflowClient, settings: TrackingSettings) -> list[str]:
    """The ids of the experiments that may hold evaluations: one, and those of former releases, which had many."""
    start = f"{settings.experiment}/"
    asked = start.partition("'")[0]  # a quotation mark would end the pattern, and "_" stands for any character in it
    found = all_pages(lambda token: client.search_experiments(filter_string=f"name LIKE '{asked}%'", page_token=token))
    return [str(each.experiment_id) for each in found if each.name.startswith(start)]


def quoted(value: str) -> str:
    """A text in a filter of MLflow's search."""
    return f'"{value}"' if "'" in value else f"'{value}'"
