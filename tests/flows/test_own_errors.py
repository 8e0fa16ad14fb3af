"""What a person reads in Prefect's log when a run fails: our errors as one line, everything else with its traceback."""

from __future__ import annotations

import logging
import time
from io import StringIO
from queue import Queue
from types import SimpleNamespace

import pytest
from distributed import CancelledError, KilledWorker, LocalCluster, Status, get_worker
from prefect.logging.handlers import PrefectConsoleHandler

from congruence.flows.prefect.log_filters import explain, is_news, log_own_errors_as_messages
from congruence.tasks.evaluate.executors import Done
from congruence.tasks.runtime.errors import SettingsError


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SettingsError("models: none given; name one"), ["SettingsError: models: none given; name one"]),
        (CancelledError("the scheduler is gone"), ["CancelledError: the scheduler is gone"]),
        (ZeroDivisionError("nobody foresaw it"), ["it ended", "Traceback"]),
    ],
)
def test_our_own_errors_come_without_a_traceback(
    error: Exception, shown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log_own_errors_as_messages()
    log_own_errors_as_messages()
    logger = logging.getLogger("prefect.flow_runs")
    assert logger.filters.count(explain) == 1
    logger.addHandler(caplog.handler)
    try:
        raise error
    except Exception as raised:
        logger.exception("it ended: %r", raised)
    finally:
        logger.removeHandler(caplog.handler)
    lines = caplog.text
    assert all(part in lines for part in shown)
    assert ("Traceback" in lines) == ("Traceback" in shown)


def test_a_command_that_prints_its_errors_keeps_them_off_its_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="prefect.flow_runs")
    said = StringIO()
    handler = PrefectConsoleHandler(stream=said)
    handler.addFilter(is_news)
    logger = logging.getLogger("prefect.flow_runs")
    log_own_errors_as_messages()
    logger.addHandler(handler)
    try:
        for error in (SettingsError("models: none given"), ZeroDivisionError("nobody foresaw it")):
            try:
                raise error
            except Exception as raised:
                logger.exception("Encountered exception during execution: %r", raised)
        logger.error("Finished in state Failed('models: none given')")
        logger.warning("the cluster lost a worker")
    finally:
        logger.removeHandler(handler)
    assert "models: none given" not in said.getvalue()
    assert "nobody foresaw it" in said.getvalue()
    assert "lost a worker" in said.getvalue()


def test_a_worker_that_was_loaded_before_the_command_spoke_keeps_them_off_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = StringIO()
    handler = PrefectConsoleHandler(stream=said)
    log_own_errors_as_messages()  # when the process is loaded from which workers are forked
    monkeypatch.setenv("CONGRUENCE_ERRORS_TOLD", "1")
    logging.getLogger().addHandler(handler)
    try:
        raise SettingsError("models: none given")
    except SettingsError:
        logging.getLogger("prefect.task_runs").exception("Task run 'check' failed")
    finally:
        logging.getLogger().removeHandler(handler)
    assert not said.getvalue()


def test_what_a_task_says_while_its_worker_is_closed_is_kept_off_the_terminal() -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        running = cluster.get_client().submit(until_the_worker_ends)
        assert passed_on.get(timeout=60)
        cluster.close()
        del running
    assert not passed_on.get(timeout=60)


passed_on: Queue[bool] = Queue()


def until_the_worker_ends() -> None:
    """A task that fails, in Prefect's words, before and after its worker is closed."""
    passed_on.put(is_news(lost("prefect.task_runs")))
    while get_worker().status is Status.running:
        time.sleep(0.01)
    passed_on.put(is_news(lost("prefect.task_runs")))


def lost(name: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, "it is lost", None, None)


def test_a_version_that_kills_every_worker_is_named() -> None:
    error = KilledWorker("predict-7", SimpleNamespace(address="tcp://10.0.0.1:1"), 3)  # type: ignore[arg-type]
    said = str(Done("angle/3", error=error).failure("angle/3", "predict rows 100 to 299"))
    assert said.startswith("angle/3: killed 4 workers, all that were to predict rows 100 to 299; it needs more memory")
    assert "make shard_rows of the split smaller" in said
