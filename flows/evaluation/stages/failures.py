"""What ends a version and what ends the run: a version's own failure stays with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import CancelledError, KilledWorker
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from congruence.kernels.errors import CongruenceError
from congruence.tasks.data.errors import SplitChangedError
from congruence.tasks.runtime.errors import ClusterError
from congruence.tasks.runtime.masking import mask_text

_OF_THE_RUN = (ClusterError, CancelledError, KilledWorker, OSError, SplitChangedError)


def may_pass(task: Any, run: Any, state: State[Any]) -> bool:  # noqa: ARG001 - Prefect's signature
    """Whether a task that failed is worth another try: a file that was replaced stays replaced."""
    return not isinstance(state.result(raise_on_failure=False), SplitChangedError)


def require_none(failures: Mapping[str, str]) -> None:
    """Raise CongruenceError with the first of some failures, by label."""
    for message in failures.values():
        raise CongruenceError(message)


def why(future: PrefectFuture[Any]) -> str | None:
    """Why a version's task failed, in words without secrets; None where it did not.

    Raises:
        ClusterError, OSError, ...: the cluster, a disk or a server is gone, or a file of the split is another one,
            which is no version's failure.
    """
    try:
        future.result()
    except _OF_THE_RUN:
        raise
    except Exception as error:
        return reason(error)
    return None


def reason(error: BaseException) -> str:
    """An error in one line: our own as they are, others with their type."""
    text = str(error) if isinstance(error, CongruenceError) else f"{type(error).__name__}: {error}"
    return mask_text(text)


def killed_workers(error: KilledWorker, label: str, first: int, last: int) -> str:
    """That a version killed every worker that was to predict these rows: then its failure is its own.

    That of a worker that dies (its machine was taken away, its memory ran out beside other work) is not: Dask gives its
    tasks to another one, ``distributed.scheduler.allowed-failures`` times.
    """
    return (
        f"{label}: killed {error.allowed_failures + 1} workers, all that were to predict rows {first} to {last}; it "
        "needs more memory than a worker has, or it crashes: predict: {isolation: environment} runs it in a separate "
        "process and shows the end of its output"
    )
