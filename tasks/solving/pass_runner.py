"""Passes over the row blocks of a split, by a cluster's workers, and versions measured in them.

A notebook, which measures in memory, loads this file without Dask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.prepared import calibrate
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.engine.blocks import (
    BlockSums,
    Pass,
    Passes,
    RowBlocks,
    Write,
    merged,
    places_of,
    sums_of_blocks,
)
from congruence.kernels.engine.driver import Driver, with_columns
from congruence.kernels.engine.landmarks import EXACT_ROWS, Accuracy, Factorize, local_factor
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.runtime.lines import step

if TYPE_CHECKING:
    from distributed import Client

TASKS = 64  # of a pass, at most: each takes neighbouring blocks
ARITY = 8  # sums merged at once
_TIMES = "times of tasks"  # beside what a pass adds up
_configuring = Lock()  # Dask's configuration belongs to the process

T = TypeVar("T")


@dataclass(frozen=True)
class VersionMeasurement:
    """What was measured of one version on a split.

    Attributes:
        result: CCE with its uncertainty, noise floor, certificate, expected mean and test, and how it was made.
        seconds: wall time by stage.
        calibration: given the input, where it was asked for and is measured.
        rows: how many, where the columns of points and rows lie block by block; None where they are here.
    """

    result: CongruenceResult
    seconds: dict[str, float] = field(default_factory=dict)
    calibration: VersionCalibration | None = None
    rows: int | None = None

    def whole(self, columns: Mapping[str, Array]) -> VersionMeasurement:
        """Returns it with the columns of all blocks."""
        calibration = None if self.calibration is None else self.calibration.whole(columns)
        return VersionMeasurement(with_columns(self.result, columns), self.seconds, calibration)


@dataclass(frozen=True)
class PassesOnCluster(Passes):
    """Passes on the workers, which have an equal share of each; what they make is added up where it lies.

    Attributes:
        client: of the cluster.
        blocks: an address, which goes to every task.
        progress: is called with every part that ends.
        seconds: of each pass so far, by its name: of its tasks together, over the threads of the cluster. By the clock
            a pass beside others would have their seconds, too.
        unwanted: set where nobody wants the rest of the passes: the next one raises.
    """

    client: Client
    blocks: RowBlocks
    progress: SolveProgress
    seconds: dict[str, float] = field(default_factory=dict)
    unwanted: Event = field(default_factory=Event)

    @property
    def sizes(self) -> Sequence[int]:
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        if self.unwanted.is_set():
            raise CancelledError(f"{name}: no longer wanted")
        result: Pass = self._total(self._parts(name, function, context)).result()
        spent = result.pop(_TIMES).added["seconds"] / max(1, sum(self.client.nthreads().values()))
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        return result

    def _parts(self, name: str, function: Callable[..., Pass], context: tuple[Any, ...]) -> list[Any]:
        """The tasks of a pass, each of neighbouring blocks, in their order."""
        import dask

        client, places = self.client, places_of(self.sizes)
        groups = np.array_split(np.arange(len(places)), min(TASKS, len(places)))
        with _configuring, dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
            shared = client.submit(_as_it_is, (self.blocks, *context), pure=False)
        # In turn, as Dask would give all to the worker that holds what they share; idle workers take from others.
        threads = [address for address, count in client.nthreads().items() for _ in range(count)]
        ended, parts = self.progress.pass_of(name, len(groups)), []
        for group, worker in zip(groups, cycle(threads or [""])):
            part = client.submit(
                _timed,
                function,
                [places[at] for at in group],
                shared,
                key=f"{name.replace(' ', '-')}-{uuid4()}",  # by which durations are told apart, and shown to people
                pure=False,
                workers=worker or None,
                allow_other_workers=bool(worker),
            )
            part.add_done_callback(lambda _: ended())
            parts.append(part)
        return parts

    def _total(self, parts: list[Any]) -> Any:
        """Parts added up in their order, ahead of further parts: nobody else holds them, so that few are in memory."""
        add_up = partial(self.client.submit, merged, pure=False, priority=1)
        whole = len(parts) - len(parts) % ARITY
        return add_up([*(add_up(parts[at : at + ARITY]) for at in range(0, whole, ARITY)), *parts[whole:]])


@contextmanager
def side_by_side(run: PassesOnCluster, function: Callable[[Passes], T]) -> Iterator[Future[T]]:
    """What ``function`` makes of passes of its own while others are run inside: neither waits for the other's steps.

    Between two passes, and at the end of each, there is work for one worker alone; so the others have some meanwhile.
    """
    beside, context = replace(run, unwanted=Event()), copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="passes-beside") as pool:
        try:
            yield pool.submit(context.run, function, beside)
        except BaseException:
            beside.unwanted.set()
            raise


def _as_it_is(context: tuple[Any, ...]) -> tuple[Any, ...]:
    """A task, so that the scheduler can make it again where it was lost."""
    return context


def _timed(function: Callable[..., Pass], places: list[tuple[int, int]], shared: tuple[Any, ...]) -> Pass:
    started, times = time.perf_counter(), BlockSums()
    total = sums_of_blocks(function, places, shared)
    times.add("seconds", time.perf_counter() - started)
    return {**total, _TIMES: times}


PERCENT = 100

# Microseconds a row, as measured on two cores: what a pass takes whatever the versions, of each
# version that is continuous, and of each of counts.
_SOLVE = {
    "look": (0.0, 1.0, 3.0),
    "sample": (1.0, 0.0, 0.0),
    "inputs": (9.0, 0.0, 0.0),
    "right-hand sides": (0.0, 17.0, 20.0),
    "scores": (0.0, 15.0, 36.0),
    "influence": (0.0, 10.0, 11.0),
}
_CALIBRATION = {
    "calibration sample": (1.0, 0.0, 0.0),
    "calibration bases": (20.0, 0.0, 0.0),
    "calibration predictions": (0.0, 0.5, 2.5),
    "calibration scores": (0.0, 4.0, 7.0),
    "calibration null": (9.0, 1.0, 0.0),
    "calibration reading": (0.0, 8.0, 30.0),
}
_OTHER = (1.0, 1.0, 1.0)
_BEGUN = 0.15e6  # of any pass, however few its rows: what stands between two passes, tasks on their way


class SolveProgress:
    """The share of a solve that is done; passes that nobody foresaw are added when they begin.

    Args:
        advance: takes the percent just done.
        rows: of the split, for each thread of the cluster.
        continuous, counts: how many versions of each kind.
        calibrated: whether calibration given the input is measured, too.
    """

    def __init__(
        self, advance: Callable[[int], None], rows: float, continuous: int, counts: int = 0, *, calibrated: bool = False
    ) -> None:
        self._advance, self._rows, self._kinds, self._lock = advance, rows, (1, continuous, counts), Lock()
        self._ahead = {name: self._weight(name) for name in (_SOLVE | _CALIBRATION if calibrated else _SOLVE)}
        self._total, self._done, self._said = sum(self._ahead.values()), 0.0, 0

    @classmethod
    @contextmanager
    def of(cls, rows: float, continuous: int, counts: int, *, calibrated: bool) -> Iterator[SolveProgress]:
        """Said step by step (``runtime.lines.step``) while inside."""
        with step("solve", PERCENT, "percent") as advance:
            progress = cls(advance, rows, continuous, counts, calibrated=calibrated)
            yield progress
            progress._say(PERCENT)

    def pass_of(self, name: str, parts: int) -> Callable[[], None]:
        """A pass of so many parts begins: what to call when one of them ends."""
        with self._lock:
            weight = self._ahead.pop(name, None)
            if weight is None:  # of a further try, or of a kind that few solves have
                weight = self._weight(name)
                self._total += weight

        def ended() -> None:
            with self._lock:
                self._done += weight / parts
                self._say(int(PERCENT * self._done / self._total))

        return ended

    def _weight(self, name: str) -> float:
        weights = (_SOLVE | _CALIBRATION).get(name, _OTHER)
        return _BEGUN + self._rows * sum(weight * count for weight, count in zip(weights, self._kinds, strict=True))

    def _say(self, percent: int) -> None:
        """Never less than before: where passes were added, it waits."""
        if percent > self._said:
            self._advance(percent - self._said)
            self._said = percent


def measure_blocks(
    client: Client,
    blocks: RowBlocks,
    protocol: EvaluationProtocol,
    ask: Ask,
    write: Write,
    *,
    seed: int = 0,
    accuracy: Accuracy | None = None,
    calibrated: bool = False,
    announce: Callable[[str], None] = lambda _: None,
    factorize: Factorize = local_factor,
    gpu: bool = False,
) -> dict[str, VersionMeasurement]:
    """CCE of every version on a split that is its own reference, with everything that is said of a version.

    Args:
        client: of the cluster.
        blocks: the split.
        protocol: kernels and lambda; with samples, bootstraps or downsampling it is refused.
        ask: what is asked of versions, a group whose sums fit a worker together.
        write: called on the workers with block, version and columns by name, (rows,) each: ``cce``, ``noise_floor``,
            with the test ``p_value`` and ``statistic``, and in a later call ``influence`` (of the mean CCE) and
            ``influence_squared`` (of the mean CCE^2). It may be called again with better or the same numbers.
        seed: of draws and of the noise floor's probes.
        accuracy: landmarks, and how they grow until the certificate holds.
        calibrated: with the test of calibration given the input and, for scalar targets, its reading, whose columns
            ``calibration_...`` are written in a call of their own.
        announce: is called with one line on what is done next.
        factorize: makes the factor of an exact system.
        gpu: whether tiles are made on the workers' cards.

    Raises:
        InvalidInputError: a protocol that row blocks do not serve, fewer than two rows, or rows that cannot be
            evaluated, named by their position in the split.
        BudgetError: k_Y needs too many features on these targets.
    """
    if protocol.is_repeated or protocol.reference != "test":
        raise InvalidInputError(
            f"protocol '{protocol.name}': samples, bootstraps, downsampling and a reference split of its own are not "
            "measured by row blocks; use a smaller split, which is held in memory, or protocol 'exact'"
        )
    accuracy, versions = accuracy or Accuracy(), ask.versions
    counts = sum(blocks.predictive(0, version).is_discrete for version in versions)
    rows = sum(blocks.sizes) / max(1, sum(client.nthreads().values()))
    with SolveProgress.of(rows, len(versions) - counts, counts, calibrated=calibrated) as progress:
        run = PassesOnCluster(client, blocks, progress)
        driver = Driver(run, protocol, seed, factorize=factorize, gpu=gpu)
        driver.look_at(versions)
        if hasattr(blocks, "row_dependence"):
            driver.find_dependent_rows(versions)
        beside = partial(calibration_of, driver, versions, write)
        with side_by_side(run, beside if calibrated else lambda _: {}) as calibration:
            best, reason = driver.best(ask, write, accuracy, announce)
            measured = driver.finish(best, write, reason)
        found = calibration.result()
    return {name: VersionMeasurement(each, run.seconds, found.get(name), driver.m) for name, each in measured.items()}


def calibration_of(driver: Driver, versions: Sequence[str], write: Write, run: Passes) -> dict[str, VersionCalibration]:
    """Of every version, given the input: by passes of ``run``, which need nothing of the system."""
    judged = [name for name in versions if name not in driver.dependent or not driver.dependent[name].refused]
    return calibrate(
        run,
        driver.n,
        driver.protocol,
        judged,
        write,
        is_scalar=driver.look_at(versions).is_scalar,
        seed=driver.seed,
        dtype=np.dtype(np.float64 if driver.n <= EXACT_ROWS else np.float32),
        dependent={name: each.blocks for name, each in driver.dependent.items()},
    )
