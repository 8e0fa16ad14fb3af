"""How an evaluation is found again in MLflow: by version and everything else that changes its numbers.

These are the digests of split, protocol and settings, the metric list, and the release of the arithmetic (``FORMAT``).
What is found is read from its run alone, without scores. People find it in the list of its split.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType
from mlflow.store.entities import PagedList

from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.data.settings import STORED_ROWS
from congruence.tasks.mlflow.connection import all_pages, connect, list_page, with_retries
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.scores.evaluation import Evaluation, MetricValue, SplitSummary, metric_list_digest
from congruence.tasks.scores.metrics.registry import SECTIONS, logged_name, metric_of, shown
from congruence.tasks.sentences.findings import WrongPlace
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
FORMAT = "11"  # to be counted up where the same settings give other numbers: evaluations of before are made again


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
            int(known.get("dates", 0)),
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
        stated=known.get("stated", "all"),
        levels=tuple(map(float, filter(None, known.get("levels", "").split(",")))),
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
    bounds = {f"{name}_{side}" for name in values for side in ("low", "high")}
    return {
        name: MetricValue(value, values.get(f"{name}_low"), values.get(f"{name}_high"))
        for name, value in values.items()
        if "/" not in name and not name.startswith(_FORMER_SECONDS) and name not in bounds
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


_VIEWS = "mlflow.sharedViewState."
"""Before the key of a saved view of an experiment (columns, order, charts): the tag in which MLflow keeps it.

Its page opens a view by ``?viewStateShareKey=<key>``, and offers it by name under "Views". The tag holds JSON: the
view's name, when it was made, and its state as text, which may be deflated. Servers from before views had names read
the state's fields from the tag itself, so all but the charts stand there, too.
"""

NOTE = "mlflow.note.content"
"""The tag of a run or an experiment with the text at the top of its page."""

_MADE = 1_767_225_600_000  # 1 January 2026: a date that never changes, so that the tag does not either
_COLUMNS = 7  # of the headline: more do not fit a screen
_VERDICT_WIDTH, _METRIC_WIDTH = 200, 165  # pixels: MLflow writes the section before each name

_SECTION = "congruence-"
"""Before the name of a section or a chart: what MLflow's page knows it by."""
_CARDS = {"columns": 2, "cardHeight": 320}  # wide enough for the metrics' names, which MLflow cuts off in three


def view_key(split: str, target: str = "") -> str:
    """What the view of the evaluations on a split, of one target, is called in addresses."""
    return "congruence-" + hashlib.sha256(f"{split}\n{target}".encode()).hexdigest()[:8]


def view_of_evaluations(split: str, target: str = "") -> str:
    """The value of the tag of a view: evaluations on a split, the most skilful first, with the headline and its charts.

    MLflow gives every other metric a chart in the section of its name; these sections start folded.
    """
    headline = shown("mlflow")
    metrics = [f"metrics.`{logged_name(name)}`" for name in headline[:_COLUMNS]]
    verdict = f"tags.`{VERDICT}`"
    wanted = [f"tags.`{PREFIX}split` = {quoted(split)}", *([f"params.`target` = {quoted(target)}"] if target else [])]
    state: dict[str, Any] = {
        "searchFilter": " and ".join(wanted),
        "orderByKey": metrics[0],
        "orderByAsc": False,
        "selectedColumns": [*metrics, verdict],
        "columnOrder": [verdict, *metrics],
        "columnWidths": {**dict.fromkeys(metrics, _METRIC_WIDTH), verdict: _VERDICT_WIDTH},
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunCharts": [_chart(name) for name in headline],
        "compareRunSections": [
            {"uuid": _SECTION + name, "name": name, "display": name == SECTIONS[0], "isReordered": True, **_CARDS}
            for name in SECTIONS
        ],
        "isAccordionReordered": True,
    }
    name = f"{split}: {target}" if target else split
    # As MLflow's page packs a state: a tag has no more than 5,000 characters.
    packed = base64.b64encode(zlib.compress(_compact(state).encode(), 9)).decode("ascii")
    envelope = {"name": name, "createdAt": _MADE, "updatedAt": _MADE, "state": f"deflate;{packed}"}
    older = {name: value for name, value in state.items() if not name.startswith("compareRun")}  # a tag is short
    return _compact(older | envelope)


def prepare_experiment(
    client: MlflowClient, experiment: Experiment, kind: str, split: str = "", target: str = ""
) -> None:
    """Give an experiment its description and, where it holds evaluations, the view of a split, unless it has them.

    A description that somebody wrote stays. ``kind`` is that of its runs, see ``_DESCRIPTIONS``.
    """
    wanted = {} if NOTE in experiment.tags else {NOTE: _DESCRIPTIONS.get(kind, "Runs of congruence.")}
    if kind == "evaluation":
        wanted[_VIEWS + view_key(split, target)] = view_of_evaluations(split, target)
    for tag, value in wanted.items():
        if experiment.tags.get(tag) != value:
            client.set_experiment_tag(experiment.experiment_id, tag, value)


def evaluation_lists(settings: TrackingSettings) -> dict[str, str]:
    """The pages that list evaluations, by the names of their views: one for each split and target."""
    found = connect(settings).get_experiment_by_name(settings.evaluations)
    if found is None or found.lifecycle_stage != "active":
        return {}
    views = {tag.removeprefix(_VIEWS): text for tag, text in found.tags.items() if tag.startswith(_VIEWS)}
    pages = {json.loads(text).get("name", key): list_page(found.experiment_id, key) for key, text in views.items()}
    return dict(sorted(pages.items()))


_COMPARISONS = (
    "Comparisons of versions on the same split, with paired differences and their intervals: read `comparison.html` of "
    "a run first. Beside them the decisions of the gate, with their reasons in `gate.json`: a version passed, failed, "
    "or is undecided because the split is too small to tell."
)
_DESCRIPTIONS = {
    "evaluation": "**Choose a split under “Views”**: its list has one run for each model version and protocol, the "
    "most skilful first.\n\nA run begins with its verdict; its `report.html` says what is wrong, and where. The "
    "headline also stands on the page of each version and of its logged model.",
    "comparison": _COMPARISONS,
    "gate": _COMPARISONS,
    "scores": "New inputs judged by a labelled split: how far a version can be trusted on each, and which to "
    "withhold. Read `report.html` of a run first.",
}


def _chart(name: str) -> dict[str, Any]:
    logged = logged_name(name)
    return {
        "type": "BAR",
        "uuid": _SECTION + name,
        "metricKey": logged,
        "displayName": metric_of(name).label,
        "metricSectionId": _SECTION + SECTIONS[0],
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": True,  # else MLflow would draw the metric once more
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
