"""`congruence score`: the reliability of new inputs, whose labels nobody has, judged by a labelled split.

Embed both, predict both by one version, solve on the labelled split, and evaluate at the new inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from prefect import flow

from congruence.flows.cli.console import print_line, results, say, table_of
from congruence.flows.evaluate import STAGES, in_flow
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.trust.columns import PICTURE_COLUMNS, PICTURE_SIDE, SMALLEST
from congruence.kernels.trust.rule import WithholdingRule, held_out_rows
from congruence.tasks.data.ingest import require_columns
from congruence.tasks.data.inputs import combine
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import (
    in_words,
    new_inputs,
    picture_table,
    rows_without_features,
    rows_without_integers,
)
from congruence.tasks.encoders.images import DECODING
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.evaluate.evaluation import Steps
from congruence.tasks.evaluate.pieces import rows_of
from congruence.tasks.evaluate.plan import encoder_protocol, require_none, with_fitted_encoder
from congruence.tasks.evaluate.stored import require_models
from congruence.tasks.mlflow.comparisons import log_reliability
from congruence.tasks.mlflow.connection import use_tracking, with_retries
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.models.registry import resolve
from congruence.tasks.report.comparison import REPORT_FILE, headlines, write_reliability
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.scores.points import row_frame
from congruence.tasks.scores.reliability import (
    Reliability,
    reliability,
    require_enough_rows,
    score_new_inputs,
    zero_embeddings,
)
from congruence.tasks.scores.summary import LOSSES
from congruence.tasks.sentences.inputs import withholding_sentence
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.solve import MeasurementAddress, SolveWork
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore


def pictures_of(split: Split, store: ObjectStore, max_pixels: int) -> pd.DataFrame:
    """Returns what ``picture_table`` says of ``split``, which is kept in a store.

    Raises:
        StoreError: a damaged file there.
    """
    how = repr((PICTURE_COLUMNS, PICTURE_SIDE, SMALLEST, DECODING, max_pixels))
    key = f"pictures/{split.digest}/{combine([how.encode()])}.npz"
    if (content := store.get(key)) is None:
        say(f"measuring contrast and detail of {split.rows:,} pictures of {split.name}")
        table = picture_table(split, max_pixels)
        store.put(key, to_npz({"rows": table.to_numpy()}))
        return table
    try:
        rows = from_npz(content)["rows"].reshape(split.rows, len(PICTURE_COLUMNS))
    except (ValueError, KeyError) as error:
        raise StoreError(f"{store.uri}/{key} is damaged ({error}); delete this file and run again") from error
    return pd.DataFrame(rows, columns=list(PICTURE_COLUMNS))


_SHOWN = 10


@dataclass(frozen=True)
class ScoredInputs:
    """The reliability of new inputs, the folder that holds scores, report and pictures, and the MLflow run (if any).

    ``place`` says where people find the run: its address, or how to open it.
    """

    reliability: Reliability
    folder: Path
    run_id: str | None = None
    place: str | None = None


def require_readable(settings: EvaluationSettings, inputs: str, split: str | None) -> None:
    """Refuse, by a look at the first rows, a labelled split or new inputs that lack a column.

    Raises:
        SettingsError: the settings have no such split, or it holds stored predictions.
        SplitError: see ``require_columns``.
    """
    require_models(settings, "score")
    for each in _splits(settings.for_workers(), inputs, split):
        require_columns(each)


def _splits(settings: EvaluationSettings, inputs: str, split: str | None) -> tuple[SplitSettings, SplitSettings]:
    """The labelled split and that of the new inputs."""
    labelled = settings.statistics_split if split is None else settings.split_named(split, "--split")
    return labelled, new_inputs(labelled, inputs)


@flow(name="score", flow_run_name="score {inputs} by {model}", validate_parameters=True)
def score(
    settings: EvaluationSettings,
    model: str,
    inputs: str,
    split: str | None = None,
    output: Path | None = None,
    log: bool = True,
    withhold: str | float | dict[str, str | float] | None = None,
) -> ScoredInputs:
    """Score new inputs by one version; targets are used where they are there.

    The arguments are those of the command. The labelled split is by default ``reference:``, else the first of the file;
    the run is logged in the experiment ``<experiment>/new-inputs``. ``withhold`` may be levels, too, such as
    {"unusual": "1 %", "wrong": "5 %"}.

    Raises:
        CongruenceError: settings, data or a model that cannot be used.
    """
    require_models(settings, "score")
    rule = WithholdingRule.of(settings.withhold if withhold is None else withhold)
    settings = settings.for_workers()
    use_tracking(settings.tracking)
    splits = _splits(settings, inputs, split)
    chosen = with_fitted_encoder(settings).model_copy(update={"metrics": ["cce"]})
    reference, fresh = (open_split(each, chosen.plans_folder) for each in splits)
    require_enough_rows(reference)
    encoder = asking_encoder(chosen.encoder)
    protocol = encoder_protocol(chosen, encoder)
    version = with_retries(f"looking up {model}", lambda: resolve(model), chosen.tracking)
    label = version.label
    known, asked = rows_of(chosen, reference), rows_of(chosen, fresh)
    lacking = rows_without_integers(reference, fresh)
    unreadable = {} if chosen.encoder.missing != "leave_out" else rows_without_features(fresh)
    for rows in (lacking, {row: why for row, why in unreadable.items() if row not in lacking}):
        if rows:
            say(in_words(fresh, rows))
    if lacking:
        asked = replace(asked, left_out=lacking)
    place = f"measurements/{reference.digest[:16]}-{fresh.digest[:16]}"
    key = f"{place}/{protocol.digest}-{(version.model_id or label).replace('/', '-')}.npz"
    kept = MeasurementAddress(known.objects, key)
    kept.remove()
    work = SolveWork(protocol, known, asked, {label: kept})
    with in_flow(chosen) as cluster:
        known, asked = _measured(Steps(chosen, cluster(), STAGES), work, version)
    measurement = kept.require()
    kept.remove()
    rule = rule.afforded(held_out_rows(int(known.valid.sum())))
    say(f"scoring {int(asked.valid.sum()):,} inputs by {int(known.valid.sum()):,} labelled rows; withheld: {rule}")
    scores = score_new_inputs(
        protocol,
        known,
        asked,
        label,
        measurement.result,
        pictures=_pictures(chosen, known, asked),
        withhold=rule,
        seed=settings.seed,
    )
    found = reliability(
        version,
        protocol,
        _summary(known),
        _summary(asked),
        row_frame(fresh, asked.reasons(), asked.valid),
        measurement.result,
        scores,
        asked.all_predictive(label),
        asked.targets() if fresh.settings.target_columns else None,
    )
    folder = output or settings.home_folder / "scores" / f"{label.replace('/', '-')}-{fresh.digest[:12]}"
    files = write_reliability(found, folder)
    if not log:
        return ScoredInputs(found, folder)
    return ScoredInputs(found, folder, *log_reliability(found, files, settings.tracking))


def _measured(steps: Steps, work: SolveWork, version: ModelVersion) -> tuple[EvaluatedRows, EvaluatedRows]:
    """Embed and predict labelled rows and new inputs, and solve on the former for the latter.

    Returns:
        The labelled rows that judge, and the new inputs that are judged; the others have their reasons.
    """
    known, asked = work.reference, work.query
    assert asked is not None
    require_none(steps.check(known, [version]))
    asked.served.update(known.served)
    steps.embed(known)
    steps.embed(asked, 1.0)  # one that cannot be read is withheld; it is no reason to say nothing of the others
    known = _with_direction(work.protocol, known, "the others judge")
    asked = _with_direction(work.protocol, asked, "the others are scored")
    require_none(steps.predict(known, [version]))
    if asked.valid.any() and (failures := steps.predict(asked, [version])):
        refused = steps.refused(asked, version.label)
        asked = replace(asked, left_out={**asked.left_out, **refused})
        if not refused or not asked.valid.any():
            require_none(failures)
        say(in_words(asked.split, refused))
        require_none(steps.predict(asked, [version]))
    if not asked.valid.any():
        raise InvalidInputError(
            f"inputs: none of the {asked.split.rows} rows at {asked.split.settings.uri} can be embedded"
        )
    require_none(steps.solve(known, replace(work, reference=known, query=asked), [version]))
    return known, asked


def _with_direction(protocol: EvaluationProtocol, rows: EvaluatedRows, others: str) -> EvaluatedRows:
    """``rows`` without those whose embedding has no direction, which are said with what becomes of the others."""
    if not (zeros := zero_embeddings(protocol, rows)):
        return rows
    say(in_words(rows.split, zeros, others))
    return replace(rows, left_out={**rows.left_out, **zeros})


def _pictures(
    settings: EvaluationSettings, known: EvaluatedRows, asked: EvaluatedRows
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    if known.split.settings.input_kind != "image":
        return None
    store, most = ObjectStore(settings.store_uri, settings.store.storage_options), settings.encoder.max_pixels
    return pictures_of(known.split, store, most), pictures_of(asked.split, store, most)


def _summary(rows: EvaluatedRows) -> SplitSummary:
    split = rows.split
    return SplitSummary(split.name, split.digest, split.rows, int(rows.valid.sum()))


def in_general(reason: str) -> str:
    """A reason as it is of many inputs: without the one's value and its nearest rows."""
    column, _, said = reason.partition("; nearest rows ")[0].partition(": the split ")
    return f"{column.rpartition(' ')[0]}: the split {said}" if said else column


def print_scores(scored: ScoredInputs) -> None:
    """Print what was found, and where everything is."""
    found = scored.reliability
    print_line(withholding_sentence(found.judgement))
    values = headlines(found)
    judged = f"{found.inputs.valid_rows:,} of {found.inputs.rows:,}"
    errors = (f"{values[name]:.4g}" if name in values else "–" for name in ("cce_mean", "cce_expected"))
    cells = (judged, f"{found.unusual:,}", f"{len(found.withheld_scores):,}", *errors)
    title = f"{found.model.label} on new inputs, judged by split '{found.reference.name}'"
    columns = ("inputs", "unusual", "withheld", "CCE", "of a true version")
    results().print(table_of(columns, [cells], words=(), title=title))
    for row in found.withheld_scores.head(_SHOWN).itertuples():
        print_line(f"{row.key}: {row.reason}")
    if more := found.withheld_scores["reason"].iloc[_SHOWN:].tolist():
        (commonest, count), *_ = Counter(in_general(reason) for reason in more).most_common(1)
        often = f", most often ({count:,} of them): {commonest}" if count > 1 else ""
        print_line(f"and {len(more):,} more{often}")
    for metric in LOSSES.values():
        if f"{metric}_kept" in values:
            kept = f"{values[f'{metric}_kept']:.4g} of those that stay"
            print_line(f"{metric_of(metric).label} of the new inputs: {values[metric]:.4g} of all, {kept}")
    print_line(f"scores, report and pictures: {scored.folder / REPORT_FILE}")
    if scored.place is not None:
        print_line(f"in MLflow: {scored.place}")
