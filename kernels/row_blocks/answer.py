"""What the sums of all passes say of a version: means, certificate, standard errors, expected band, test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.expected import ExpectedCongruence, expected_at, splits_under_signs
from congruence.kernels.congruence.influence import MULTIPLIERS, kept_under_signs, means_under_signs
from congruence.kernels.congruence.result import excess_interval, excess_over, mean_interval
from congruence.kernels.congruence.test import TIE
from congruence.kernels.errors import BudgetError
from congruence.kernels.gram.rounding import SAFETY, UNIT
from congruence.kernels.mean_embeddings.gram import REFUSED_SHARE
from congruence.kernels.row_blocks.influence import VersionInfluence
from congruence.kernels.row_blocks.inputs import product
from congruence.kernels.row_blocks.scores import VersionAnswer
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.kernels.row_blocks.system import BlockSystem
from congruence.kernels.solvers.base import NormKind, certified_error, sampled_norms
from congruence.kernels.solvers.bounds import bounds_at_reference


@dataclass(frozen=True)
class BlockCertificate:
    """Bounds on |computed - exact| CCE at every point and in its mean, see ``CongruenceResult``."""

    at_point: float
    in_mean: float
    kind: NormKind


@dataclass(frozen=True)
class BlockUncertainty:
    """``CongruenceUncertainty`` without its columns, which the blocks have written.

    Attributes:
        squared_mean: mean CCE^2 less the Monte-Carlo term of a finite ensemble.
        noise: mean |s_b|^2 for each draw of the signs, (B,).
        standard_error, squared_standard_error, noise_standard_error: see ``CongruenceUncertainty``.
    """

    squared_mean: float
    noise: Array = field(repr=False)
    standard_error: float
    squared_standard_error: float
    noise_standard_error: float


@dataclass(frozen=True)
class BlockTest:
    """``CongruenceTest`` without its columns, which the blocks have written."""

    statistic: float
    p_value: float
    null_statistics: Array = field(repr=False)

    @property
    def draws(self) -> int:
        """Number of simulated sets of targets B."""
        return len(self.null_statistics)


@dataclass(frozen=True)
class BlockMeasurement:
    """What a split in blocks says of a version; what it says of a row was written block by block.

    Attributes:
        rows: n.
        mean: mean CCE.
        mean_square: mean of CCE^2.
        noise_floor: mean of the noise floor.
        mean_squared_floor: mean of its square.
        certificate: of CCE.
        uncertainty: standard errors.
        expected: what the mean CCE would be if the version were the truth.
        test: of congruence, where it was asked for.
        solver: in words.
        output_kernel: k_Y with its resolved bandwidth.
    """

    rows: int
    mean: float
    mean_square: float
    noise_floor: float
    mean_squared_floor: float
    certificate: BlockCertificate
    uncertainty: BlockUncertainty
    expected: ExpectedCongruence
    test: BlockTest | None
    solver: str
    output_kernel: dict[str, Any]

    @property
    def excess(self) -> float:
        """See ``CongruenceResult.excess``."""
        return excess_over(self.mean, self.noise_floor)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """See ``CongruenceResult.interval``."""
        return mean_interval(self.mean, self.uncertainty.standard_error, level)

    def excess_interval(self, level: float = 0.95) -> tuple[float, float]:
        """See ``CongruenceResult.excess_interval``."""
        return excess_interval(self.interval(level), self.noise_floor)


def certificate(
    system: BlockSystem, answer: VersionAnswer, right_hand_sides: BlockSums, scores: BlockSums
) -> BlockCertificate:
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
    per_root = UNIT * (system.rounding + n + 8.0) * scores.added["weighted norms"]
    if inputs.dtype.itemsize == 4:
        norms = np.linalg.norm(scores.added["rounded"] - scores.added["exact"], axis=1)
        positive = system.checked_roots > 0.0
        share = float(np.max(norms[positive] / system.checked_roots[positive], initial=0.0))
        per_root += share if system.complete else SAFETY * share
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
    return BlockCertificate(bounds.at_point + features, bounds.in_mean + features, bounds.kind)


def _feature_bound(system: BlockSystem, sums: BlockSums, smallest: float) -> float:
    """``FeatureError.bound`` from its sums: what psi misses, measured on all targets."""
    n, missed = system.inputs.n, sums.added["missed"]
    whole = sums.added["squares"] + missed
    if sums.largest["sampled"] and missed > REFUSED_SHARE * whole:
        raise BudgetError(
            f"the output kernel's features, chosen on sampled rows, miss {missed / whole:.3g} of the errors of all "
            f"{n:,} targets: they fill a volume that is wide for the kernel. Use a wider output kernel, fewer targets "
            "at once, or downsampling"
        )
    weight = certified_error(system.inputs.shift, 1.0, system.kernel_maximum) ** 2
    squared = weight * (missed + float(np.sqrt(n * sums.added["shared"])))
    displaced = float(np.sqrt(weight * sums.added.get("displaced", 0.0)))
    return float(displaced + min(np.sqrt(squared), squared / max(smallest, np.finfo(np.float64).tiny)))


def uncertainty(
    system: BlockSystem,
    known: VersionInfluence,
    right_hand_sides: BlockSums,
    scores: BlockSums,
    influence: BlockSums,
) -> BlockUncertainty:
    """Standard errors from the residuals under drawn signs (``congruence.influence``)."""
    filters, n = system.inputs.filters, system.inputs.n
    assert filters is not None
    synthesis, smoothed = scores.rows("vectors at points"), scores.rows("smoothed at points")
    observed = (smoothed @ known.axes).astype(np.float32)
    left_out = (filters[:, None] * influence.added["left out"] * filters).astype(np.float32)
    constant = np.asarray(np.einsum("jk,jk->j", synthesis @ left_out, synthesis), dtype=np.float64)
    beside = np.maximum(np.sum(smoothed**2, axis=1) - np.sum(observed**2, axis=1), 0.0)
    drawn = kept_under_signs(influence.added["signed"], filters, MULTIPLIERS)
    means, squares, noise = means_under_signs(drawn, synthesis, observed, beside, constant)
    chance = 0.0
    if "sampling variance" in right_hand_sides.added:
        inner = filters[:, None] * right_hand_sides.added["sampling variance"] * filters
        chance = float(np.sum(inner * system.spread)) / n
    return BlockUncertainty(
        scores.added["squared values"] / n - chance,
        noise,
        standard_error=float(np.std(means, ddof=1)),
        squared_standard_error=float(np.std(squares, ddof=1)),
        noise_standard_error=float(np.std(noise, ddof=1)),
    )


def measurement(
    system: BlockSystem,
    answer: VersionAnswer,
    stated: BlockCertificate,
    errors: BlockUncertainty,
    right_hand_sides: BlockSums,
    scores: BlockSums,
) -> BlockMeasurement:
    """All that the passes say of a version."""
    n, filters = system.inputs.n, system.inputs.filters
    assert filters is not None
    floor = scores.added["squared floor"] / n
    drawn = splits_under_signs(right_hand_sides.added["expected"], filters)
    version = answer.version
    return BlockMeasurement(
        rows=n,
        mean=scores.added["values"] / n,
        mean_square=scores.added["squared values"] / n,
        noise_floor=scores.added["floor"] / n,
        mean_squared_floor=floor,
        certificate=stated,
        uncertainty=errors,
        expected=expected_at(scores.rows("vectors at points"), drawn, floor),
        test=None if version.tested is None else _test(scores, n),
        solver=f"Nystrom on {len(system.inputs.landmarks)} landmarks, by row blocks",
        output_kernel=version.kernel.describe(),
    )


def _test(scores: BlockSums, n: int) -> BlockTest:
    statistic, null = scores.added["statistic"] / n, scores.added["null statistics"] / n
    p_value = (1 + int(np.count_nonzero(null >= TIE * statistic))) / (len(null) + 1)
    return BlockTest(statistic, p_value, null)
