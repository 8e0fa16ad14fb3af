"""Which failures of a task are the version's own: they end that version, the other versions go on."""

from __future__ import annotations

from congruence.kernels.errors import CongruenceError
from congruence.tasks.contract.errors import ContractError


def as_model_failure(error: BaseException, label: str, rows: tuple[int, int]) -> ContractError | None:
    """The failure of a version behind what its prediction task raised; None where it is not the version's.

    A worker that dies (its machine was taken away, its memory ran out beside other work) is not the version's failure:
    Dask gives its tasks to another worker. Where a task has killed every worker it was given to
    (``distributed.scheduler.allowed-failures`` and one more), Dask gives up with ``KilledWorker``: then it is.

    Args:
        error: what the task raised.
        label: the version's.
        rows: first and last row of the shards that it was to predict.
    """
    from distributed import KilledWorker

    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    for cause in chain:
        if isinstance(cause, ContractError):
            return cause
        if isinstance(cause, KilledWorker):
            return ContractError(
                f"{label}: killed {cause.allowed_failures + 1} workers, all that were to predict rows {rows[0]} to "
                f"{rows[1]}; it needs more memory than a worker has, or it crashes: predict: {{isolation: "
                "environment}} runs it in a separate process and shows the end of its output"
            )
        if isinstance(cause, CongruenceError):
            return None
    return None
