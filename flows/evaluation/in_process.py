"""A short split of features evaluated in this process: no cluster, no store, no run in Prefect.

Measured, scored and logged as by the flow; for looks that come often and are of few rows.
"""

from __future__ import annotations

from contextlib import nullcontext

from congruence.flows.evaluation.existing_results import protocol_name
from congruence.flows.evaluation.keys import evaluation_identity
from congruence.flows.evaluation.results import VersionOutcome
from congruence.flows.evaluation.stages.predict import serve
from congruence.flows.evaluation.tracking import for_workers
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.threads import on_one_core
from congruence.tasks.data.measurable import require_measurable
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.memory_store import MemoryStore
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.standardisation import require_features
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.runs import fail_run
from congruence.tasks.models.predictions import concatenate
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.models.rows_in_memory import RowsInMemory
from congruence.tasks.models.worker import warm_model
from congruence.tasks.scores.version import score_version
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.measurement import measure

_ONE_CORE_ROWS = 1000
"""So few rows are evaluated sooner on one core: threads that share matrices so small wait for each other."""


def can_be_in_process(settings: EvaluationSettings, split: Split, most_rows: int) -> bool:
    """Whether a split is of features that need no weights, has no more rows than that, and no reference split."""
    plain = settings.encoder.kind == "identity" and settings.reference is None
    return plain and split.rows <= most_rows and not split.settings.design_columns


def evaluate_in_process(
    settings: EvaluationSettings, split: Split, protocol: EvaluationProtocol, version: ModelVersion
) -> VersionOutcome:
    """One version on a split that ``can_be_in_process``: measured, scored and logged here.

    The settings' encoder has its statistics.

    Raises:
        CongruenceError: more unusable rows than ``max_invalid`` allows, a version that cannot be asked, or an MLflow
            that does not answer.
    """
    require_measurable(split, settings.max_invalid, missing=settings.encoder.missing)
    with on_one_core() if split.rows <= _ONE_CORE_ROWS else nullcontext():
        return _evaluate(for_workers(settings), split, protocol, version)


def _evaluate(
    settings: EvaluationSettings, split: Split, protocol: EvaluationProtocol, version: ModelVersion
) -> VersionOutcome:
    encoder = asking_encoder(settings.encoder)
    assert isinstance(encoder, FeatureEncoder)
    require_features(split, encoder.features, settings.statistics_split.name)
    store = MemoryStore(split.rows, encoder.dimension)
    embed_each(split, split.shards, encoder, store)
    valid = store.valid()
    model = warm_model(serve(settings, version))
    laws = [
        model.predict(split.frame(shard, split.settings.model_input_columns)[mask], start=shard.start)
        for shard in split.shards
        if (mask := valid[shard.start : shard.stop]).any()
    ]
    law = concatenate(laws)
    rows = RowsInMemory(split, store, {version.label: law})
    try:
        held = (rows.embeddings(), rows.all_targets(), {version.label: law})
        measured = measure(settings, protocol, *held, keys=rows.all_keys())
        evaluation = score_version(settings, rows, encoder, version, protocol, measured[version.label])
        run_id = log_evaluation(evaluation, settings.tracking)
    except BaseException as error:
        fail_run(evaluation_identity(settings, split, protocol, version), str(error), settings.tracking)
        raise
    wrong = () if evaluation.wrong is None else evaluation.wrong.sentences
    name = protocol_name(protocol)
    return VersionOutcome(version.label, split.name, "evaluated", run_id, evaluation.metrics, name, wrong)
