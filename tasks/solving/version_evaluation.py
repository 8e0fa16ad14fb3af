"""What is of one version alone, beside the systems that all share: its errors, tests, calibration, and keeping.

Each part is a function of addresses and of what is shared, so that it can be done by whichever worker is free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.version_calibration import (
    SplitCalibration,
    VectorCalibration,
    VersionCalibration,
)
from congruence.kernels.congruence.expected import expected_of_result
from congruence.kernels.congruence.outcome import CongruenceTest
from congruence.kernels.congruence.prepared import SolvedErrors
from congruence.kernels.congruence.test import smoothed_test, tested_smoother
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, TooFewBlocksError
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import TargetErrors, target_errors
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.protocol.repeats import RepeatedResult
from congruence.kernels.protocol.weighting import Reference
from congruence.kernels.row_blocks.dependence import FoundBlocks, blocks_of_version
from congruence.kernels.threads import single_threaded_blas
from congruence.tasks.runtime.steps import about, step
from congruence.tasks.solving.measurement_store import VersionMeasurement

Kept = TypeVar("Kept", covariant=True)


class VersionRows(Protocol[Kept]):
    """One version at the n reference rows, read where it is asked for; picklable."""

    @property
    def label(self) -> str:
        """What the version is called where its steps are told; "" for nothing."""

    def read(self) -> HeldVersion:
        """Its targets and predictions."""

    def keep(self, measurement: VersionMeasurement) -> Kept:
        """Takes what was measured; what it returns goes back to the caller."""


@dataclass(frozen=True)
class HeldVersion:
    """A version's rows in memory; its measurement is handed back (see VersionRows).

    Attributes:
        targets: (n,) or (n, q).
        predictive: n predictive distributions.
        keys: one per row, for the randomisation of PIT values.
        label: of the version.
        dependence: which of the rows may depend on each other; None where they are independent.
    """

    targets: Array = field(repr=False)
    predictive: Distribution = field(repr=False)
    keys: Array | None = field(default=None, repr=False)
    label: str = ""
    dependence: RowDependence | None = field(default=None, repr=False)

    def read(self) -> HeldVersion:
        """See VersionRows."""
        return self

    def keep(self, measurement: VersionMeasurement) -> VersionMeasurement:
        """See VersionRows."""
        return measurement


@dataclass(frozen=True)
class JudgedSplit:
    """What every version of a split is judged by once the systems are solved: the same for all, and picklable.

    Attributes:
        seed: of draws.
        protocol: of the measurement.
        kernel: k_Y with its resolved bandwidth.
        solver: what solved the system, in words.
        reason: why that, in one sentence.
        smoother: of the judged reference, in its leading directions.
        rows: of the split that this reference holds.
        roots: of their weights; None where they count equally.
        seconds: wall time of what was done for all versions.
        tested: whether the Monte-Carlo test of congruence is asked for.
    """

    seed: int
    protocol: EvaluationProtocol
    kernel: Kernel
    solver: str
    reason: str
    smoother: SpectralSmoother = field(repr=False)
    rows: Array = field(repr=False)
    roots: Array | None = field(repr=False)
    seconds: dict[str, float]
    tested: bool

    @classmethod
    def of(
        cls,
        seed: int,
        protocol: EvaluationProtocol,
        judged: Reference,
        kernel: Kernel,
        seconds: dict[str, float],
        reasons: Mapping[str, str],
        *,
        tested: bool,
    ) -> JudgedSplit:
        """From the reference that versions are judged by."""
        roots = None if np.all(judged.roots == 1.0) else judged.roots
        prepared = judged.prepared
        solver = type(prepared.solver).__name__
        reason = reasons.get(solver, "")
        return cls(seed, protocol, kernel, solver, reason, prepared.smoother, judged.rows, roots, seconds, tested)

    def chosen(self, held: HeldVersion) -> tuple[Array, Distribution]:
        """Targets and predictions at the rows of the judged reference."""
        targets, predictive = held.targets, held.predictive
        if len(self.rows) == len(targets):
            return targets[self.rows], predictive
        return targets[self.rows], predictive[self.rows]


def version_errors(rows: VersionRows[Any], kernel: Kernel) -> TargetErrors:
    """Delta of one version and its variance."""
    held = rows.read()
    with single_threaded_blas():
        return target_errors(held.targets, held.predictive, kernel)


def judged_version(
    rows: VersionRows[Any], split: JudgedSplit, solved: SolvedErrors | RepeatedResult
) -> VersionMeasurement:
    """Standard errors, what is expected of a true version, and the test of congruence."""
    started, held = time.perf_counter(), rows.read()
    (targets, predictive), dependence = split.chosen(held), held.dependence
    found = blocks_of_version(None if dependence is None else dependence.of_rows(split.rows), targets, predictive)
    if isinstance(solved, SolvedErrors):
        result = solved.with_uncertainty(split.smoother, found.blocks)
    else:
        result, found = solved, FoundBlocks.of_repeats(dependence)
    with about(rows.label), step("congruence test", 1, "versions") as advance:
        expected = None
        if not found.refused:  # by the kernel of the mean CCE itself, beside which it stands
            expected = expected_of_result(
                result, split.smoother, targets, predictive, split.kernel, roots=split.roots, seed=split.seed
            )
        test = _test(split, targets, predictive, found.blocks) if split.tested and not found.refused else None
        advance(1)
    std = solved.std if isinstance(solved, RepeatedResult) else None
    seconds = {**split.seconds, "test": time.perf_counter() - started}
    kernel = split.kernel.describe()
    return VersionMeasurement(
        result, split.solver, kernel, test, expected, std, seconds, reason=split.reason, inference=found.inference
    )


def calibrated_version(
    rows: VersionRows[Any], split: JudgedSplit, shared: SplitCalibration | VectorCalibration
) -> tuple[VersionCalibration | None, float]:
    """Whether a version is calibrated given its input, and the seconds that it took.

    None where rows depend on each other in too few blocks.
    """
    started, held = time.perf_counter(), rows.read()
    found: VersionCalibration | None = None
    with about(rows.label), step("calibration test", 1, "versions") as advance, suppress(TooFewBlocksError):
        found = shared.of_version(
            held.targets, held.predictive, keys=held.keys, seed=split.seed, dependence=held.dependence
        )
        advance(1)
    return found, time.perf_counter() - started


def keep_version(
    rows: VersionRows[Kept],
    measurement: VersionMeasurement,
    calibration: tuple[VersionCalibration | None, float] | None,
) -> Kept:
    """Keep all that was measured of a version."""
    if calibration is not None:
        found, seconds = calibration
        measurement = replace(measurement, calibration=found, seconds={**measurement.seconds, "calibration": seconds})
    return rows.keep(measurement)


def _test(
    split: JudgedSplit, targets: Array, predictive: Distribution, blocks: DependentBlocks | None
) -> CongruenceTest:
    """By the version's own kernel at the protocol's scale: one that is read off the targets is not exact."""
    return smoothed_test(
        tested_smoother(split.smoother),
        targets,
        predictive,
        output_kernel=split.protocol.output_kernel,
        output_scale=split.protocol.output_scale,
        seed=split.seed,
        roots=split.roots,
        blocks=blocks,
    )
