"""The evaluation of a split: check, embed, predict, solve, score; logged to MLflow, version by version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from congruence.kernels.errors import CongruenceError
from congruence.tasks.evaluate.executors import Executor, reason
from congruence.tasks.evaluate.observer import Observer
from congruence.tasks.evaluate.plan import Plan, SplitPlan, VersionOutcome
from congruence.tasks.evaluate.splits import store_uri
from congruence.tasks.evaluate.steps import (
    Failures,
    Steps,
    groups_of_versions,
    index,
    kept_predictions,
    rows_of,
)
from congruence.tasks.mlflow.machine import performance_report, system_metrics
from congruence.tasks.mlflow.runs import fail_run, open_run
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.solving.measurement_store import MeasurementAddress
from congruence.tasks.solving.solve import SolveWork


def evaluate(plan: Plan, executor: Callable[[], Executor], to: Observer) -> list[VersionOutcome]:
    """Evaluate what a plan says is missing, split by split, and return the outcomes of all of its versions.

    Args:
        plan: of the evaluation.
        executor: asked for when there is something to do for it.
        to: hears of it.

    Raises:
        CongruenceError: data or models that cannot be evaluated, found before the long work where possible.
    """
    for split in plan.settings.all_splits:
        index(plan.settings, split, executor, to)
    outcomes: list[VersionOutcome] = []
    for part in plan.splits:
        made = evaluate_split(part, executor(), to) if part.versions else []
        outcomes += part.outcomes + made
        to.split_done(part.split.name, part.outcomes + made)
    return outcomes


def evaluate_split(plan: SplitPlan, executor: Executor, to: Observer) -> list[VersionOutcome]:
    """Embed a split, and predict, solve, score and log what is missing on it; every run that is opened is ended.

    Raises:
        CongruenceError: a split, a cluster or a server with which no version can be evaluated.
    """
    return _OnSplit(plan, executor, to).outcomes()


class _OnSplit:
    def __init__(self, plan: SplitPlan, executor: Executor, to: Observer) -> None:
        self.plan, self.to = plan, to
        self.steps = Steps(plan.settings, executor, to)
        self.ended: dict[str, VersionOutcome] = {}

    def outcomes(self) -> list[VersionOutcome]:
        plan, tracking, client = self.plan, self.plan.settings.tracking, self.steps.executor.client
        try:
            runs = [open_run(plan.identities[version.label], tracking) for version in plan.versions]
            with ExitStack() as told:
                # Of the versions of a split, which are evaluated together, the last one's run tells of the machine.
                told.enter_context(system_metrics(runs[-1], tracking))
                if client is not None:
                    told.enter_context(performance_report(client, runs[-1], tracking))
                self._work()
        except BaseException as error:
            self._mark_failed(reason(error))
            raise
        return [self.ended[version.label] for version in plan.versions]

    def _work(self) -> None:
        plan, steps = self.plan, self.steps
        rows = rows_of(plan.settings, plan.split)
        reference = rows if plan.reference is None else rows_of(plan.settings, plan.reference)
        parts = [rows] if reference is rows else [rows, reference]
        kept = {version.label: self._measurement(version) for version in plan.versions}
        served, failures = steps.check(plan.split, self.left)
        self._fail(failures)
        for part in parts if self.left else []:
            steps.embed(part)
            part.predictions.update({label: kept_predictions(part, version) for label, version in served.items()})
        for version in self.left if plan.again else []:
            kept[version.label].remove()
            for part in parts:
                part.forget(version.label)
        for part in parts:
            if self.left:
                self._fail(steps.predict(part, self.left))
        task = SolveWork(plan.protocol, reference, None if reference is rows else rows, kept)
        for group in groups_of_versions(self.left):
            self._fail(steps.solve(task, group))
            solved = [version for version in group if version.label not in self.ended]
            if not solved:
                continue
            scored, failures = steps.score(rows, plan.protocol, solved, kept, again=plan.again)
            self.ended |= scored
            self._fail(failures)

    @property
    def left(self) -> list[ModelVersion]:
        """The versions that have not ended."""
        return [version for version in self.plan.versions if version.label not in self.ended]

    def _fail(self, failures: Failures) -> None:
        for label, message in failures.items():
            fail_run(self.plan.identities[label], message, self.plan.settings.tracking)
            self.ended[label] = self.plan.failed(label, message)

    def _mark_failed(self, message: str) -> None:
        """Mark open runs as failed; where MLflow is away they stay open, which is said."""
        left = self.left
        for position, version in enumerate(left):
            try:
                fail_run(self.plan.identities[version.label], message, self.plan.settings.tracking)
            except CongruenceError as error:
                self.to.say(
                    f"{len(left) - position} runs in MLflow stay open until the next attempt takes them up: {error}"
                )
                return

    def _measurement(self, version: ModelVersion) -> MeasurementAddress:
        settings, digest = self.plan.settings, self.plan.identities[version.label].digest
        key = f"measurements/{self.plan.split.digest[:16]}/{digest}.npz"
        return MeasurementAddress(store_uri(settings), key, settings.store.storage_options)
