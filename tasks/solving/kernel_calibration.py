"""The kernel calibration error on a Dask cluster: a task per pair of row blocks, the same numbers as in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from distributed import Client

from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_calibration import CalibrationTest, calibration_test, squared_kernel_calibration_error

Result = TypeVar("Result")


class DaskBlocks:
    """Runs blocks of pairs as Dask tasks; row blocks are sent to the cluster once and stay there for the run."""

    def __init__(self, client: Client, *, retries: int = 2) -> None:
        self._client = client
        self._retries = retries

    def share(self, value: Any) -> Any:
        """A future of ``value`` in the cluster's memory."""
        return self._client.scatter([value], hash=False)[0]

    def run(self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
        """``function(*arguments)`` for each of the calls, in their order; a lost worker's blocks are run again."""
        futures = [self._client.submit(function, *arguments, pure=False, retries=self._retries) for arguments in calls]
        results: list[Result] = self._client.gather(futures)
        return results


def distributed_kernel_calibration_error(client: Client, predictive: Distribution, y: Any, **options: Any) -> float:
    """``squared_kernel_calibration_error(predictive, y, **options)`` with its pairs on the workers of ``client``."""
    return squared_kernel_calibration_error(y, predictive, runner=DaskBlocks(client), **options)


def distributed_calibration_test(client: Client, predictive: Distribution, y: Any, **options: Any) -> CalibrationTest:
    """``calibration_test(predictive, y, **options)`` with its pairs on the workers of ``client``."""
    return calibration_test(y, predictive, runner=DaskBlocks(client), **options)
