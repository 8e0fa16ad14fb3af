"""The evaluation of a file: its splits indexed, and on each check, embed, predict, solve, score; logged to MLflow.

An index says which rows can be measured: one that lacks a number is left out, and said.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import distributed
from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from congruence.kernels.errors import CongruenceError
from congruence.tasks.data.ingest import ingest_file, source_bytes, source_files, unseen
from congruence.tasks.data.rows import FIRST_ROWS, Lacking
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_kept, open_split
from congruence.tasks.evaluate.executors import LocalExecutor, Observer, in_groups, reason
from congruence.tasks.evaluate.plan import Plan, SplitPlan, VersionOutcome
from congruence.tasks.evaluate.steps import Failures, Steps, rows_of
from congruence.tasks.mlflow.connection import connect, tracking_address
from congruence.tasks.mlflow.runs import fail_run, open_run
from congruence.tasks.runtime.errors import SplitError, TooManyInvalidRowsError, mask_text
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings
from congruence.tasks.solving.solve import VERSIONS_AT_ONCE, MeasurementAddress, SolveWork

REPORT_FILE = "dask-report.html"
MOST_IN_SILENCE = 1_000_000
"""Rows that are looked through within seconds."""
MOST_BYTES_IN_SILENCE = 2**29
"""Of a file that is read within seconds."""
log = logging.getLogger(__name__)


@contextmanager
def recorded(run_id: str, client: distributed.Client | None, settings: TrackingSettings) -> Iterator[None]:
    """What this machine and a cluster do inside is logged to a run that lasts, where that is asked for.

    MLflow logs the machine's use (``system/...``) where its own switch says so: the variable
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, or ``mlflow.enable_system_metrics_logging()``. Dask's report of all work of
    the cluster becomes an artifact where the settings say so; one that cannot be made costs a warning, and nothing of
    the evaluation.
    """
    with ExitStack() as stack:
        if MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING.get():  # type: ignore[no-untyped-call]
            where = tracking_address(settings)
            monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=where)  # type: ignore[no-untyped-call]
            monitor.start()  # type: ignore[no-untyped-call]
            stack.callback(monitor.finish)
        if client is not None and settings.performance_report:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / REPORT_FILE
            stack.enter_context(client.as_current())
            report = distributed.performance_report(filename=str(file), mode="inline")  # read where no network is
            report.__enter__()

            def end() -> None:
                try:
                    report.__exit__(None, None, None)
                    connect(settings).log_artifact(run_id, str(file))
                except Exception as error:
                    log.warning(
                        "Dask's performance report was not made (%s); is Bokeh installed where the scheduler runs?",
                        mask_text(str(error)),
                    )

            stack.callback(end)
        yield


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

    def looking(rows: int) -> AbstractContextManager[Callable[[int], object]]:
        return to.progress(f"looking through {split.name}", rows) if rows > MOST_IN_SILENCE else unseen(rows)

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
            elif (size := source_bytes(split, files[0])) > MOST_BYTES_IN_SILENCE:
                to.say(f"reading {split.name}: one file of {size / 2**30:.1f} GiB, from end to end")
            opened = open_split(split, settings.plans_folder, looking)
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
        rows = rows_of(plan.settings, plan.split)
        reference = rows if plan.reference is None else rows_of(plan.settings, plan.reference)
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
            solved = [version for version in group if version.label not in self.ended]
            if not solved:
                continue
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


_STAND_INS = {
    "mean": "the feature's mean stands in",
    "indicator": "the feature's mean stands in, beside a feature that is 1 where it is missing",
}


def require_measurable(split: Split, max_invalid: float = 0.01, *, missing: str = "leave_out") -> str | None:
    """One rule for every row that lacks a finite number, in its features or its targets: it is left out, and said.

    Reads the manifest alone. Images and texts that cannot be used show when they are decoded; they count against
    the same limit there.

    Args:
        split: a labelled one.
        max_invalid: the fraction of rows that may be left out.
        missing: what the encoder makes of a feature without a value (``EncoderSettings.missing``): unless "leave_out",
            such rows stay, and do not count against the limit.

    Returns:
        how many rows are left out, and how many stay without all their features, with the first of them; None where
        every row is whole.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows lack a number.
        SplitError: fewer than two rows are left, or all their targets are the same.
    """
    inputs, targets = _lacking(split, missing)
    lacking = inputs.rows + targets.rows
    left_out = None
    if lacking:
        left_out = (
            f"split {split.name!r}: {lacking} of {split.rows} rows lack a finite number and are left out "
            f"({inputs.rows} in the features, {targets.rows} in the targets): "
            f"{_listed(split, [*inputs.first, *targets.first], lacking)}"
        )
    where = f"split {split.name!r} ({split.settings.uri})"
    if left_out is not None and lacking > max_invalid * split.rows:
        remedy = "repair these rows, or raise max_invalid"
        if missing == "leave_out" and split.facts.missing.rows:
            remedy = (
                "repair these rows, raise max_invalid, or, where the models take missing values themselves, set "
                "missing: mean (or indicator) under encoder: the rows then stay"
            )
        raise TooManyInvalidRowsError(f"{left_out}; at most {max_invalid:.2%} may be left out: {remedy}")
    if split.rows - lacking < 2:
        said = f"holds {split.rows} row{'s' if split.rows > 1 else ''}, of which {split.rows - lacking} can be used"
        raise SplitError(f"{where}: {said}; an evaluation compares rows and needs at least two (better hundreds)")
    ranges = split.facts.ranges
    if ranges and all(low == high for low, high in ranges.values()):
        values = ", ".join(f"{name!r} is {low:g}" for name, (low, _) in ranges.items())
        raise SplitError(
            f"{where}, {split.place(0)} and all rows after it: the target {values} in every row, so that there is "
            "nothing to predict; check the target column, or choose rows that differ"
        )
    staying = None
    if missing != "leave_out" and split.facts.missing.rows:
        staying = (
            f"split {split.name!r}: {split.facts.missing.rows} of {split.rows} rows lack a feature and stay: the "
            f"models are given them as they are, and for nearness {_STAND_INS[missing]} (encoder.missing: {missing}): "
            f"{_listed(split, split.facts.missing.first, split.facts.missing.rows)}"
        )
    return "\n".join(text for text in (left_out, staying) if text is not None) or None


def rows_left_out(split: Split, missing: str = "leave_out") -> int:
    """How many rows lack a finite number and are left out, see ``require_measurable``."""
    return sum(part.rows for part in _lacking(split, missing))


def _lacking(split: Split, missing: str) -> tuple[Lacking, Lacking]:
    """The rows that are left out for their features, and those for their targets."""
    facts = split.facts
    if missing != "leave_out":
        return facts.inputs, facts.targets
    first = sorted([*facts.inputs.first, *facts.missing.first])[:FIRST_ROWS]
    return Lacking(facts.inputs.rows + facts.missing.rows, first), facts.targets


def _listed(split: Split, places: list[tuple[int, str]], rows: int) -> str:
    first = sorted(places)[:FIRST_ROWS]
    listed = "; ".join(f"row {row} ({split.place(row)}): {reason}" for row, reason in first)
    return listed + (f"; and {rows - len(first)} more" if rows > len(first) else "")
