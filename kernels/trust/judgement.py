r"""Whether withholding helps: rejection curves, and a rule judged by cross-fitting on the labelled split.

The rows of a fold are judged as new inputs are, by the rows of the other folds. The directions U of the split's Gram
matrix depend on no target; of a fold's complement c, U_c' U_c is close to its share of the identity, so that U scaled
by the root of n / n_c are its directions. What the rule would withhold is set beside the rest: score minus its
expectation under the prediction has mean 0 wherever the version is true, however hard the row is to predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, printed, require_targets
from congruence.kernels.dependence.blocks import DependentBlocks, t_quantile
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.engine.targets import TargetErrors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import stream
from congruence.kernels.scores import absolute_error, crps, negative_log_likelihood
from congruence.kernels.trust.local_faults import RowScores, local_faults
from congruence.kernels.trust.rule import WithholdingRule
from congruence.kernels.trust.support import NEIGHBOUR, NeighbourIndex, Whitening, most_rows

SHARES = 100


@dataclass(frozen=True)
class RejectionCurve:
    """Mean loss of the kept rows against the share withheld.

    Attributes:
        withheld: share of rows withheld, (k,), rising from 0.
        threshold: rows with a criterion above this are withheld, (k,).
        kept_loss: mean loss of the rows that stay, (k,).
        random_loss: what withholding at random gives at every share.
        random_low, random_high: central 95 % of random rejection at each share, (k,), by the normal approximation.
    """

    withheld: Array = field(repr=False)
    threshold: Array = field(repr=False)
    kept_loss: Array = field(repr=False)
    random_loss: float
    random_low: Array = field(repr=False)
    random_high: Array = field(repr=False)

    @property
    def gain(self) -> float:
        """Mean of (random - kept) / random over the curve: 0 for a useless criterion, negative for a harmful one."""
        return float(np.mean(self.random_loss - self.kept_loss) / abs(self.random_loss)) if self.random_loss else 0.0


def rejection_curve(criterion: Any, loss: Any, *, shares: int = SHARES, largest: float = 0.99) -> RejectionCurve:
    """Withhold rows by falling ``criterion`` and follow the mean loss of the rest (Young et al. 2025, appendix C.1).

    Args:
        criterion: what rejects a row when large, such as its CCE, (n,).
        loss: what is averaged over the kept rows, (n,).
        shares: points of the curve.
        largest: largest share withheld; at least one row is always kept.

    Raises:
        InvalidInputError: values not finite, lengths that differ, fewer than two rows.
    """
    criterion = require_targets(criterion, "criterion")
    loss = require_targets(loss, "loss", len(criterion))
    n = len(loss)
    if n < 2:
        raise InvalidInputError(f"criterion: {n} row; a rejection curve needs at least two")
    order = np.argsort(criterion, kind="stable")
    running = loss[order]
    np.cumsum(running, out=running)  # of millions of rows each copy counts
    kept = np.unique(np.maximum(1, np.round(n * (1.0 - np.linspace(0.0, largest, shares)))).astype(int))[::-1]
    mean = float(np.mean(loss))
    # The mean of k rows drawn without replacement: variance s^2/k (1 - k/n).
    error = 1.96 * np.sqrt(np.var(loss, ddof=1) / kept * (1.0 - kept / n))
    return RejectionCurve(
        withheld=1.0 - kept / n,
        threshold=criterion[order[kept - 1]],
        kept_loss=running[kept - 1] / kept,
        random_loss=mean,
        random_low=mean - error,
        random_high=mean + error,
    )


FOLDS = 5
JUDGED_ROWS = 20_000
CCE, SPREAD, SUPPORT = "CCE beyond a true version's", "predicted spread", "distance from the labelled rows"
_FEWEST = 10
_ONE_SIDED = 1.96  # 2.5 % for each of two losses


@dataclass(frozen=True)
class LossJudgement:
    """Mean loss of the rows that the rule would withhold, and of the rest; z: the difference in standard errors."""

    withheld: float
    rest: float
    z: float


@dataclass(frozen=True)
class WithholdingJudgement:
    """What withholding does on the labelled split.

    Attributes:
        rows: how many were judged.
        withheld: how many of them the rule would withhold because the version is wrong there.
        losses: by name; empty where hardly any row would be withheld. Without NLL where a target is impossible.
        curves: mean loss against the share withheld, by loss and by what is withheld first.
        impossible: how many targets of the judged rows are impossible under the version.
    """

    rows: int
    withheld: int
    losses: Mapping[str, LossJudgement]
    curves: Mapping[str, Mapping[str, RejectionCurve]] = field(repr=False)
    impossible: int = 0

    def __repr__(self) -> str:
        return printed(self, rows=self.rows, withheld=self.withheld, helps=self.helps)

    @property
    def helps(self) -> bool:
        """Whether the rows that would be withheld are worse than the rest, beyond what the version expects there."""
        return any(self.losses[name].z >= _ONE_SIDED for name in BEYOND if name in self.losses)


def judged_withholding(
    rule: WithholdingRule,
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    errors: TargetErrors,
    scores: RowScores | None,
    inputs: Array,
    blocks: DependentBlocks | None,
    seed: int = 0,
) -> WithholdingJudgement:
    """Judge a rule by cross-fitting of a version on a labelled split; see the module.

    Args:
        rule: what is withheld.
        smoother: k(x)' A^-1 at the rows themselves, in the directions of the split's Gram matrix.
        y: targets.
        predictive: what the version predicts.
        errors: Delta under the kernel of the CCE.
        scores: of the PIT values; None of vector targets.
        inputs: in the encoder's space before it is normalised, (n, d).
        blocks: of rows that may depend on each other; None for independent rows.
        seed: of folds and draws.
    """
    rng, n = stream(seed, "folds that judge withholding"), len(y)
    groups = np.arange(n) if blocks is None else blocks.labels
    fold_of = rng.permutation(np.arange(int(groups.max()) + 1) % FOLDS)[groups]
    judged = np.sort(rng.permutation(n)[:JUDGED_ROWS])
    excess, distance, wrong = np.zeros(n), np.zeros(n), np.zeros(n, bool)
    for fold in range(FOLDS):
        rows, others = judged[fold_of[judged] == fold], np.flatnonzero(fold_of != fold)
        if not len(rows) or len(others) <= NEIGHBOUR:
            continue
        vectors, scale = smoother.analysis, np.float32(np.sqrt(n / len(others)))
        at = SpectralSmoother(vectors[others] * scale, smoother.filters, vectors[rows] * scale)
        smoothed = np.asarray(at(errors.delta[others].astype(np.float32)), dtype=np.float64)
        excess[rows] = np.sum(smoothed**2, axis=1) - at.squared_weights(errors.variance[others])
        faults = local_faults(scores, errors, at, inputs, others, seed, blocks)
        wrong[rows] = faults.wrong(at.synthesis, inputs[rows], rule.wrong)
        near = rng.permutation(others)[: most_rows(inputs.shape[1])]
        white = Whitening.of(inputs[near])
        index = NeighbourIndex.of(white(inputs[near]))
        distance[rows] = index.nearest(white(inputs[rows]), NEIGHBOUR)[0][:, -1]
    law, y = predictive[judged], y[judged]
    spread = np.asarray(law.std())
    criteria = {
        CCE: excess[judged],
        SPREAD: spread if spread.ndim == 1 else np.linalg.norm(spread, axis=1),
        SUPPORT: distance[judged],
    }
    losses = excess_losses(y, law, seed=seed)
    curves = {
        loss: {
            name: rejection_curve(by, values) for name, by in criteria.items() if np.isfinite(by).all() and len(by) > 1
        }
        for loss, values in losses.items()
    }
    chosen = wrong[judged]
    if rule.share is not None:
        largest = np.argsort(-excess[judged], kind="stable")[: round(rule.share * len(judged))]
        chosen = np.isin(np.arange(len(judged)), largest)
    found: dict[str, LossJudgement] = {}
    if _FEWEST <= chosen.sum() <= len(chosen) - _FEWEST:
        found = {name: _compared(values, chosen, judged, blocks) for name, values in losses.items()}
    impossible = np.isinf(negative_log_likelihood(y, law, infinite="keep")) if law.has_density() else np.zeros(0)
    return WithholdingJudgement(len(judged), int(chosen.sum()), found, curves, int(impossible.sum()))


def _compared(loss: Array, chosen: Array, judged: Array, blocks: DependentBlocks | None) -> LossJudgement:
    """The difference of two means of the judged rows, with its standard error; by blocks of rows where they depend."""
    withheld, rest = float(loss[chosen].mean()), float(loss[~chosen].mean())
    influence = np.where(chosen, (loss - withheld) / chosen.sum(), -(loss - rest) / (~chosen).sum())
    error = float(np.linalg.norm(influence))
    if blocks is not None:
        own = blocks.of_rows(judged)
        error = own.error_of_sum(influence) * t_quantile(own.effective) / t_quantile(None)
    return LossJudgement(withheld, rest, (withheld - rest) / error if error > 0.0 else 0.0)


NLL, CRPS, ERROR = "NLL beyond expected", "CRPS beyond expected", "absolute error"
BEYOND = (NLL, CRPS)
_DRAWS = 16


def excess_losses(y: Array, predictive: Distribution, *, seed: int = 0) -> dict[str, Array]:
    """Losses of n rows by name, (n,) each: NLL and CRPS less their mean over draws from the law, and the plain error.

    NLL is left out of laws without density, and where a target is impossible under its law: no mean is finite then.
    """
    draws = np.asarray(predictive.sample(_DRAWS, seed=stream(seed, "losses that a version expects")), dtype=np.float64)
    found = {}
    if predictive.has_density():
        scores = negative_log_likelihood(y, predictive, infinite="keep")
        expected = -np.mean([predictive.log_prob(draws[:, draw]) for draw in range(_DRAWS)], axis=0)
        if np.isfinite(scores).all() and np.isfinite(expected).all():
            found[NLL] = scores - expected
    expected = np.mean([predictive.crps(draws[:, draw]) for draw in range(_DRAWS)], axis=0)
    found[CRPS] = crps(y, predictive) - expected
    found[ERROR] = absolute_error(y, predictive)
    return {name: np.asarray(loss) for name, loss in found.items() if np.isfinite(loss).all()}
