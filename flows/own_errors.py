"""Our own errors in Prefect's log: what is wrong and what to do about it, without a traceback through Prefect."""

from __future__ import annotations

import logging

from distributed import CancelledError, KilledWorker

from congruence.kernels.errors import CongruenceError

_EXPLAINED = (CongruenceError, CancelledError, KilledWorker)  # the last two become a ClusterError, see dask_client
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class OwnErrors(logging.Filter):
    """Turns a record of an error that we explain into its message; what nobody foresaw keeps its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, _EXPLAINED):
            record.msg, record.args = f"{type(error).__name__}: %s", (error,)
            record.exc_info = record.exc_text = None
        return True


def log_own_errors_as_messages() -> None:
    """Put the filter on the loggers of flow and task runs; a second call changes nothing."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(installed, OwnErrors) for installed in logger.filters):
            logger.addFilter(OwnErrors())
