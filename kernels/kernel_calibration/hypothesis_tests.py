"""Tests of H0 "the model is calibrated": P(Y | P_X) = P_X, from the kernel calibration error.

Each returns a p-value and says when it may not be trusted. "asymptotic" is the one to start with; "consistency" is
exact at any n and costs more; "block" is for very large n; "cme" sees what its test locations see; "distribution_free"
is a bound that holds for any law and rejects little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import scipy.special

from congruence.kernels.arrays import require_targets
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, p_value_kind
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.estimators import (
    block_estimates,
    default_block_size,
    pair_estimate,
    witness_values,
)
from congruence.kernels.kernel_calibration.execution import SERIAL, BlockRunner
from congruence.kernels.kernel_calibration.pairs import PairTerms, pair_terms
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel
from congruence.kernels.kernel_calibration.resampling import bootstrap_statistics, consistency_statistics, signed_sums
from congruence.kernels.kernel_calibration.trust import (
    MINIMUM_ROWS,
    RELIABLE_BLOCKS,
    ROWS_PER_LOCATION,
    Trust,
    trust,
)
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Matern, Product, Sum
from congruence.kernels.printed import printed
from congruence.kernels.streams import stream

if TYPE_CHECKING:
    import pandas as pd

Method: TypeAlias = Literal["asymptotic", "block", "distribution_free", "cme", "consistency"]

MINIMUM_BLOCKS = 10
TIE = 1.0 - 1e-9  # all signs the other way round are the observed ones, up to rounding
_REPLICATES = {"asymptotic": 1000, "consistency": 199}


@dataclass(frozen=True, repr=False)
class CalibrationTest:
    """The outcome of a calibration test.

    Attributes:
        method: which test.
        statistic: what is compared with its law under H0; larger is worse.
        p_value: probability of a statistic at least as large if the model is calibrated.
        estimate: estimate of the squared kernel calibration error (for "cme": of the UCME) on the same rows.
        trust: whether the level of the test holds here, and why not.
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    method: Method
    statistic: float
    p_value: float
    estimate: float
    trust: Trust
    blocks: int | None = None

    @property
    def p_value_kind(self) -> str:
        """How far the p-value holds: "exact", a bound, or in the limit of many rows or blocks of rows."""
        of_rows = {"consistency": "exact", "distribution_free": "upper bound"}.get(self.method, "asymptotic in rows")
        return p_value_kind(self.blocks, of_rows)

    def __repr__(self) -> str:
        return printed(self, method=self.method, estimate=self.estimate, statistic=self.statistic,
                       p_value=self.p_value, reliable=self.trust.reliable, reasons=self.trust.reasons)  # fmt: skip

    def to_frame(self) -> pd.DataFrame:
        """A table of one row.

        ``method``, ``statistic``, ``p_value``, ``estimate``: the attributes. ``reliable``: False where the p-value may
        be too small. ``reasons``: what to know before reading it, in one text.
        """
        import pandas as pd

        found = {name: getattr(self, name) for name in ("method", "statistic", "p_value", "estimate")}
        return pd.DataFrame([found | {"reliable": self.trust.reliable, "reasons": "; ".join(self.trust.reasons)}])


def calibration_test(
    y: Any,
    predictive: Distribution,
    *,
    method: Method = "asymptotic",
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
    replicates: int | None = None,
    block_size: int | None = None,
    shuffle: bool = True,
    estimator: Literal["unbiased", "biased"] = "unbiased",
    locations: int = 5,
    test_predictive: Distribution | None = None,
    test_y: Any | None = None,
    seed: int = 0,
    runner: BlockRunner = SERIAL,
    groups: Any | None = None,
    time: Any | None = None,
) -> CalibrationTest:
    """Test whether n predictive distributions are calibrated for targets y, (n,) or (n, q).

    Args:
        predictive: n predictive distributions.
        y: targets.
        method: "asymptotic" (bootstrap of the degenerate U-statistic, O(n^2 replicates)), "block" (t-test of block
            estimates), "distribution_free" (Hoeffding's and McDiarmid's bounds), "cme" (Hotelling's test at test
            locations) or "consistency" (targets redrawn from the predictions).
        prediction_kernel: k_P; Wasserstein() by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        replicates: bootstrap samples (1000) or drawn data sets (199).
        block_size: rows of a block for "block"; floor(sqrt(n)) by default.
        shuffle: for "block": deal rows to blocks at random; False makes blocks of consecutive rows.
        estimator: for "distribution_free".
        locations: for "cme" without given locations: this many rows are held out, chosen by the seed.
        test_predictive: predictions of the test locations of "cme".
        test_y: targets of the test locations of "cme".
        seed: of every random choice; the same seed gives the same p-value.
        runner: where the pairs are computed; in this process by default.
        groups: one value per row: rows of one group may depend on each other (see ``dependence.blocks``). Only
            "asymptotic" serves them, by one random sign for every block of rows.
        time: as ``groups``, of rows near each other in time.

    Raises:
        InvalidInputError: bad shapes or values, an unknown method, fewer than 10 blocks, an unbounded kernel for
            "distribution_free", or another method than "asymptotic" for rows that depend on each other.
    """
    if method not in ("asymptotic", "block", "distribution_free", "cme", "consistency"):
        raise InvalidInputError(
            f"method: {method!r} is unknown; choose 'asymptotic', 'block', 'distribution_free', 'cme' or 'consistency'"
        )
    count = _REPLICATES.get(method, 0) if replicates is None else replicates
    if int(count) != count or (method in _REPLICATES and count < 19):
        raise InvalidInputError(f"replicates: {count}, expected a whole number of at least 19 (p-values of 0.05)")
    dependence = RowDependence.of(len(predictive), groups=groups, time=time)
    if dependence is not None and method != "asymptotic":
        raise InvalidInputError(
            f"method: {method!r} takes rows as independent; with groups or time use method='asymptotic'"
        )
    if method == "cme":
        held = (test_predictive, test_y, locations)
        return _mean_embedding_test(predictive, y, held, prediction_kernel, output_kernel, seed)
    terms = pair_terms(predictive, y, prediction_kernel, output_kernel)
    if method == "asymptotic":
        blocks = version_blocks(dependence, require_targets(y, "y"), predictive)
        return asymptotic_test(terms, int(count), seed, runner, blocks=blocks)
    if method == "block":
        return block_test(terms, block_size, seed, runner, shuffle=shuffle)
    if method == "distribution_free":
        return _distribution_free_test(terms, estimator, runner)
    return _consistency_test(terms, predictive, require_targets(y, "y"), int(count), seed, runner)


def asymptotic_test(
    terms: PairTerms,
    replicates: int = _REPLICATES["asymptotic"],
    seed: int = 0,
    runner: BlockRunner = SERIAL,
    *,
    blocks: DependentBlocks | None = None,
) -> CalibrationTest:
    """n SKCE tends to a weighted sum of centred chi-squares; its law by the bootstrap of Arcones and Gine (1992).

    ``calibration_test(method="asymptotic")`` on terms that are there already (``pair_terms``). Of rows that depend on
    each other within ``blocks``, its law is that of one random sign for every block (a wild bootstrap; Chwialkowski,
    Sejdinovic and Gretton 2014), and the statistic has the pairs within blocks, which no sign changes.
    """
    estimate = pair_estimate(terms, runner)
    if blocks is not None:
        sums = signed_sums(terms, blocks, replicates, seed, runner) / terms.n
        p_value = _rank(sums[0] * TIE, sums[1:])
        return CalibrationTest("asymptotic", float(sums[0]), p_value, estimate, trust(terms, []), blocks.count)
    statistic = terms.n / (terms.n - 1) * estimate
    drawn = bootstrap_statistics(terms, replicates, seed, runner)
    doubts = []
    if terms.n < MINIMUM_ROWS:
        doubts.append(
            f"{terms.n} rows are few for an asymptotic law (from {MINIMUM_ROWS} on): use method='consistency'"
        )
    return CalibrationTest("asymptotic", statistic, _rank(statistic, drawn), estimate, trust(terms, doubts))


def _consistency_test(
    terms: PairTerms, predictive: Distribution, y: Any, replicates: int, seed: int, runner: BlockRunner
) -> CalibrationTest:
    """Under H0 targets drawn from the predictions are as good as the real ones: a Monte-Carlo test, valid at any n."""
    estimate = pair_estimate(terms, runner)
    drawn = consistency_statistics(terms, predictive, y, replicates, seed, runner)
    notes = []
    if terms.target_kernel_is_fitted:
        notes.append("the target kernel was read off the targets: the level is exact for a kernel given beforehand")
    return CalibrationTest("consistency", estimate, _rank(estimate, drawn), estimate, trust(terms, [], notes))


def _rank(statistic: float, drawn: Any) -> float:
    return float((1 + np.sum(drawn >= statistic)) / (len(drawn) + 1))


def block_test(
    terms: PairTerms,
    block_size: int | None = None,
    seed: int = 0,
    runner: BlockRunner = SERIAL,
    *,
    shuffle: bool = True,
) -> CalibrationTest:
    """Under H0 block estimates are independent with mean zero (Widmann et al. 2021, appendix B.3).

    ``calibration_test(method="block")`` on terms that are there already (``pair_terms``).

    Raises:
        InvalidInputError: fewer than 10 blocks.
    """
    size = default_block_size(terms.n) if block_size is None else block_size
    if terms.n // max(size, 1) < MINIMUM_BLOCKS:
        raise InvalidInputError(
            f"block_size: {size} rows leave {terms.n // max(size, 1)} blocks of the {terms.n} rows; the test needs at "
            f"least {MINIMUM_BLOCKS} (it rejects calibrated models with fewer): use smaller blocks or "
            "method='asymptotic'"
        )
    values = block_estimates(terms, size, seed, runner, shuffle=shuffle)
    estimate, spread = float(values.mean()), float(values.std(ddof=1))
    # Student's law instead of the normal one: the spread is itself estimated from the blocks.
    statistic = float(np.sqrt(len(values)) * estimate / spread) if spread > 0 else 0.0
    p_value = float(scipy.special.stdtr(len(values) - 1, -statistic))
    doubts = []
    if len(values) < RELIABLE_BLOCKS:
        doubts.append(
            f"{len(values)} blocks are few for a law of means of skewed estimates (from {RELIABLE_BLOCKS} on): use "
            "smaller blocks or method='asymptotic'"
        )
    return CalibrationTest("block", statistic, p_value, estimate, trust(terms, doubts))


def _distribution_free_test(terms: PairTerms, estimator: str, runner: BlockRunner) -> CalibrationTest:
    """With B = 2 sup k: exp(-floor(n/2) (est/B)^2 / 2) unbiased, exp(-max(0, sqrt(n est/B) - 1)^2 / 2) biased."""
    bound = 2.0 * kernel_supremum(terms.output_kernel)
    if estimator == "biased":
        estimate = pair_estimate(terms, runner, biased=True)
        statistic = max(0.0, float(np.sqrt(terms.n * estimate / bound)) - 1.0)
    elif estimator == "unbiased":
        estimate = pair_estimate(terms, runner)
        # One-sided: an estimate below zero is no evidence against calibration.
        statistic = float(np.sqrt(terms.n // 2)) * max(0.0, estimate) / bound
    else:
        raise InvalidInputError(f"estimator: {estimator!r} has no bound; choose 'unbiased' or 'biased'")
    notes = ["an upper bound that holds for every law: not rejecting says little"]
    p_value = float(np.exp(-(statistic**2) / 2.0))
    return CalibrationTest("distribution_free", statistic, p_value, estimate, Trust(True, tuple(notes)))


def kernel_supremum(kernel: Kernel) -> float:
    """sup k(y, y), of kernels that are bounded and never negative.

    Raises:
        InvalidInputError: no finite bound is known.
    """
    if isinstance(kernel, (RBF, Laplacian, Matern)):
        return 1.0
    if isinstance(kernel, Sum):
        return float(sum(kernel_supremum(part) for part in kernel.parts))
    if isinstance(kernel, Product):
        return float(np.prod([kernel_supremum(part) for part in kernel.parts]))
    raise InvalidInputError(
        f"output_kernel: {type(kernel).__name__} has no finite bound, which method='distribution_free' needs; use a "
        "bounded kernel such as RBF, or method='asymptotic'"
    )


def _mean_embedding_test(
    predictive: Distribution,
    y: Any,
    held: tuple[Distribution | None, Any | None, int],
    prediction_kernel: PredictionKernel | None,
    output_kernel: Kernel | None,
    seed: int,
) -> CalibrationTest:
    """Hotelling's T^2 of the witness values at m locations, n m' C^-1 m (Widmann et al. 2021, appendix C.3)."""
    y = require_targets(y, "y", len(predictive))
    test_predictive, test_y, locations = held
    if (test_predictive is None) != (test_y is None):
        raise InvalidInputError("test_predictive and test_y: give both or none")
    if test_predictive is None:
        if not 1 <= locations <= len(y) // 3:
            raise InvalidInputError(f"locations: {locations}, expected 1 to a third of the {len(y)} rows")
        order = stream(seed, "test locations").permutation(len(y))
        rest, out = np.sort(order[locations:]), np.sort(order[:locations])
        test_predictive, test_y = predictive[out], y[out]
        predictive, y = predictive[rest], y[rest]
    values = witness_values(predictive, y, test_predictive, test_y, prediction_kernel, output_kernel)
    n, m = values.shape
    if n <= m + 1:
        raise InvalidInputError(f"y: {n} rows for {m} test locations; give more rows or fewer locations")
    mean = values.mean(axis=0)
    spectrum, directions = np.linalg.eigh(np.atleast_2d(np.cov(values, rowvar=False)))
    kept = spectrum > 1e-10 * max(float(spectrum[-1]), np.finfo(np.float64).tiny)
    rank = int(kept.sum())
    statistic = float(n * np.sum((mean @ directions[:, kept]) ** 2 / spectrum[kept])) if rank else 0.0
    # The law of T^2 at finite n; the chi-square of the paper is its limit and rejects too often before it.
    p_value = float(scipy.special.fdtrc(max(rank, 1), n - rank, statistic * (n - rank) / (max(rank, 1) * (n - 1))))
    doubts, notes = [], []
    if n < ROWS_PER_LOCATION * m:
        doubts.append(
            f"{n} rows for {m} locations: the witness values are skewed, so give at least {ROWS_PER_LOCATION} rows per "
            "location, or fewer locations"
        )
    if rank < m:
        notes.append(f"the {m} locations span only {rank} directions: some are equal, or far from every row")
    return CalibrationTest("cme", statistic, p_value, float(np.mean(mean**2)), Trust(not doubts, (*doubts, *notes)))
