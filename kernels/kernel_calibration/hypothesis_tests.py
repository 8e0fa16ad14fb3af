"""Tests of H0 "the model is calibrated": P(Y | P_X) = P_X, from the kernel calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import scipy.special

from congruence.kernels.arrays import require_targets
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, p_value_kind
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.estimators import block_estimates
from congruence.kernels.kernel_calibration.pairs import PairTerms, pair_terms, quadratic_forms
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.printed import printed
from congruence.kernels.streams import stream

if TYPE_CHECKING:
    import pandas as pd

Method: TypeAlias = Literal["asymptotic", "block"]

MINIMUM_BLOCKS = 10
TIE = 1.0 - 1e-9  # all signs the other way round are the observed ones, up to rounding
REPLICATES = 999


@dataclass(frozen=True, repr=False)
class CalibrationTest:
    """The outcome of a calibration test.

    Attributes:
        method: which test.
        statistic: what is compared with its distribution under H0; larger is worse.
        p_value: probability of a statistic at least as large if the model is calibrated.
        estimate: unbiased estimate of the squared kernel calibration error by the same pairs of rows.
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    method: Method
    statistic: float
    p_value: float
    estimate: float
    blocks: int | None = None

    @property
    def p_value_kind(self) -> str:
        """How far the p-value holds: in the limit of many rows, or of many blocks of rows."""
        return p_value_kind(self.blocks, "asymptotic in rows")

    def __repr__(self) -> str:
        return printed(self, method=self.method, estimate=self.estimate, statistic=self.statistic, p_value=self.p_value)

    def to_frame(self) -> pd.DataFrame:
        """Return a table of one row.

        ``method``, ``statistic``, ``p_value``, ``estimate``: the attributes.
        """
        import pandas as pd

        return pd.DataFrame([{name: getattr(self, name) for name in ("method", "statistic", "p_value", "estimate")}])


def calibration_test(
    y: Any,
    predictive: Distribution,
    *,
    method: Method = "asymptotic",
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
    replicates: int = REPLICATES,
    block_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    groups: Any | None = None,
    time: Any | None = None,
) -> CalibrationTest:
    """Test whether n predictive distributions are calibrated for targets y, (n,) or (n, q).

    Args:
        predictive: n predictive distributions.
        y: targets.
        method: "asymptotic" (all pairs against random signs of the rows, O(n^2 replicates)) or "block" (t-test of block
            estimates, O(n block_size), of less power).
        prediction_kernel: k_P; Wasserstein() by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        replicates: draws of signs, at least 19.
        block_size: rows of a block for "block"; floor(sqrt(n)) by default.
        shuffle: for "block": deal rows to blocks at random; False makes blocks of consecutive rows.
        seed: of every random choice; the same seed gives the same p-value.
        groups: one value per row: rows of one group may depend on each other (see ``dependence.blocks``). Only
            "asymptotic" serves them, by one random sign for every block of rows.
        time: as ``groups``, of rows near each other in time.

    Raises:
        InvalidInputError: bad shapes or values, an unknown method, fewer than 10 blocks, or another method than
            "asymptotic" for rows that depend on each other.
    """
    if method not in ("asymptotic", "block"):
        raise InvalidInputError(f"method: {method!r} is unknown; choose 'asymptotic' or 'block'")
    if int(replicates) != replicates or replicates < 19:
        raise InvalidInputError(f"replicates: {replicates}, expected a whole number of at least 19 (p-values of 0.05)")
    dependence = RowDependence.of(len(predictive), groups=groups, time=time)
    if dependence is not None and method != "asymptotic":
        raise InvalidInputError(
            f"method: {method!r} takes rows as independent; with groups or time use method='asymptotic'"
        )
    terms = pair_terms(predictive, y, prediction_kernel, output_kernel)
    if method == "block":
        return block_test(terms, block_size, seed, shuffle=shuffle)
    blocks = version_blocks(dependence, require_targets(y, "y"), predictive)
    return asymptotic_test(terms, int(replicates), seed, blocks=blocks)


def asymptotic_test(
    terms: PairTerms,
    replicates: int = REPLICATES,
    seed: int = 0,
    *,
    blocks: DependentBlocks | None = None,
    reach: int | None = None,
) -> CalibrationTest:
    """Compare the sum of h_ij over pairs i != j with those of h_ij s_i s_j for random signs s of the rows.

    Under H0 each row's term has mean zero given all others', so that signs leave the limit of the sum as it is, a
    weighted sum of centred chi-squares (a wild bootstrap of a degenerate statistic; Dehling and Mikosch 1994). Rows
    that depend on each other within ``blocks`` have one sign a block (Chwialkowski, Sejdinovic and Gretton 2014), and
    the statistic has the pairs within blocks, which no sign changes.

    With a ``reach`` each row is compared with about so many others (see ``tile_pairs``): O(n reach replicates).
    """
    if blocks is not None:
        signs = blocks.signs(replicates, seed)[blocks.labels]
    else:
        drawn = stream(seed, "signs of rows").integers(0, 2, (terms.n, replicates), dtype=np.int8)
        signs = 2.0 * drawn - 1.0
    sums, pairs = quadratic_forms(terms, np.column_stack([np.ones(terms.n), signs]), reach)
    p_value = float((1 + np.sum(sums[1:] >= sums[0] * TIE)) / (replicates + 1))
    count = None if blocks is None else blocks.count
    return CalibrationTest("asymptotic", float(sums[0]) / terms.n, p_value, float(sums[0] / pairs[0]), count)


def block_test(
    terms: PairTerms, block_size: int | None = None, seed: int = 0, *, shuffle: bool = True
) -> CalibrationTest:
    """Test the mean of the block estimates, which are independent with mean zero under H0 (appendix B.3).

    Raises:
        InvalidInputError: fewer than 10 blocks.
    """
    size = max(2, int(np.sqrt(terms.n))) if block_size is None else block_size
    if terms.n // max(size, 1) < MINIMUM_BLOCKS:
        raise InvalidInputError(
            f"block_size: {size} rows leave {terms.n // max(size, 1)} blocks of the {terms.n} rows; the test needs at "
            f"least {MINIMUM_BLOCKS} (it rejects calibrated models with fewer): use smaller blocks or "
            "method='asymptotic'"
        )
    values = block_estimates(terms, size, seed, shuffle=shuffle)
    estimate, spread = float(values.mean()), float(values.std(ddof=1))
    # Student's t instead of the normal distribution: the spread is itself estimated from the blocks.
    statistic = float(np.sqrt(len(values)) * estimate / spread) if spread > 0 else 0.0
    return CalibrationTest("block", statistic, float(scipy.special.stdtr(len(values) - 1, -statistic)), estimate)
