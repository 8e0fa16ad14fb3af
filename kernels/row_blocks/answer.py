"""What the sums of all passes say of a version: means, certificate, standard errors, expected band, test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.block_sums import BlockSums
from congruence.kernels.conditional_calibration.version_calibration import VersionCalibration
from congruence.kernels.congruence.expected import (
    ExpectedCongruence,
    expected_at,
    expected_by_blocks,
)
from congruence.kernels.congruence.influence import CongruenceUncertainty
from congruence.kernels.congruence.influence_sums import InfluenceWeights
from congruence.kernels.congruence.outcome import CongruenceTest, judged
from congruence.kernels.congruence.simulated import true_coefficients
from congruence.kernels.errors import BudgetError
from congruence.kernels.gram.rounding import UNIT, float64_rounding, largest_share
from congruence.kernels.gram.thin_products import product
from congruence.kernels.mean_embeddings.base import FeatureError
from congruence.kernels.mean_embeddings.gram import REFUSED_SHARE
from congruence.kernels.row_blocks.calibration import CalibrationInBlocks
from congruence.kernels.row_blocks.dependence import BlocksInference
from congruence.kernels.row_blocks.scores import VersionAnswer
from congruence.kernels.row_blocks.system import BlockSystem
from congruence.kernels.solvers.base import sampled_norms
from congruence.kernels.solvers.bounds import SolverBounds, bounds_at_reference


@dataclass(frozen=True)
class BlockMeasurement:
    """What a split in blocks says of a version; what it says of a row was written block by block.

    Attributes:
        rows: n.
        mean: mean CCE.
        noise_floor: mean of the noise floor.
        certificate: of CCE.
        uncertainty: standard errors, without the influences of rows.
        expected: what the mean CCE would be if the version were the truth.
        test: of congruence, without its points, where it was asked for.
        landmarks: that the answer stands on.
        output_kernel: k_Y with its resolved bandwidth.
        inference: by what blocks of rows; None where they are independent.
        calibration: given the input, where it was asked for.
        seconds: of each pass, summed over the landmark counts that were tried.
        reason: why so many landmarks, in one sentence.
    """

    rows: int
    mean: float
    noise_floor: float
    certificate: SolverBounds
    uncertainty: CongruenceUncertainty
    expected: ExpectedCongruence | None
    test: CongruenceTest | None
    landmarks: int
    output_kernel: dict[str, Any]
    inference: BlocksInference | None = None
    calibration: CalibrationInBlocks | VersionCalibration | None = None
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    reason: str = ""

    @property
    def solver(self) -> str:
        """In words."""
        return f"Nystrom on {self.landmarks} landmarks, by row blocks"

    @property
    def share(self) -> float:
        """The certificate as a share of the mean CCE, or of its noise floor where that is larger."""
        return self.certificate.in_mean / max(self.mean, self.noise_floor, float(np.finfo(float).tiny))


def certificate(
    system: BlockSystem, answer: VersionAnswer, right_hand_sides: BlockSums, scores: BlockSums
) -> SolverBounds:
    """Bounds on the error of the answer: its residual on sampled rows, rounding, and what the features miss.

    Raises:
        BudgetError: the features miss more than a twentieth of the errors.
    """
    inputs, n, shift = system.inputs, system.inputs.n, system.inputs.shift
    delta = right_hand_sides.rows("residual")
    corner = np.asarray(inputs.kernel(inputs.residual, inputs.landmarks))
    value = (delta - product(corner, answer.weights[:, : answer.rank])) / shift
    residual = delta - scores.added["K Z"] - shift * value
    unread = float(np.linalg.norm(sampled_norms(residual, n)))
    per_root = float64_rounding(n, inputs.landmarks.shape[1], scores.added["weighted norms"])
    if inputs.dtype.itemsize == 4:
        errors = scores.added["rounded"] - scores.added["exact"]
        per_root += largest_share(errors, system.checked_roots, complete=system.complete)
    squares = right_hand_sides.added["squares"]
    rounding = per_root * float(np.sqrt(n * system.mean_diagonal)) + 8.0 * UNIT * float(np.sqrt(squares))
    bounds = bounds_at_reference(
        n=n,
        shift=shift,
        kernel_maximum=system.kernel_maximum,
        read=0.0,
        unread=unread,
        per_root=per_root,
        rounding=rounding,
        kind="sampled",
    )
    features = _feature_bound(system, right_hand_sides, -scores.largest["-value"] - bounds.at_point)
    if "squared weights" in scores.added:
        bounds = bounds.weighted(scores.added["squared weights"] / n)
    return SolverBounds(bounds.at_point + features, bounds.in_mean + features, bounds.kind)


def _feature_bound(system: BlockSystem, sums: BlockSums, smallest: float) -> float:
    """What psi misses of the mean, measured on all targets."""
    n, missed = system.inputs.n, sums.added["missed"]
    whole = sums.added["squares"] + missed
    if sums.largest["sampled"] and missed > REFUSED_SHARE * whole:
        raise BudgetError(
            f"the output kernel's features, chosen on sampled rows, miss {missed / whole:.3g} of the errors of all "
            f"{n:,} targets: they fill a volume that is wide for the kernel. Use a wider output kernel, fewer targets "
            "at once, or downsampling"
        )
    shared, displaced = float(np.sqrt(n * sums.added["shared"])), sums.added.get("displaced", 0.0)
    error = FeatureError(np.array([missed]), shared, np.array([displaced]))
    return error.bound(np.array([smallest]), system.kernel_maximum, system.inputs.shift)


def measurement(
    system: BlockSystem,
    answer: VersionAnswer,
    stated: SolverBounds,
    weights: InfluenceWeights,
    right_hand_sides: BlockSums,
    scores: BlockSums,
    influence: BlockSums,
    inference: BlocksInference | None,
) -> BlockMeasurement:
    """All that the passes say of a version."""
    n, filters = system.inputs.n, system.inputs.filters
    floor = scores.added["squared floor"] / n
    mean, mean_square = scores.added["values"] / n, scores.added["squared values"] / n
    vectors = scores.rows("vectors at points")
    counts = scores.rows("weights at points") if "squared weights" in scores.added else None
    if "sampling variance" in right_hand_sides.added:
        influence.add("sampling variance", right_hand_sides.added["sampling variance"])
    version = answer.version
    uncertainty = weights.uncertainty(
        influence, vectors, scores.rows("smoothed at points"), (mean, mean_square), weights=counts
    )
    expected: ExpectedCongruence | None
    if inference is not None and inference.refused:
        expected = None
    elif version.blocks is None:
        expected = expected_at(vectors, true_coefficients(right_hand_sides, filters), floor, counts)
    else:
        expected = expected_by_blocks(uncertainty)
    return BlockMeasurement(
        rows=n,
        mean=mean,
        noise_floor=scores.added["floor"] / n,
        certificate=stated,
        uncertainty=uncertainty,
        expected=expected,
        test=_test(scores, n, weights.blocks) if version.simulated.tested is not None else None,
        landmarks=len(system.inputs.landmarks),
        output_kernel=version.kernel.describe(),
        inference=inference,
    )


def _test(scores: BlockSums, n: int, blocks: int | None) -> CongruenceTest:
    return judged(scores.added["statistic"] / n, scores.added["null statistics"] / n, blocks=blocks)
