"""The main flow: registry versions on the splits of an evaluation file, logged to MLflow.

Prefect sees an evaluation as a run, and each stage of a split (index, check, embed, predict, solve, score) as a task
of it. Shards and versions are pieces of work on Dask, which has a dashboard of its own. Every stage keeps what it
finished, so a run after a crash continues and ends with the same numbers.

Our own errors in Prefect's log say what is wrong and what to do about it, without a traceback through Prefect. On a
run's page each stands once, as one line. A command prints it itself, so that its terminal shows it once, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from distributed import CancelledError, KilledWorker
from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.runtime import flow_run

from congruence.flows.cli.console import say, stage
from congruence.flows.cli.options import explained, take_signals_back
from congruence.kernels.errors import CongruenceError
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import DaskExecutor, Observer, dask_executor
from congruence.tasks.evaluate.plan import Failures, Plan, VersionOutcome
from congruence.tasks.runtime.errors import mask_text
from congruence.tasks.runtime.files import in_use
from congruence.tasks.runtime.lines import know, log_fields, use_json_lines
from congruence.tasks.settings.evaluation import EvaluationSettings

_LATER = (CancelledError, KilledWorker)  # which become a ClusterError, see dask_client
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_FORMATTER = logging.Formatter()
_MARK = "congruence_explained"
_TOLD = "Finished in state"
_FIELDS = {"run": "flow_run_id", "evaluation": "flow_run_name", "stage": "task_name", "task": "task_run_name"}
"""What Prefect's loggers of runs attach to their lines, also before and after the work, when nobody else names it."""

_told_by_a_command = False


def explain(record: logging.LogRecord) -> bool:
    """Turn a record of an error that we explain into its message; what nobody foresaw keeps its traceback.

    Neither tells a secret: a run's page is read by more people than its terminal. Every record passes.
    """
    if _told_by_a_command:  # asked here: Prefect's handlers may have come after this module
        for handler in logging.getLogger().handlers:
            if isinstance(handler, PrefectConsoleHandler):
                handler.addFilter(is_news)  # a second call changes nothing
    error = record.exc_info[1] if record.exc_info else None
    message = error if isinstance(error, _LATER) or error is None else explained(error)
    if message is not None:
        record.msg, record.args = f"{type(message).__name__}: %s", (message,)
        record.exc_info = record.exc_text = None
        setattr(record, _MARK, True)
    elif record.exc_info:
        # A formatter takes the text that it finds in place of one of its own.
        record.exc_text = mask_text(_FORMATTER.formatException(record.exc_info))
    record.msg, record.args = mask_text(record.getMessage()), None
    return True


def is_news(record: logging.LogRecord) -> bool:
    """Whether a command does not say a record itself on its terminal: its errors and how its run ended."""
    is_told = record.name in _LOGGERS and record.getMessage().startswith(_TOLD)
    return not (is_told or getattr(record, _MARK, False))


def run_fields(record: logging.LogRecord) -> dict[str, str]:
    """What a line of Prefect's says of the run and the stage that it comes from."""
    found = {name: str(getattr(record, attribute, None)) for name, attribute in _FIELDS.items()}
    return {name: value for name, value in found.items() if value not in ("None", "<unknown>")}


def explain_in_logs(*, told_by_a_command: bool = False) -> None:
    """Have the loggers of flow and task runs say our own errors as messages; a second call changes nothing.

    Args:
        told_by_a_command: from now on a command prints the errors of its flows; the run's page still gets them.
    """
    global _told_by_a_command
    _told_by_a_command = _told_by_a_command or told_by_a_command
    know(run_fields)
    use_json_lines()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(explain)


explain_in_logs()


class OnDemand(ExitStack):
    """The executor of an evaluation, on a cluster that starts when it is first asked for and ends with the ``with``."""

    def __init__(self, settings: EvaluationSettings) -> None:
        super().__init__()
        self._settings = settings.cluster

    @cached_property
    def _executor(self) -> DaskExecutor:
        return self.enter_context(dask_executor(self._settings, say))

    def __call__(self) -> DaskExecutor:
        return self._executor


class UnevaluatedError(CongruenceError):
    """A run could not evaluate some versions: names them with the reasons."""


def require_evaluated(outcomes: Sequence[VersionOutcome], problems: Sequence[str] = ()) -> None:
    """Raise UnevaluatedError where a version, or a split (``problems``), could not be evaluated."""
    failed = [item.why_not for item in outcomes if item.status == "failed"]
    if failed or problems:
        raise UnevaluatedError("\n".join([*failed, *problems]))


def evaluate(plan: Plan, cluster: OnDemand | None = None) -> list[VersionOutcome]:
    """Carry out the plan of an evaluation as a run in Prefect, which fails where a version could not be evaluated.

    Args:
        plan: of the evaluation file.
        cluster: of the plan's settings, where it may have been started already; it ends with the flow.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated, found before the long work where possible.
    """

    # The plan grows with the versions: Prefect, which stores and shows parameters, is given the settings alone. Of what
    # type they are it need not know: to write down their schema takes it a quarter of a second.
    models = _in_short(model.removeprefix("models:/") for model in plan.settings.models)
    splits = _in_short(split.name for split in plan.settings.splits)
    outcomes: list[VersionOutcome] = []

    @flow(name="evaluate", flow_run_name=_verbatim(f"evaluate {models} on {splits}"))
    def evaluation(settings: Any, again: bool) -> None:  # noqa: ARG001
        with in_flow(plan.settings, cluster) as executor:
            outcomes.extend(evaluate_plan(plan, executor, STAGES))
        if not is_alone.get():
            show_versions(outcomes)
        require_evaluated(outcomes)

    with suppress(UnevaluatedError):  # the others are there, and the outcomes say it, too
        evaluation(plan.settings, plan.again)
    return outcomes


def show_versions(outcomes: Sequence[VersionOutcome], gates: Mapping[str, str] | None = None) -> None:
    """A table on the run's page in Prefect of what became of its versions, with the outcomes of a gate by label."""
    rows = []
    for outcome in outcomes:
        judged = str(outcome.verdict) if outcome.run_id is not None else ""
        row = {"version": outcome.label, "split": outcome.split, "status": outcome.status, "verdict": judged}
        row |= {} if gates is None else {"gate": gates.get(outcome.label, "")}
        rows.append(row | {"run in MLflow": outcome.run_id or "", "error": mask_text(outcome.error or "")})
    if rows:
        create_table_artifact(table=rows, key="congruence-run", description="The versions of this run")


@contextmanager
def in_flow(settings: EvaluationSettings, cluster: OnDemand | None = None) -> Iterator[OnDemand]:
    """What a flow's work has around it: its folders in use, log lines that name the run, and a cluster when asked."""
    take_signals_back()
    fields = {"run": str(flow_run.id), "evaluation": str(flow_run.name)}
    with in_use(*settings.local_folders), cluster or OnDemand(settings) as executor, log_fields(**fields):
        yield executor


is_alone = ContextVar("is_alone", default=False)
"""Whether the Prefect server is that of one command, which has no pages and where nobody sets a limit."""


@contextmanager
def alone() -> Iterator[None]:
    """Stages inside have no tags by which a server may limit how many of them run at once.

    It would be asked for a slot of each stage, and where its SQLite is busy with events it refuses, and Prefect waits
    two seconds before it asks again.
    """
    token = is_alone.set(True)
    try:
        yield
    finally:
        is_alone.reset(token)


def _as_task(name: str, split: str, work: Callable[[], Any]) -> Any:
    """A stage as a task in Prefect, which fails where a version did; what a disk or a server ended is tried again."""
    title = f"{name} {split}"
    found: list[Any] = []

    @task(
        name=name,
        task_run_name=_verbatim(title),
        retries=2,
        retry_delay_seconds=[5, 20],
        # What we say ourselves of settings, data and clusters stays; what a disk or a server raises may pass.
        retry_condition_fn=lambda _task, _run, state: (
            isinstance(error := state.result(raise_on_failure=False), OSError)
            and not isinstance(error, CongruenceError)
        ),
        cache_policy=NO_CACHE,
        tags=[] if is_alone.get() else [f"congruence-{name}"],
    )
    def a_stage() -> None:
        found.append(work())
        parts = found[-1] if isinstance(found[-1], tuple) else found
        failed = next((part for part in parts if isinstance(part, Failures)), Failures())
        require_evaluated([VersionOutcome(label, split, "failed", error=why) for label, why in failed.items()])

    with log_fields(stage=name, split=split, task=title), suppress(UnevaluatedError):  # the others go on
        a_stage()
    return found[0]


TERMINAL = Observer(say, stage)
"""Lines and progress at the terminal."""

STAGES = Observer(say, stage, _as_task)
"""The same, and stages as tasks in Prefect."""


_NAMED = 3


def _in_short(names: Iterable[str]) -> str:
    """The first three, and how many more there are."""
    found = list(dict.fromkeys(names))
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _verbatim(name: str) -> str:
    """The name of a run with braces that Prefect does not fill in."""
    return name.replace("{", "{{").replace("}", "}}")
