"""Rejection curves: what a model's errors are on the rows kept when the least trustworthy ones are withheld."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.errors import InvalidInputError

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
