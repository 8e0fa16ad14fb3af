"""Our own errors in Prefect's log: what is wrong and what to do about it, without a traceback through Prefect.

On a run's page each stands once, as one line. A command prints it itself, so that its terminal shows it once, too.
"""

from __future__ import annotations

import logging
import os

from distributed import CancelledError, KilledWorker, Status, get_worker
from prefect.logging.handlers import PrefectConsoleHandler

from congruence.flows.cli.error_messages import explained
from congruence.tasks.runtime.json_logging import know, use_json_lines
from congruence.tasks.runtime.masking import mask_text

_LATER = (CancelledError, KilledWorker)  # which become a ClusterError, see dask_client
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_FORMATTER = logging.Formatter()
_MARK = "congruence_explained"
_TOLD = "Finished in state"
_COMMAND = "CONGRUENCE_ERRORS_TOLD"
_FIELDS = {"run": "flow_run_id", "evaluation": "flow_run_name", "stage": "task_name", "task": "task_run_name"}
"""What Prefect's loggers of runs attach to their lines, also before and after the work, when nobody else names it."""


def explain(record: logging.LogRecord) -> bool:
    """Turn a record of an error that we explain into its message; what nobody foresaw keeps its traceback.

    Neither tells a secret: a run's page is read by more people than its terminal. Every record passes.
    """
    if os.environ.get(_COMMAND):  # asked here: Prefect's handlers may have come after this module
        leave_own_errors_to_the_command()
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
    if getattr(record, _MARK, False):
        return False
    if record.name in _LOGGERS and _worker_ends():
        return False  # it comes from the end of the cluster
    return not (record.name in _LOGGERS and record.getMessage().startswith(_TOLD))


def run_fields(record: logging.LogRecord) -> dict[str, str]:
    """What a line of Prefect's says of the run and the stage that it comes from."""
    found = {name: str(getattr(record, attribute, None)) for name, attribute in _FIELDS.items()}
    return {name: value for name, value in found.items() if value not in ("None", "<unknown>")}


def _worker_ends() -> bool:
    """Whether this is a task of a Dask worker that is being closed."""
    try:
        return get_worker().status in (Status.closing, Status.closed)
    except ValueError:  # no worker's task
        return False


def told_by_a_command() -> None:
    """From now on, in this process and in those that it starts, a command prints the errors of its flows."""
    os.environ[_COMMAND] = "1"
    settle()


def settle() -> None:
    """What this process does with our own errors: to be called where flows and tasks are loaded, on workers too.

    A worker knows by its environment that a command prints them.
    """
    know(run_fields)
    use_json_lines()
    log_own_errors_as_messages()


def log_own_errors_as_messages() -> None:
    """Put the filter on the loggers of flow and task runs; a second call changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(explain)


def leave_own_errors_to_the_command() -> None:
    """Keep them off the terminal; the run's page still gets them. A second call changes nothing."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(is_news)
