"""The evaluation of a file: its splits indexed, and on each check, embed, predict, solve, score; logged to MLflow.

Every step keeps what it finished in the store, so that it may be repeated, and passes on addresses alone: rows travel
between stores and workers, and the memory of the process that asks does not grow with them. What fails of one version
is given by its label; what ends the split or the cluster is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar, cast

from congruence.kernels.errors import CongruenceError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.data.ingest import ingest_files, source_bytes, source_files, unseen
from congruence.tasks.data.settings import Shard, SplitSettings
from congruence.tasks.data.split import open_kept, open_split
from congruence.tasks.data.usable import require_few_invalid
from congruence.tasks.encoders.loading import FeatureEncoder, asking_encoder
from congruence.tasks.evaluate import pieces
from congruence.tasks.evaluate.executors import (
    Done,
    LocalExecutor,
    Observer,
    groups_of_shards,
    in_groups,
    reason,
    recorded,
)
from congruence.tasks.evaluate.plan import Failures, Plan, SplitPlan, VersionOutcome
from congruence.tasks.mlflow.runs import fail_run, open_run
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.runtime.lines import Advance
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.solve import VERSIONS_AT_ONCE, MeasurementAddress, SolveWork, measure_group

R = TypeVar("R")
T = TypeVar("T")
Step = TypeVar("Step", bound=Callable[..., Any])

GROUPS_PER_CARD = 8
"""Shards of one group follow each other without a pause; a card idles between two groups."""
_EMBED_RETRIES = 3
MOST_IN_SILENCE = 1_000_000
"""Rows that are looked through within seconds."""
MOST_BYTES_IN_SILENCE = 2**29
"""Of a file that is read within seconds."""


def evaluate(plan: Plan, executor: Callable[[], LocalExecutor], to: Observer) -> list[VersionOutcome]:
    """Evaluate what a plan says is missing, split by split, and return the outcomes of all of its versions.

    Args:
        plan: of the evaluation.
        executor: asked for when there is something to do for it.
        to: hears of it.

    Raises:
        CongruenceError: data or models that cannot be evaluated, found before the long work where possible.
    """
    for line in plan.said:
        to.say(line)
    for split in plan.settings.all_splits:
        index(plan.settings, split, executor, to)
    outcomes: list[VersionOutcome] = []
    for part in plan.splits:
        made = _OnSplit(part, executor(), to).outcomes() if part.versions else []
        outcomes += part.outcomes + made
    return outcomes


def index(
    settings: EvaluationSettings, split: SplitSettings, executor: Callable[[], LocalExecutor], to: Observer
) -> None:
    """Index a split, unless its index is kept: by the pieces' ``executor``, which is asked for only then.

    Raises:
        SplitError: see ``open_split`` and ``Split.require_measurable``.
    """

    def looking(rows: int) -> AbstractContextManager[Callable[[int], object]]:
        return to.progress(f"looking through {split.name}", rows) if rows > MOST_IN_SILENCE else unseen(rows)

    def work() -> None:
        if (opened := open_kept(split, settings.plans_folder)) is None:
            files = source_files(split)
            if len(files) > 1:
                groups = in_groups(files)
                at_once = executor().slots * len(groups[0])
                with to.progress(f"indexing {split.name}", len(files), "files", at_once=at_once) as advance:
                    ingest = partial(ingest_files, split, str(settings.plans_folder))
                    for done in executor().map(ingest, groups, name="index", retries=1):
                        done.result()
                        advance(len(done.item))
            elif (size := source_bytes(split, files[0])) > MOST_BYTES_IN_SILENCE:
                to.say(f"reading {split.name}: one file of {size / 2**30:.1f} GiB, from end to end")
            opened = open_split(split, settings.plans_folder, looking)
        if (said := opened.require_measurable(settings.max_invalid, missing=settings.encoder.missing)) is not None:
            to.say(said)

    to.stage("index", split.name, work)


class _OnSplit:
    """A split on which versions are missing; every run that is opened is ended."""

    def __init__(self, plan: SplitPlan, executor: LocalExecutor, to: Observer) -> None:
        self.plan, self.to = plan, to
        self.steps = Steps(plan.settings, executor, to)
        self.runs: dict[str, str] = {}
        self.ended: dict[str, VersionOutcome] = {}

    def outcomes(self) -> list[VersionOutcome]:
        plan, tracking, client = self.plan, self.plan.settings.tracking, self.steps.executor.client
        try:
            for label, identity in plan.identities.items():
                self.runs[label] = run_id = open_run(identity, tracking)
            # Of the versions of a split, which are evaluated together, the last one's run tells of the machine.
            with recorded(run_id, client, tracking):
                self._work()
        except BaseException as error:
            self._mark_failed(reason(error))
            raise
        return [self.ended[version.label] for version in plan.versions]

    def _work(self) -> None:
        plan, steps = self.plan, self.steps
        rows = pieces.rows_of(plan.settings, plan.split)
        reference = rows if plan.reference is None else pieces.rows_of(plan.settings, plan.reference)
        parts = [rows] if reference is rows else [rows, reference]
        place = f"measurements/{plan.split.digest[:16]}"
        kept = {
            label: MeasurementAddress(rows.objects, f"{place}/{identity.digest}.npz")
            for label, identity in plan.identities.items()
        }
        self._fail(steps.check(rows, self.left))
        reference.served.update(rows.served)
        for part in parts if self.left else []:
            steps.embed(part)
        for version in self.left if plan.again else []:
            kept[version.label].remove()
            for part in parts:
                part.forget(version.label)
        for part in parts:
            asked = [version for version in self.left if part.served[version.label].stored is None]
            if asked:
                self._fail(steps.predict(part, asked))
        task = SolveWork(plan.protocol, reference, None if reference is rows else rows, kept)
        left = self.left
        for start in range(0, len(left), VERSIONS_AT_ONCE):
            group = left[start : start + VERSIONS_AT_ONCE]
            self._fail(steps.solve(rows, task, group))
            if solved := [version for version in group if version.label not in self.ended]:
                scored, failures = steps.score(rows, plan.protocol, solved, kept, self.runs, again=plan.again)
                self.ended |= scored
                self._fail(failures)

    @property
    def left(self) -> list[ModelVersion]:
        """The versions that have not ended."""
        return [version for version in self.plan.versions if version.label not in self.ended]

    def _fail(self, failures: Failures) -> None:
        for label, message in failures.items():
            fail_run(self.runs[label], message, self.plan.settings.tracking)
            self.ended[label] = VersionOutcome(label, self.plan.split.name, "failed", error=message)

    def _mark_failed(self, message: str) -> None:
        """Mark open runs as failed; where MLflow is away they stay open, which is said."""
        left = [run_id for label, run_id in self.runs.items() if label not in self.ended]
        for position, run_id in enumerate(left):
            try:
                fail_run(run_id, message, self.plan.settings.tracking)
            except CongruenceError as error:
                self.to.say(
                    f"{len(left) - position} runs in MLflow stay open until the next attempt takes them up: {error}"
                )
                return


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
            check = partial(pieces.checked_version, self.settings, split)
            checks = self.executor.map(check, versions, name="check", fields=lambda each: {"version": each.label})
            checked, failures = _divided(checks, lambda version: version.label, "check it on a few rows", advance)
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
            pieces.require_features(split, encoder.features, settings.statistics_split.name)
        client = self.executor.client
        threads = {} if client is None else pieces.decode_threads(client)
        pending = store.pending()
        groups = self._groups(pending, len(threads))
        at_once = self.executor.slots * sum(shard.rows for shard in groups[0]) if groups else 1
        found = split.rows - sum(shard.rows for shard in pending)
        with self.to.progress(f"embedding {split.name}", split.rows, found=found, at_once=at_once) as advance:
            if pending and (encoder.searches_batch_size or self._workers_may_search()):
                find = partial(pieces.find_batch_size, settings.encoder)
                (done,) = self.executor.map(find, [rows], name="find batch size", retries=1)
                if (finding := done.result()) is not None:
                    self.to.say(f"embedding {split.name}: {finding}")
            work = partial(pieces.embed_shards, rows, settings.encoder, threads)
            embedded = self.executor.map(
                work, groups, name="embed", retries=_EMBED_RETRIES, fields=lambda group: {"shard": _span(group)}
            )
            for ended in embedded:
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
        parts = [(rows.of_versions([version.label]), version.label, group) for version in versions for group in groups]
        failures = Failures()
        at_once = slots * sum(shard.rows for shard in groups[0])
        with self.to.progress(f"predicting {split.name}", split.rows * len(versions), at_once=at_once) as advance:
            ask = partial(pieces.asked, self.settings, EvaluatedRows.predict)
            for done in self.executor.map(ask, parts, name="predict", retries=1, fields=_fields):
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
        parts = [(rows, label, group) for group in groups_of_shards(split.shards, self.executor.slots)]
        found: dict[int, str] = {}
        with self.to.progress(f"finding rows of {split.name} that {label} refuses", split.rows) as advance:
            ask = partial(pieces.asked, self.settings, EvaluatedRows.refused)
            for done in self.executor.map(ask, parts, name="find refused rows", fields=_fields):
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
        work = partial(measure_group if self.executor.client is None else pieces.solve_on_cluster, self.settings)
        named = labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
        (done,) = self.executor.map(work, [task.of_versions(labels)], name="solve", fields=lambda _: {"version": named})
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
        parts = [(rows.of_versions([each.label]), kept[each.label], each, runs[each.label]) for each in versions]
        work, executor = partial(pieces.score_and_log, self.settings, protocol, again), self.executor
        title, beside = f"scoring and logging {rows.split.name}", {"detail": executor.under_way}
        with self.to.progress(title, len(versions), "versions", at_once=executor.slots, **beside) as advance:
            scored = executor.map(work, parts, name="score", fields=lambda piece: {"version": piece[2].label})
            return _divided(scored, lambda piece: piece[2].label, "score it", advance)


def _divided(
    ended: Iterable[Done[T, R]], label_of: Callable[[T], str], asked_for: str, advance: Advance
) -> tuple[dict[str, R], Failures]:
    """What a piece of work of each version gave, and why those of others failed, by label."""
    given: dict[str, R] = {}
    failures = Failures()
    for done in ended:
        label = label_of(done.item)
        if (why := done.failure(label, asked_for)) is not None:
            failures[label] = why
        else:
            given[label] = done.result()
        advance(1)
    return given, failures


def _span(group: list[Shard]) -> str:
    return f"{group[0].index}-{group[-1].index}"


def _fields(piece: tuple[EvaluatedRows, str, list[Shard]]) -> dict[str, str]:
    """What log lines say of a version's piece."""
    return {"version": piece[1], "shard": _span(piece[2])}
