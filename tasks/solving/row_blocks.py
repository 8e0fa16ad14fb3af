"""Versions measured on a split of any length by row blocks on a cluster: neither client nor workers hold the rows.

Workers read blocks by address, add up what is of constant size, and write what belongs to a row; see ``kernels.engine``
for the passes. Blocks are tied to tasks, and sums to a tree over blocks, that are the same whoever works on them: so
are the numbers. A lost worker costs its own tasks, which others repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from distributed import Client

from congruence.kernels.conditional_calibration.prepared import calibrate
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.engine.blocks import Passes, RowBlocks, Write
from congruence.kernels.engine.driver import Accuracy, Ask, Driver
from congruence.kernels.engine.system import EXACT_ROWS, Factorize, local_factor
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.solving.measurement import MeasurementSettings
from congruence.tasks.solving.measurement_store import BlockMeasurement
from congruence.tasks.solving.pass_runner import PassesOnCluster, SolveProgress, side_by_side


def measure_blocks(
    client: Client,
    blocks: RowBlocks,
    settings: MeasurementSettings,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    accuracy: Accuracy | None = None,
    draws: int | None = None,
    calibrated: bool = False,
    announce: Callable[[str], None] = lambda _: None,
    factorize: Factorize = local_factor,
    gpu: bool = False,
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
    accuracy = accuracy or Accuracy()
    ask = Ask(versions, "congruence_test" in requested_metrics(settings.metrics), draws)
    counts = sum(blocks.predictive(0, version).is_discrete for version in versions)
    rows = sum(blocks.sizes) / max(1, sum(client.nthreads().values()))
    with SolveProgress.of(rows, len(versions) - counts, counts, calibrated=calibrated) as progress:
        run = PassesOnCluster(client, blocks, progress)
        driver = Driver(run, protocol, settings.seed, factorize=factorize, gpu=gpu)
        driver.look_at(versions)
        if hasattr(blocks, "row_dependence"):
            driver.find_dependent_rows(versions)
        beside = partial(calibration_of, driver, versions, write) if calibrated else _not_calibrated
        with side_by_side(run, beside) as calibration:
            best, reason = driver.best(ask, write, accuracy, announce)
            measured = driver.finish(best, write, reason)
        found = calibration.result()
    return {name: BlockMeasurement(each, run.seconds, found.get(name)) for name, each in measured.items()}


def _not_calibrated(run: Passes) -> dict[str, VersionCalibration]:  # noqa: ARG001
    return {}


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
