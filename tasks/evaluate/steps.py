"""The steps of an evaluation: index, check, embed, predict, solve, score; each a function over stored shards.

Every step keeps what it finished in the store, so that it may be repeated, and passes on addresses alone: rows travel
between stores and workers, and the memory of the process that asks does not grow with them. What fails of one version
is given by its label; what ends the split or the cluster is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

from distributed import worker_client

from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.contract import ContractError, ContractReport, PredictionSettings
from congruence.tasks.contract.loading import resolved_contract
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.data.usable import require_few_invalid
from congruence.tasks.encoders.loading import FeatureEncoder, asking_encoder
from congruence.tasks.evaluate.embed import decode_threads, embed_shards, find_batch_size
from congruence.tasks.evaluate.executors import Done, LocalExecutor, Observer, groups_of_shards, in_groups, tell
from congruence.tasks.evaluate.plan import VersionOutcome, protocol_name
from congruence.tasks.mlflow.connection import use_tracking, with_retries
from congruence.tasks.models.evaluated_rows import EvaluatedRows, try_contract
from congruence.tasks.models.processes import ServedVersion
from congruence.tasks.models.registry import IN_USE, resolve
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.lines import Advance, about
from congruence.tasks.settings.evaluation import EvaluationSettings, entry_digest, settings_digest
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.solve import MeasurementAddress, SolveWork, measure_group, solve_versions
from congruence.tasks.store.embeddings import EmbeddingStore

R = TypeVar("R")
Step = TypeVar("Step", bound=Callable[..., Any])

GROUPS_PER_CARD = 8
"""Shards of one group follow each other without a pause; a card idles between two groups."""
_EMBED_RETRIES = 3


class Failures(dict[str, str]):
    """Why versions failed, by their labels."""


def rows_of(settings: EvaluationSettings, split: Split) -> EvaluatedRows:
    """The addresses of a split's embeddings under these settings; their store is made where there is none."""
    store = EmbeddingStore.open(
        settings.store_uri,
        split,
        asking_encoder(settings.encoder),
        dtype=settings.store.dtype,
        storage_options=settings.store.storage_options,
        describe={"split": split.name, "key": split.key_column, "targets": split.settings.target_columns},
    )
    return EvaluatedRows(split, store.address)


def serve(settings: EvaluationSettings, version: ModelVersion, split: Split | None = None) -> ServedVersion:
    """What is needed to load ``version``, on a worker or here; or to read its predictions where ``split`` has them."""
    entry = settings.entry_of(version.uri)
    stored = None if split is None else split.settings.stored.get(version.uri)
    own = entry.predictions or PredictionSettings()
    return ServedVersion(
        version,
        resolved_contract(version, entry.predictions) if stored is None else own,
        settings.tracking,
        settings.predict,
        str(settings.home_folder / "environments"),
        None if entry.model_inputs is None else tuple(entry.model_inputs),
        stored,
    )


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the rows of ``split`` have another number of features than ``dimension``.

    ``fitted_on`` names the split that statistics are fitted to where they are not given.
    """
    found = split.facts.present
    size = dimension if found is None else len(found.count)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def require_none(failures: Failures) -> None:
    """Raise CongruenceError with the first of some failures."""
    for message in failures.values():
        raise CongruenceError(message)


def _stage(name: str) -> Callable[[Step], Step]:
    """Has the observer carry out a step on the rows of a split."""

    def of(step: Step) -> Step:
        @wraps(step)
        def observed(self: Steps, rows: EvaluatedRows, *given: Any, **named: Any) -> Any:
            return self.to.stage(name, rows.split.name, partial(step, self, rows, *given, **named))

        return cast("Step", observed)

    return of


@dataclass(frozen=True)
class Steps:
    """The steps of an evaluation from the checked versions on.

    Attributes:
        settings: of the evaluation, with the encoder's statistics and the servers' addresses.
        executor: works on the pieces.
        to: hears of it.
    """

    settings: EvaluationSettings
    executor: LocalExecutor
    to: Observer

    @_stage("check")
    def check(self, rows: EvaluatedRows, versions: list[ModelVersion]) -> Failures:
        """Load versions and try their contracts on a few rows, before hours are spent on embeddings.

        Those that keep their contract are served to ``rows`` from now on.

        Returns:
            Why the others do not.
        """
        split = rows.split
        with self.to.progress(f"checking versions on {split.name}", len(versions), "versions") as advance:
            check = partial(checked_version, self.settings, split)
            checks = self.executor.map(check, versions, name="check", fields=_labelled)
            checked, failures = _divided(checks, "check it on a few rows", advance)
        for label, (served, report) in checked.items():
            rows.served[label] = served
            for warning in report.warnings:
                self.to.say(f"{label} on {split.name}: {warning}")
        return failures

    @_stage("embed")
    def embed(self, rows: EvaluatedRows, max_invalid: float | None = None) -> None:
        """Embed the shards of ``rows`` that the store lacks.

        Args:
            rows: of a split.
            max_invalid: in place of that of the settings.

        Raises:
            TooManyInvalidRowsError: more rows than ``max_invalid`` allows have no embedding.
            SplitError: tabular features of another number than the encoder's.
        """
        settings, split, store, rows = self.settings, rows.split, rows.store, rows.of_versions([])
        encoder = asking_encoder(settings.encoder)
        if isinstance(encoder, FeatureEncoder):
            require_features(split, encoder.features, settings.statistics_split.name)
        client = self.executor.client
        threads = {} if client is None else decode_threads(client)
        pending = store.pending()
        groups = self._groups(pending, len(threads))
        at_once = self.executor.slots * sum(shard.rows for shard in groups[0]) if groups else 1
        found = split.rows - sum(shard.rows for shard in pending)
        with self.to.progress(f"embedding {split.name}", split.rows, found=found, at_once=at_once) as advance:
            if pending and (encoder.searches_batch_size or self._workers_may_search()):
                find = partial(find_batch_size, settings.encoder)
                (done,) = self.executor.map(find, [rows], name="find batch size", retries=1)
                if (finding := done.result()) is not None:
                    self.to.say(f"embedding {split.name}: {finding}")
            work = partial(embed_shards, rows, settings.encoder, threads)
            for ended in self.executor.map(work, groups, name="embed", retries=_EMBED_RETRIES, fields=_shards):
                ended.result()
                advance(sum(shard.rows for shard in ended.item))
        allowed = settings.max_invalid if max_invalid is None else max_invalid
        folder = settings.home_folder / "invalid-rows"
        reasons = store.reasons()
        if reasons and (left_out := require_few_invalid(reasons, split, allowed, folder)):
            self.to.say(left_out)

    def _workers_may_search(self) -> bool:
        """Whether a worker may have a card that this process does not use, and so a batch size to measure."""
        encoder = self.settings.encoder
        return (
            self.settings.cluster.has_cards_of_its_own
            and encoder.kind in ("open_clip", "open_clip_text", "timm")
            and encoder.given_batch_size is None
        )

    def _groups(self, pending: list[Shard], workers: int) -> list[list[Shard]]:
        if self.settings.cluster.has_cards_of_its_own:
            return in_groups(pending, GROUPS_PER_CARD * workers)
        if self.settings.encoder.kind == "identity":
            return groups_of_shards(pending, self.executor.slots)
        return in_groups(pending, len(pending))  # a shard of images takes minutes

    @_stage("predict")
    def predict(self, rows: EvaluatedRows, versions: list[ModelVersion]) -> Failures:
        """Ask every version for every valid row, in groups of shards; what is kept is not asked again.

        Returns:
            Why some could not answer.
        """
        split, slots = rows.split, self.executor.slots
        groups = groups_of_shards(split.shards, slots, len(versions))
        # Only this version's part: what is sent to a worker does not grow with the others.
        pieces = [(rows.of_versions([version.label]), version.label, group) for version in versions for group in groups]
        failures = Failures()
        at_once = slots * sum(shard.rows for shard in groups[0])
        with self.to.progress(f"predicting {split.name}", split.rows * len(versions), at_once=at_once) as advance:
            ask = partial(_asked, self.settings, EvaluatedRows.predict)
            for done in self.executor.map(ask, pieces, name="predict", retries=1, fields=_of_piece):
                _, label, group = done.item
                last = group[-1].stop - 1
                if (why := done.failure(label, f"predict rows {group[0].start} to {last}")) is not None:
                    failures.setdefault(label, why)
                advance(sum(shard.rows for shard in group))
        return failures

    @_stage("find refused rows")
    def refused(self, rows: EvaluatedRows, label: str) -> dict[int, str]:
        """The valid rows that a version gives no prediction for, asked one by one in the end, and why, by row.

        Raises:
            ContractError: it refuses rows together alone, or all of them as far as it was asked.
        """
        split = rows.split
        pieces = [(rows, label, group) for group in groups_of_shards(split.shards, self.executor.slots)]
        found: dict[int, str] = {}
        with self.to.progress(f"finding rows of {split.name} that {label} refuses", split.rows) as advance:
            ask = partial(_asked, self.settings, EvaluatedRows.refused)
            for done in self.executor.map(ask, pieces, name="find refused rows", fields=_of_piece):
                found |= done.result()
                advance(sum(shard.rows for shard in done.item[2]))
        return dict(sorted(found.items()))

    @_stage("solve")
    def solve(self, rows: EvaluatedRows, task: SolveWork, versions: list[ModelVersion]) -> Failures:
        """Solve the Gram system for a group of versions; why it failed for some.

        A group that fails is solved again one by one: the failure of one version is not that of its neighbours.
        """
        count, labels, title = len(versions), [version.label for version in versions], f"solving {rows.split.name}"
        with self.to.progress(title, count, "versions", detail=self.executor.under_way, at_once=count) as advance:
            failure = self._solved(task, labels)
            if failure is None:
                advance(count)
                return Failures()
        first, *others = labels
        alone = self._solved(task, [first]) if others else failure
        if alone == failure:  # of the reference inputs, then, or of the cluster: it would be said of every version
            return Failures(dict.fromkeys(labels, failure))
        self.to.say(f"{title}: {failure}; each of the {count} versions is solved by itself")
        found = {first: alone} | {label: self._solved(task, [label]) for label in others}
        return Failures({label: why for label, why in found.items() if why is not None})

    def _solved(self, task: SolveWork, labels: list[str]) -> str | None:
        work = partial(_solve if self.executor.client is not None else measure_group, self.settings)
        named = labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
        pieces = [task.of_versions(labels)]
        (done,) = self.executor.map(work, pieces, name="solve", fields=lambda _: {"version": named})
        return done.failure(named)

    @_stage("score")
    def score(
        self,
        rows: EvaluatedRows,
        protocol: EvaluationProtocol,
        versions: list[ModelVersion],
        kept: dict[str, MeasurementAddress],
        runs: dict[str, str],
        *,
        again: bool = False,
    ) -> tuple[dict[str, VersionOutcome], Failures]:
        """Make every score of some versions and log them to their ``runs``; ``again`` replaces what is logged.

        Returns:
            The outcomes of the versions that are logged, by label, and why others are not.
        """
        pieces = [(rows.of_versions([each.label]), kept[each.label], each, runs[each.label]) for each in versions]
        work, detail, at_once = (
            partial(_score, self.settings, protocol, again),
            self.executor.under_way,
            self.executor.slots,
        )
        title = f"scoring and logging {rows.split.name}"
        with self.to.progress(title, len(versions), "versions", detail=detail, at_once=at_once) as advance:
            scored = self.executor.map(work, pieces, name="score", fields=lambda piece: _labelled(piece[2]))
            named = (Done(done.item[2], done.value, done.error) for done in scored)
            return _divided(named, "score it", advance)


def _divided(ended: Iterable[Done[ModelVersion, R]], asked: str, advance: Advance) -> tuple[dict[str, R], Failures]:
    """What a piece of work of each version gave, and why those of others failed, by label."""
    given: dict[str, R] = {}
    failures = Failures()
    for done in ended:
        label = done.item.label
        if (why := done.failure(label, asked)) is not None:
            failures[label] = why
        else:
            given[label] = done.result()
        advance(1)
    return given, failures


def _labelled(version: ModelVersion) -> dict[str, str]:
    return {"version": version.label}


def _shards(group: list[Shard]) -> dict[str, str]:
    return {"shard": f"{group[0].index}-{group[-1].index}"}


Piece = tuple[EvaluatedRows, str, list[Shard]]
"""Rows with the predictions of one version, its label, and some of their shards."""


def _of_piece(piece: Piece) -> dict[str, str]:
    return {"version": piece[1], **_shards(piece[2])}


def checked_version(
    settings: EvaluationSettings, split: Split, version: ModelVersion
) -> tuple[ServedVersion, ContractReport]:
    """A version that keeps its contract on a few rows of ``split``, and what was seen, in this process.

    Raises:
        ContractError: it cannot be loaded, or does not keep it.
        TrackingError: MLflow does not answer.
    """
    use_tracking(settings.tracking)
    step = f"loading {version.label}"

    def load() -> tuple[ServedVersion, ContractReport]:
        served = serve(settings, version, split)
        return served, try_contract(served, split, missing=settings.encoder.takes_missing)

    try:
        return with_retries(step, load, settings.tracking)
    except ContractError:
        # MLflow may have gone away while the files came: not the version's failure. Once it answers, they come again.
        with_retries(step, lambda: resolve(version.uri), settings.tracking)
        return with_retries(step, load, settings.tracking)


def _asked(settings: EvaluationSettings, ask: Callable[[EvaluatedRows, str, list[Shard]], R], piece: Piece) -> R:
    """What some rows are asked, where MLflow is that of the settings."""
    use_tracking(settings.tracking)
    return ask(*piece)


def _solve(settings: EvaluationSettings, task: SolveWork) -> None:
    """On a worker, which prepares the system; all workers take tiles and versions."""
    split = task.reference.split.name
    use_tracking(settings.tracking)
    with about(split), worker_client() as client:
        solve_versions(client, settings, task, lambda line: tell(f"solving {split}: {line}"))


def _score(
    settings: EvaluationSettings,
    protocol: EvaluationProtocol,
    again: bool,
    piece: tuple[EvaluatedRows, MeasurementAddress, ModelVersion, str],
) -> VersionOutcome:
    """Make every score of one version from its predictions and its measurement, and log it from here."""
    from congruence.tasks.mlflow.evaluations import log_evaluation  # draws, and is not loaded in the flow's process
    from congruence.tasks.runtime.memory import give_back
    from congruence.tasks.scores.evaluation import statement_of
    from congruence.tasks.scores.version import score_version

    rows, kept, version, run_id = piece
    use_tracking(settings.tracking)
    with about(version.label):
        give_back()
        encoder = asking_encoder(settings.encoder)
        evaluation = score_version(
            rows, encoder, version, protocol, kept.require(), metrics=settings.metrics, seed=settings.seed
        )
        evaluation = replace(
            evaluation,
            settings_digest=settings_digest(settings, rows.split.settings),
            own_settings=entry_digest(settings, rows.split.settings, version.uri),
            provenance=evaluation.provenance | {"settings": settings.model_dump(mode="json", exclude={"home"})},
        )
    give_back()
    baseline = (None if settings.gate is None else settings.gate.baseline) or IN_USE
    run_id = log_evaluation(evaluation, settings.tracking, replace=again, baseline=baseline, run_id=run_id)
    kept.remove()
    wrong = () if evaluation.wrong is None else evaluation.wrong.sentences
    said = protocol_name(protocol), evaluation.verdict, wrong, statement_of(evaluation.stated, evaluation.levels)
    return VersionOutcome(version.label, rows.split.name, "evaluated", run_id, evaluation.metrics, *said)
