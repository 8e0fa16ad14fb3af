"""Logging an evaluation to MLflow: one run per version and split, written once however often it is tried."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException

from congruence.tasks.mlflow.connection import (
    FailedRequestError,
    TrackingError,
    active_run,
    connect,
    list_page,
    registry_of,
    run_link,
    run_page,
    web_page,
    with_retries,
)
from congruence.tasks.mlflow.identity import (
    ADVICE,
    SECONDS,
    VERDICT,
    WRONG,
    Conditions,
    EvaluationIdentity,
    finished_evaluations,
    view_key,
)
from congruence.tasks.mlflow.reading import INFLUENCE_FILE, PROVENANCE_FILE, SCORES_FILE
from congruence.tasks.mlflow.runs import (
    LONGEST_MESSAGE,
    RunContent,
    among_writers,
    find_or_create,
    is_open,
    log_params,
    points_table,
    table_json,
    write_parquet,
    write_run,
    write_texts,
)
from congruence.tasks.models.registry import IN_USE, RegistryError, baseline_version, logged_model_record
from congruence.tasks.plots.evaluation import evaluation_figures
from congruence.tasks.plots.style import png
from congruence.tasks.report.evaluation import evaluation_report
from congruence.tasks.runtime.errors import mask_secrets, mask_text
from congruence.tasks.scores.evaluation import INFLUENCE, Evaluation, MetricValue, advice_of
from congruence.tasks.scores.metrics.registry import logged_name, metric_of, shown, version_columns
from congruence.tasks.sentences.calibration import capital
from congruence.tasks.settings.sections import TrackingSettings

SLICES_FILE = "tables/slices.json"
POINTS_FILE = "tables/points.json"
REPORT_FILE = "report.html"
log = logging.getLogger(__name__)
_MOST_PLACES = 20
_MOST_LEVELS = 500  # of a parameter, which holds 6,000 letters
_HEADING = "**Evaluations by congruence**"
_HASHED_ROWS = 2**17


def log_evaluation(
    evaluation: Evaluation,
    settings: TrackingSettings,
    *,
    replace: bool = False,
    baseline: str = IN_USE,
    run_id: str | None = None,
) -> str:
    """Log everything about ``evaluation`` and return its run id; a complete evaluation is left as it is.

    A run that was cut off is finished by the next call: each step may be repeated without doubling anything.

    Args:
        replace: log a complete evaluation again, into a run of its own; the earlier run is deleted.
        baseline: the version whose score stands beside this one's in the report, see ``baseline_version``.
        run_id: of its run, where ``open_run`` has given it.
    """
    client, identity, params = connect(settings), EvaluationIdentity.of(evaluation), _params(evaluation)

    def opened() -> Run:
        run = (None if run_id is None else active_run(client, run_id)) or find_or_create(client, identity, settings)
        if not is_open(run) and not replace:
            return run
        # Parameters cannot be changed: where it was cut off under other software or settings, it is replaced.
        if not is_open(run) or not log_params(client, run, params):
            client.delete_run(run.info.run_id)
            run = find_or_create(client, identity, settings)
            log_params(client, run, params)
        return run

    def write() -> str:
        run = with_retries("opening the run", opened, settings)
        if is_open(run):
            write_run(client, run, partial(_content, client, evaluation, settings, baseline, run), settings)
        # The version's tags are written after the run; a cut between the two is repaired here.
        _finish_version(client, evaluation, run, settings)
        return str(run.info.run_id)

    return among_writers(write)


def _content(
    client: MlflowClient, evaluation: Evaluation, settings: TrackingSettings, baseline: str, run: Run, folder: Path
) -> RunContent:
    logged_as, beside, model_id = "", None, evaluation.model.model_id
    if settings.report:
        beside = beside_baseline(evaluation, baseline, settings)
        if model_id is not None:
            with suppress(MlflowException):  # the report does without the name that the author gave the logged model
                logged_as = logged_model_record(str(client.tracking_uri), model_id).name
    write_artifacts(evaluation, folder, settings, logged_as, beside)
    said = {VERDICT: str(evaluation.verdict), ADVICE: advice_of(evaluation)}
    if evaluation.wrong is not None:
        said[WRONG] = "\n".join(evaluation.wrong.sentences)
    return RunContent(
        {},
        _metrics(evaluation),
        [POINTS_FILE, *([] if evaluation.slices.empty else [SLICES_FILE])],
        _note(evaluation, run, settings),
        {name: text for name, text in said.items() if text},
        [(evaluation.split, "evaluation")],
        model_id,
        # The logged model's page lists everything that it has in one table.
        headline=[logged_name(name) for name in shown("mlflow")],
    )


def write_artifacts(
    evaluation: Evaluation,
    folder: Path,
    settings: TrackingSettings,
    logged_as: str = "",
    beside: tuple[str, Mapping[str, MetricValue]] | None = None,
) -> None:
    """Write what becomes the run's artifacts under ``folder``: its scores, small tables, plots, report, provenance.

    ``logged_as`` is the name of the version's logged model, for the report, and ``beside`` the name and the metrics of
    the baseline. Numbers that the version made are in single precision.
    """
    texts = {
        POINTS_FILE: table_json(points_table(evaluation, settings.table_rows)),
        PROVENANCE_FILE: json.dumps(mask_secrets(provenance(evaluation)), indent=1, default=str),
    }
    if not evaluation.slices.empty:
        texts[SLICES_FILE] = table_json(evaluation.slices.head(1000))
    if settings.report:
        texts[REPORT_FILE] = evaluation_report(evaluation, logged_as=logged_as, beside=beside)
        (folder / "plots").mkdir()
        for name, figure in evaluation_figures(evaluation):
            (folder / "plots" / f"{name}.png").write_bytes(png(figure))
    write_texts(folder, texts)
    own = [str(name) for name in evaluation.scores.columns if name in version_columns()]
    write_parquet(evaluation.scores, folder / SCORES_FILE, single=own)
    if evaluation.influence is not None:
        write_parquet(evaluation.influence, folder / INFLUENCE_FILE, single=INFLUENCE[1:])


def rows_digest(evaluation: Evaluation) -> str:
    """Returns 32 hexadecimal digits of the rows: the reference rows, and key, validity, target and slices of all."""
    shared = [name for name in evaluation.scores.columns if name not in version_columns()]
    tables: list[pd.DataFrame | pd.Series[Any]] = [evaluation.scores[shared]]
    if evaluation.influence is not None:
        tables.append(evaluation.influence["key"])
    digest = hashlib.sha256()
    for table in tables:
        for start in range(0, len(table), _HASHED_ROWS):  # texts of all rows at once take more than all scores
            some = table.iloc[start : start + _HASHED_ROWS]
            digest.update(pd.util.hash_pandas_object(some, index=False).to_numpy().tobytes())
    return digest.hexdigest()[:32]


def provenance(evaluation: Evaluation) -> dict[str, Any]:
    """Where the numbers come from: model, split, protocol with digest, what was recorded, the numbers at all digits."""
    wrong, noise = evaluation.wrong, evaluation.influence_noise
    places = () if wrong is None else wrong.named()
    largest = sorted(places, key=lambda place: -place.rows)[:_MOST_PLACES]
    return {
        "model": {name: value for name, value in vars(evaluation.model).items() if name != "tags"},
        "split": vars(evaluation.split),
        "protocol": {
            "name": evaluation.protocol.name,
            "digest": evaluation.protocol.digest,
            **evaluation.protocol.describe(),
        },
        "metrics": {name: vars(metric) for name, metric in evaluation.metrics.items()},
        "slices": evaluation.slice_names,
        "wrong_places": None if wrong is None else [vars(place) for place in places if place in largest],
        "influence_noise": None if noise is None else noise.tolist(),
        "stated": evaluation.stated,
        "levels": evaluation.levels,
        "seconds": evaluation.seconds,
        **evaluation.provenance,
    }


def _params(evaluation: Evaluation) -> dict[str, Any]:
    split, protocol = evaluation.split, evaluation.protocol
    values: dict[str, Any] = {
        "model": evaluation.model.name,
        "version": evaluation.model.version,
        "split": split.name,
        "rows": split.rows,
        "valid_rows": split.valid_rows,
        "rows_digest": rows_digest(evaluation),
        "protocol": protocol.name,
        "stated": evaluation.stated,
        **{f"protocol.{name}": value for name, value in protocol.describe().items()},
    }
    if split.dates:
        values["dates"] = split.dates
    if evaluation.levels:
        values["levels"] = ",".join(f"{level:g}" for level in evaluation.levels[:_MOST_LEVELS])
    for name, value in evaluation.provenance.items():
        if isinstance(value, Mapping) and name in ("encoder", "solver"):
            values |= {f"{name}.{key}": item for key, item in value.items() if not isinstance(item, (Mapping, list))}
        elif isinstance(value, (str, int, float, bool)):
            values[name] = value
    return values


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, metric in evaluation.metrics.items():
        ends = {logged_name(name): metric.value, logged_name(name, "low"): metric.low}
        ends[logged_name(name, "high")] = metric.high
        found |= {logged: value for logged, value in ends.items() if value is not None}
    found |= {SECONDS + name: value for name, value in evaluation.seconds.items()}
    return {name: _four_digits(value) for name, value in found.items()}


def _four_digits(value: float) -> float:
    """A number as MLflow's page shows it, which rounds nothing; all digits are in the provenance."""
    return float(f"{value:.4g}") if abs(value) < 1000 else float(f"{value:.0f}")


def _note(evaluation: Evaluation, run: Run, settings: TrackingSettings) -> str:
    split, metrics = evaluation.split, evaluation.metrics
    experiment, run_id = str(run.info.experiment_id), str(run.info.run_id)
    report = f"[report]({run_page(experiment, run_id, f'artifacts/{REPORT_FILE}')})"
    versions = f"[all versions on this split]({list_page(experiment, view_key(split.name, split.target))})"
    lines = [
        f"**{capital(str(evaluation.verdict))}** ({evaluation.model.label} on {split.name}: {split.valid_rows:,} of "
        f"{split.rows:,} rows evaluated under protocol `{evaluation.protocol.name}`, `{evaluation.protocol.digest}`).",
        *([] if evaluation.wrong is None else ["", " ".join(evaluation.wrong.sentences)]),
        "",
        *(_described(name, metrics[name]) for name in shown("mlflow") if name in metrics),
        "",
        f"{f'Read the {report} first' if settings.report else 'It has no report'}; beside it stand {versions}. The "
        f"extremes are in `{POINTS_FILE}`, every row's key, target and scores in `{SCORES_FILE}`; "
        "`congruence.tasks.mlflow.reading.read_scores(run_id)` reads them.",
    ]
    return "\n".join(lines)


def _described(name: str, metric: MetricValue) -> str:
    means = metric_of(name)
    kind = f" ({means.interval})" if metric.low is not None and means.interval else ""
    return f"- {means.label} (`{logged_name(name)}`): {metric}{kind}"


def _finish_version(client: MlflowClient, evaluation: Evaluation, run: Run, settings: TrackingSettings) -> None:
    """What stands on the version beside its run, which holds every number: that it cannot be set fails no version."""
    label = evaluation.model.label
    try:
        with_retries(f"tagging {label}", lambda: tag_version(client, evaluation, run, settings), settings)
        if settings.source_run_metrics:
            with_retries(
                f"logging to the run of {label}", lambda: _log_to_source_run(client, evaluation, run), settings
            )
    except TrackingError as error:
        log.warning("%s: its numbers are logged in run %s; %s", label, run.info.run_id, error)


def tag_version(client: MlflowClient, evaluation: Evaluation, run: Run, settings: TrackingSettings) -> None:
    """Write headline tags and description of a registered version; the mark of a failure goes."""
    model = evaluation.model
    if not model.version:
        return
    experiment, run_id = str(run.info.experiment_id), str(run.info.run_id)
    headline = settings.headline_split in (None, evaluation.split.name)
    tags = {f"cce:{evaluation.split.name}": f"{evaluation.verdict} (protocol {evaluation.protocol.name})"}
    if headline:
        tags |= {
            "cce_status": str(evaluation.verdict)[:LONGEST_MESSAGE],
            "cce_split": evaluation.split.name,
            "cce_run": run_id,
        }
        if "cce_mean" in evaluation.metrics:
            tags["cce"] = f"{evaluation.metrics['cce_mean'].value:.4g}"
        if evaluation.wrong is not None:
            tags["what_is_wrong"] = " ".join(evaluation.wrong.sentences)[:LONGEST_MESSAGE]
        base = web_page(settings)
        if base is not None:
            tags["cce_link"] = run_link(base, experiment, run_id)
    registry, present = registry_of(client), client.get_model_version(model.name, model.version)
    for key, value in tags.items():
        if present.tags.get(key) != (said := mask_text(value)):
            registry.set_model_version_tag(model.name, model.version, key, said)
    text = described(present.description, evaluation, experiment, run_id, report=settings.report)
    if text != present.description:
        registry.update_model_version(model.name, model.version, text)
    stale = ("what_is_wrong",) if headline and evaluation.wrong is None else ()
    for key in ("cce_error", *stale):
        if key in present.tags:
            registry.delete_model_version_tag(model.name, model.version, key)


def described(text: str | None, evaluation: Evaluation, experiment: str, run_id: str, *, report: bool = True) -> str:
    """Returns ``text`` with a line for this evaluation, in place of an earlier one's on the same split.

    The lines stand under a heading of ours; what people wrote stays. ``experiment`` is the id of its run's; ``report``
    says whether the run holds one.
    """
    before, line = (text or "").rstrip(), _entry(evaluation, experiment, run_id, report)
    earlier = re.compile(rf"^- \*\*{re.escape(evaluation.split.name)}\*\*: .*$", re.MULTILINE)
    if _HEADING not in before:
        return f"{before}\n\n{_HEADING}\n\n{line}".lstrip()
    written, _, ours = before.partition(_HEADING)
    if earlier.search(ours):
        return written + _HEADING + earlier.sub(lambda _: line, ours, count=1)
    return f"{written}{_HEADING}\n\n{line}\n{ours.lstrip()}".rstrip()


def _entry(evaluation: Evaluation, experiment: str, run_id: str, report: bool) -> str:
    words = str(evaluation.verdict)
    if evaluation.wrong is not None:
        words += ". " + " ".join(evaluation.wrong.sentences)
    pages = {"Report": run_page(experiment, run_id, "artifacts/report.html")} if report else {}
    view = view_key(evaluation.split.name, evaluation.split.target)
    pages |= {"Run": run_page(experiment, run_id), "All versions on this split": list_page(experiment, view)}
    links = " | ".join(f"[{name}]({page})" for name, page in pages.items())
    said = mask_text(" ".join(words.split())).rstrip(".")
    return f"- **{evaluation.split.name}**: {said}. {links}"


def _log_to_source_run(client: MlflowClient, evaluation: Evaluation, run: Run) -> None:
    model = evaluation.model
    if model.run_id is None or not model.version or "'" in model.run_id:
        return
    if len(client.search_model_versions(f"run_id = '{model.run_id}'", max_results=2)) > 1:
        return
    when = int(run.info.start_time)
    split, metrics = evaluation.split.name, evaluation.metrics
    names = [name for name in shown("mlflow") if name in metrics]
    headlines = [Metric(f"{split}/{name}", _four_digits(metrics[name].value), when, 0) for name in names]
    client.log_batch(model.run_id, metrics=headlines)


def beside_baseline(
    evaluation: Evaluation, baseline: str, settings: TrackingSettings
) -> tuple[str, dict[str, MetricValue]] | None:
    """Name and metrics of the version in use, on the same split under the same protocol.

    None where there is none, where it is the evaluated version itself, or where it has not been evaluated yet.
    """
    try:
        version = baseline_version(evaluation.model.name, baseline, settings, first_version="pass")
    except (RegistryError, FailedRequestError):  # no such version, or a model that is not registered
        return None
    if version is None or version.uri == evaluation.model.uri:
        return None
    under = Conditions(evaluation.split.digest, evaluation.protocol.digest)
    for found in finished_evaluations(settings, evaluation.split.name):  # latest first
        if found.model.uri == version.uri and under.admit(found):
            return version.label, found.metrics
    return None
