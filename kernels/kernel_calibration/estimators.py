r"""The squared kernel calibration error (SKCE) and the unnormalized calibration mean embedding (UCME).

SKCE is the squared maximum mean discrepancy between (P_X, Y) and (P_X, Z) with Z ~ P_X: zero if and only if the model
is calibrated, P(Y | P_X) = P_X (Widmann et al. 2021, definition 3). It conditions on the prediction; the conditional
congruence error conditions on the input.

Tests are of H0 "the model is calibrated".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array, printed, require_targets, require_weights
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, p_value_kind
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.plan import output_kernel_or_marginal
from congruence.kernels.engine.targets import in_cells
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.pairs import TILE, PairTerms, pair_terms, signed_sums, tile_pairs
from congruence.kernels.kernel_calibration.prediction_kernels import PredictionKernel, Wasserstein
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.pit import cell_steps
from congruence.kernels.rng import stream

if TYPE_CHECKING:
    import pandas as pd

Estimator: TypeAlias = Literal["unbiased", "biased", "block"]
_BLOCKS_AT_ONCE = 16


def squared_kernel_calibration_error(
    y: Any,
    predictive: Distribution,
    *,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
    estimator: Estimator = "unbiased",
    block_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    weights: Any | None = None,
) -> float:
    """Return the SKCE of n predictive distributions against targets y, (n,) or (n, q), in units of k_P k_Y.

    - "unbiased": mean of h_ij over i != j; may be negative. O(n^2) time, O(n) memory.
    - "biased": mean of h_ij over all i, j; never negative.
    - "block": mean of the unbiased estimator over floor(n / block_size) blocks, dealt at random unless
      ``shuffle`` is False. O(n block_size); blocks of two are the linear estimator.

    Draws (``Samples``) are compared by k_P together with the target of their row: given the draws alone, few right ones
    that lie high by chance have their target below them. Targets of stated cells, or rounded coarsely, are placed in
    their cells (``engine.targets.in_cells``).

    Args:
        predictive: n predictive distributions.
        y: targets.
        prediction_kernel: k_P; Wasserstein() = exp(-W_2) by default.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        estimator: which of the three.
        block_size: rows of a block, 2 to n; floor(sqrt(n)) by default. Only for "block".
        shuffle: False makes blocks of consecutive rows, as other software does. Only for "block"; rows in an order that
            means something (time, a sorted column) then make blocks that are not alike.
        seed: of the dealing of rows to blocks.
        weights: what each row counts, (n,): h_ij counts w_i w_j. Not for "block".

    Raises:
        InvalidInputError: fewer than two rows, lengths differ, not finite, an unknown estimator or block size, or
            weights that are negative, missing or all 0.
    """
    if estimator not in ("unbiased", "biased", "block"):
        raise InvalidInputError(f"estimator: {estimator!r} is unknown; choose 'unbiased', 'biased' or 'block'")
    if block_size is not None and estimator != "block":
        raise InvalidInputError(f"block_size: {block_size} has no meaning for estimator={estimator!r}; use 'block'")
    if not shuffle and estimator != "block":
        raise InvalidInputError(f"shuffle: False has no meaning for estimator={estimator!r}; use 'block'")
    if weights is not None and estimator == "block":
        raise InvalidInputError("weights: have no meaning for estimator='block'; use 'unbiased' or 'biased'")
    terms = pair_terms(predictive, y, prediction_kernel, output_kernel)
    if estimator == "block":
        return float(np.mean(block_estimates(terms, block_size, seed, shuffle=shuffle)))
    counts = None if weights is None else require_weights(weights, terms.n)
    return pair_estimate(terms, weights=counts, biased=estimator == "biased")


def pair_estimate(
    terms: PairTerms, *, weights: Array | None = None, biased: bool = False, reach: int | None = None
) -> float:
    """Return the mean of h_ij over i != j (Widmann et al. 2021, lemma 2), or ``biased`` over all i, j (lemma 1).

    Under ``weights`` (n,) a pair counts w_i w_j: over all pairs, weight 2 is then the row twice. With a ``reach`` each
    row is compared with about so many others (see ``tile_pairs``), which leaves the estimate unbiased; the biased one
    takes all pairs.

    Raises:
        InvalidInputError: no pair counts.
    """
    counts = np.ones(terms.n) if weights is None else weights
    total = counted = 0.0
    for i, j in tile_pairs(terms.n, None if biased else reach):  # each unordered pair is met once and counts twice
        block, one, two = terms.h(i, j), counts[i], counts[j]
        pairs, twice = float(one.sum() * two.sum()), 2.0
        if i == j:
            np.fill_diagonal(block, 0.0)
            pairs, twice = pairs - float(one @ one), 1.0
        total += twice * float(one @ block @ two)
        counted += twice * pairs
    if biased:  # a squared norm: rounding alone could leave it below zero
        of_rows = counts**2
        return max(total + float(of_rows @ terms.diagonal()), 0.0) / (counted + float(np.sum(of_rows)))
    if np.count_nonzero(counts) < 2:
        raise InvalidInputError("weights: fewer than two rows count; the error compares pairs of them")
    return total / counted


def block_estimates(terms: PairTerms, block_size: int | None = None, seed: int = 0, *, shuffle: bool = True) -> Array:
    """Return the unbiased estimate of each of floor(n / block_size) blocks (lemma 2); rows left over are not used.

    Blocks have floor(sqrt(n)) rows by default: they and their number grow together. Rows are dealt to blocks at random;
    ``shuffle=False`` takes them in their order.

    Raises:
        InvalidInputError: a block size that is not a whole number from 2 to n.
    """
    size = max(2, int(np.sqrt(terms.n))) if block_size is None else block_size
    if int(size) != size or not 2 <= size <= terms.n:
        raise InvalidInputError(f"block_size: {size}, expected a whole number from 2 to the {terms.n} rows")
    size = int(size)
    rows = stream(seed, "blocks of rows").permutation(terms.n) if shuffle else np.arange(terms.n)
    sums = np.zeros(terms.n // size)
    if size > TILE:
        blocks = (rows[block * size : (block + 1) * size] for block in range(len(sums)))
        return np.array([pair_estimate(terms.of_rows(block)) for block in blocks])
    per_tile = min(_BLOCKS_AT_ONCE, TILE // size)  # what lies between two blocks is thrown away
    for first in range(0, len(sums), per_tile):
        tile = rows[first * size : min(first + per_tile, len(sums)) * size]
        h = terms.h(tile, tile).reshape(len(tile) // size, size, len(tile) // size, size)
        within = np.einsum("aiaj->aij", h)
        sums[first : first + per_tile] = within.sum(axis=(1, 2)) - np.einsum("aii->a", within)
    return sums / (size * (size - 1))


def unnormalized_calibration_mean_embedding(
    y: Any,
    predictive: Distribution,
    test_y: Any,
    test_predictive: Distribution,
    *,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> float:
    """Return UCME^2, the mean over test locations t_j of (mean over i of k((p_i, y_i), t_j) - E_Z k((p_i, Z), t_j))^2.

    Widmann et al. 2021, appendix C. O(nm) time for n rows and m test locations (test_predictive_j, test_y_j), which
    must not be chosen by looking at the rows.

    Raises:
        InvalidInputError: lengths differ, or a value is not finite.
    """
    mean = witness_values(predictive, y, test_predictive, test_y, prediction_kernel, output_kernel).mean(axis=0)
    return float(np.mean(mean**2))


def witness_values(
    predictive: Distribution,
    y: Any,
    test_predictive: Distribution,
    test_y: Any,
    prediction_kernel: PredictionKernel | None = None,
    output_kernel: Kernel | None = None,
) -> Array:
    """Return k_P(p_i, p'_j) (k_Y(y_i, y'_j) - E_Z k_Y(Z, y'_j)), (n, m): mean zero over i if calibrated."""
    y = require_targets(y, "y", len(predictive))
    test_y = require_targets(test_y, "test_y", len(test_predictive))
    if y.ndim != test_y.ndim or y.shape[1:] != test_y.shape[1:]:
        raise InvalidInputError(f"test_y: shape {test_y.shape} does not match y of shape {y.shape}")
    kernel = output_kernel_or_marginal(output_kernel, y)
    chosen = Wasserstein() if prediction_kernel is None else prediction_kernel
    coordinates, locations = chosen.coordinates([predictive, test_predictive], kernel)
    y, predictive = in_cells(y, predictive, np.arange(len(y)), 0, cell_steps(y, predictive))
    values = kernel(y, test_y) - predictive.kernel_expectation(kernel, test_y)
    values *= chosen.fitted(coordinates)(coordinates, locations)
    return np.asarray(values)


Method: TypeAlias = Literal["asymptotic", "block"]

MINIMUM_BLOCKS = 10
TIE = 1.0 - 1e-9  # all signs the other way round are the observed ones, up to rounding
MANY_SIGNS = 64
"""Random signs of a draw beyond which they are never all alike, and rounding to single precision breaks no tie."""
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
        signs = blocks.signs(replicates, seed).astype(np.int8)[blocks.labels]
    else:
        signs = stream(seed, "signs of rows").integers(0, 2, (terms.n, replicates), dtype=np.int8)
        signs *= 2
        signs -= 1
    count = None if blocks is None else blocks.count
    precision = np.float32 if (count or terms.n) > MANY_SIGNS else np.float64
    total, pairs, sums = signed_sums(terms, signs, reach, precision)
    p_value = float((1 + np.sum(sums >= total * TIE)) / (replicates + 1))
    return CalibrationTest("asymptotic", total / terms.n, p_value, total / pairs, count)


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
