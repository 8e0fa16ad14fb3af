"""The evaluation of a file: its splits indexed, and on each check, embed, predict, solve, score; logged to MLflow."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import distributed
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.kernels.errors import CongruenceError
from congruence.tasks.data.ingest import ingest_file, source_files
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_kept, open_split
from congruence.tasks.data.usable import require_measurable
from congruence.tasks.evaluate.executors import LocalExecutor, Observer, in_groups, reason
from congruence.tasks.evaluate.plan import Plan, SplitPlan, VersionOutcome
from congruence.tasks.evaluate.steps import Failures, Steps, rows_of
from congruence.tasks.mlflow.connection import connect, tracking_address
from congruence.tasks.mlflow.runs import fail_run, open_run
from congruence.tasks.runtime.errors import mask_text
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings
from congruence.tasks.solving.measurement_store import MeasurementAddress
from congruence.tasks.solving.solve import VERSIONS_AT_ONCE, SolveWork

REPORT_FILE = "dask-report.html"
log = logging.getLogger(__name__)


@contextmanager
def system_metrics(run_id: str, settings: TrackingSettings) -> Iterator[None]:
    """MLflow logs this machine's use to a run (``system/...``) while the block and the run last.

    It does where MLflow's own switch asks for it: ``mlflow.enable_system_metrics_logging()``, or the variable
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.
    """
    if not MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():  # type: ignore[no-untyped-call]
        yield
        return
    where = tracking_address(settings)
    monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=where)  # type: ignore[no-untyped-call]
    monitor.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        monitor.finish()  # type: ignore[no-untyped-call]


@contextmanager
def performance_report(client: distributed.Client, run_id: str, settings: TrackingSettings) -> Iterator[None]:
    """Dask's report of all work of the cluster inside becomes an artifact of a run, where the settings ask for it.

    A report that cannot be made costs a warning, and nothing of the evaluation.
    """
    if not settings.performance_report:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, client.as_current():
        file = Path(folder) / REPORT_FILE
        report = distributed.performance_report(filename=str(file), mode="inline")  # read where no network is
        report.__enter__()
        try:
            yield
        finally:
            try:
                report.__exit__(None, None, None)
                connect(settings).log_artifact(run_id, str(file))
            except Exception as error:
                log.warning("Dask's performance report was not made (%s); is Bokeh installed where the scheduler runs?",
                            mask_text(str(error)))  # fmt: skip


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
        SplitError: see ``open_split``; or what ``require_measurable`` refuses.
    """

    def work() -> None:
        opened, folder = open_kept(split, settings.plans_folder), str(settings.plans_folder)
        if opened is None:
            files = source_files(split)
            if len(files) > 1:
                groups = in_groups(files)
                at_once = executor().slots * len(groups[0])
                with to.progress(f"indexing {split.name}", len(files), "files", at_once=at_once) as advance:
                    ingest = partial(_ingest, split, folder)
                    for done in executor().map(ingest, groups, name="index", retries=1):
                        done.result()
                        advance(len(done.item))
            opened = open_split(split, settings.plans_folder)
        said = require_measurable(opened, settings.max_invalid, missing=settings.encoder.missing)
        if said is not None:
            to.say(said)

    to.stage("index", split.name, work)


def _ingest(split: SplitSettings, folder: str, files: list[str]) -> None:
    for file in files:
        ingest_file(split, file, folder)


class _OnSplit:
    """A split on which versions are missing; every run that is opened is ended."""

    def __init__(self, plan: SplitPlan, executor: LocalExecutor, to: Observer) -> None:
        self.plan, self.to = plan, to
        self.steps = Steps(plan.settings, executor, to)
        self.ended: dict[str, VersionOutcome] = {}

    def outcomes(self) -> list[VersionOutcome]:
        plan, tracking, client = self.plan, self.plan.settings.tracking, self.steps.executor.client
        try:
            runs = [open_run(plan.identities[version.label], tracking) for version in plan.versions]
            with ExitStack() as recorded:
                # Of the versions of a split, which are evaluated together, the last one's run tells of the machine.
                recorded.enter_context(system_metrics(runs[-1], tracking))
                if client is not None:
                    recorded.enter_context(performance_report(client, runs[-1], tracking))
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
        kept = {
            label: MeasurementAddress(
                plan.settings.store_uri,
                f"measurements/{plan.split.digest[:16]}/{identity.digest}.npz",
                plan.settings.store.storage_options,
            )
            for label, identity in plan.identities.items()
        }
        served, failures = steps.check(rows, self.left)
        self._fail(failures)
        for part in parts if self.left else []:
            steps.embed(part)
            part.served.update(served)
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
