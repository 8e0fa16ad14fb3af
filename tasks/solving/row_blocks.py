"""Versions measured on a split of any length by row blocks on a cluster: neither client nor workers hold the rows.

Workers read blocks by address, add up what is of constant size, and write what belongs to a row; see
``kernels.row_blocks`` for the passes. Blocks are tied to tasks, and sums to a tree over blocks, that are the same
whoever works on them: so are the numbers. A lost worker costs its own tasks, which others repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.answer import BlockMeasurement
from congruence.kernels.row_blocks.calibration import CalibrationInBlocks
from congruence.kernels.row_blocks.rows import RowBlocks, Write
from congruence.kernels.row_blocks.runs import BlockPasses
from congruence.kernels.row_blocks.split import BlockSplit, SolvedSplit
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.solving.measurement import MeasurementSettings
from congruence.tasks.solving.pass_runner import PassesOnCluster, side_by_side
from congruence.tasks.solving.plan import BlockAccuracy, OutOfReachError
from congruence.tasks.solving.solve_progress import SolveProgress

SAMPLED = 16_384  # rows that tell with how many landmarks to begin
SPLITS_SAMPLED = 6  # times as long a split must be for that to be worth it


def measure_blocks(
    client: Client,
    blocks: RowBlocks,
    settings: MeasurementSettings,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    accuracy: BlockAccuracy | None = None,
    draws: int | None = None,
    calibrated: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, BlockMeasurement]:
    """CCE of every version on a split that is its own reference, with everything a version is told.

    Args:
        client: of the cluster.
        blocks: the split.
        settings: seed and metrics.
        protocol: kernels and lambda; with samples, bootstraps or downsampling it is refused.
        versions: a group whose sums fit a worker together.
        write: called on the workers with block, version and columns by name, (rows,) each: ``cce``, ``noise_floor``,
            with the test ``p_value`` and ``statistic``, and in a later call ``influence`` (of the mean CCE) and
            ``influence_squared`` (of the mean CCE^2). It may be called again with better or the same numbers.
        accuracy: landmarks, and how they grow until the certificate holds.
        draws: simulated splits of the test; by default 999 up to 50,000 rows and the first 199 of them beyond.
        calibrated: with the test of calibration given the input and, for scalar targets, its reading, whose columns
            ``calibration_...`` are written in a call of their own.
        announce: told in one line what is done next.

    Raises:
        InvalidInputError: a protocol that row blocks do not serve, fewer than two rows, or rows that cannot be
            evaluated, named by their position in the split.
        BudgetError: k_Y needs too many features on these targets.
        OutOfReachError: ``accuracy`` allows an exact answer, and landmarks do not reach its share or cost more.
    """
    _require_served(protocol)
    accuracy = accuracy or BlockAccuracy()
    tested = "congruence_test" in requested_metrics(settings.metrics)
    counts = sum(blocks.predictive(0, version).is_discrete for version in versions)
    rows = sum(blocks.sizes) / max(1, sum(client.nthreads().values()))
    with SolveProgress.of(rows, len(versions) - counts, counts, calibrated=calibrated) as progress:
        run = PassesOnCluster(client, blocks, progress)
        split = BlockSplit(run, protocol, settings.seed)
        split.look_at(versions)
        if hasattr(blocks, "row_dependence"):
            split.find_dependent_rows(versions)
        calibrate = partial(split.calibration, versions, write) if calibrated else _not_calibrated
        with side_by_side(run, calibrate) as calibration:
            best = _best(split, versions, write, accuracy, draws=draws, tested=tested, announce=announce)
            measurements = split.finish(best, write)
        found, reason = calibration.result(), _reason(best, accuracy)
    return {
        name: replace(each, calibration=found.get(name), seconds=run.seconds, reason=reason)
        for name, each in measurements.items()
    }


def _not_calibrated(run: BlockPasses) -> dict[str, CalibrationInBlocks]:  # noqa: ARG001
    return {}


def _require_served(protocol: EvaluationProtocol) -> None:
    refused = {
        "samples": protocol.samples is not None,
        "bootstraps": protocol.bootstraps > 0,
        "downsampling": protocol.downsampling is not None,
        "a reference split of its own": protocol.reference != "test",
    }
    for what, is_asked in refused.items():
        if is_asked:
            raise InvalidInputError(
                f"protocol '{protocol.name}': {what} is not measured by row blocks; use a smaller split, which is held "
                "in memory, or protocol 'exact'"
            )


def _best(
    split: BlockSplit,
    versions: Sequence[str],
    write: Write,
    accuracy: BlockAccuracy,
    *,
    draws: int | None,
    tested: bool,
    announce: Callable[[str], None],
) -> SolvedSplit:
    """On as few landmarks as the certificate of every version allows, or on as many as may be."""
    counts, before = _counts_to_try(split, accuracy, versions)
    for landmarks in counts:
        announce(f"{split.n:,} rows in {len(split.run.sizes)} blocks, {landmarks:,} landmarks")
        solved = split.solve(landmarks, versions, write, draws=draws, tested=tested)
        if solved.worst <= accuracy.share:
            break
        reason = _reason(solved, accuracy)
        # Half as many as asked for span k_X at twice as many inputs: further ones repeat them.
        spanned = 2 * len(solved.system.inputs.landmarks) <= landmarks
        if spanned and split.dtype.itemsize == 4:  # what is left is the rounding of single precision
            announce(f"{reason}; they span the kernel, so once more in double precision")
            solved = split.in_double_precision().solve(landmarks, versions, write, draws=draws, tested=tested)
            if solved.worst <= accuracy.share:
                break
            reason = _reason(solved, accuracy)
        if spanned or not accuracy.is_in_reach(landmarks, solved.worst, before, n=split.n):
            if accuracy.exact_work is not None:
                raise OutOfReachError(f"{reason}, and more would cost as much or not reach it")
            more = "further landmarks" if spanned else f"{accuracy.largest:,} landmarks"
            announce(f"{reason}, which {more} would not reach; solver.kind names exact ones")
            break
        announce(reason)
        before = solved.worst
    return solved


def _reason(solved: SolvedSplit, accuracy: BlockAccuracy) -> str:
    """Why so many landmarks, in one sentence."""
    return (
        f"{len(solved.system.inputs.landmarks):,} landmarks leave a certificate of {solved.worst:.2g} of the mean CCE "
        f"or its noise floor, {accuracy.share:.2g} is the aim"
    )


def _counts_to_try(
    split: BlockSplit, accuracy: BlockAccuracy, versions: Sequence[str]
) -> tuple[list[int], float | None]:
    """Landmark counts in turn, but for those that fail on a sample of the rows, and the certificate of the last.

    A try costs as much as an answer. What Nystrom misses hangs on the spectrum of k_X under the law of the inputs,
    hardly on their number; the certificate of the whole split has the last word.
    """
    n, counts, before = split.n, accuracy.counts(split.n), None
    if len(counts) == 1 or n < SPLITS_SAMPLED * SAMPLED:
        return counts, None
    sample = split.sampled(versions, SAMPLED)
    for at, landmarks in enumerate(counts):
        if landmarks > SAMPLED // 8:
            return counts[at:], before
        try:
            worst = sample.solve(landmarks, versions, _nowhere, draws=None, tested=False).worst
        except (InvalidInputError, BudgetError):  # rare counts, all 0 in a sample: the whole split says what it is
            return counts, None
        if worst <= accuracy.share or not accuracy.is_in_reach(landmarks, worst, before, n=n):
            return counts[at:], before
        before = worst
    return counts[-1:], before


def _nowhere(block: int, version: str, columns: dict[str, Array]) -> None:
    """Where the columns of a try go."""
