"""The output kernel that a model states: its bandwidth is read off the predictions, not off the observed targets.

The papers' gamma comes from y, so that a statistic would depend on which targets are the observed ones, and the level
of a test would hold only approximately. A kernel that is a function of the predictions alone treats observed and
simulated targets alike, and the test is exact.
"""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.bandwidths import OutputScale, scaled_rbf, variance_gamma
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.mean_embeddings.residuals import marginal_kernel


def model_output_kernel(y: Array, predictive: Distribution, scale: OutputScale = "marginal") -> Kernel:
    """k_Y at a protocol's scale as the model states it.

    ``marginal``: RBF with gamma = 1 / (2 v), v the variance of a random row's target; ``residual``: v its mean
    variance given x; ``multiscale``: the sum of RBFs at the marginal v 4^-k, k = 0..3. Ensembles use their values and y
    together, which does not tell them apart. Where the model has no variance (heavy tails, one constant), the papers'
    gamma stands in.
    """
    return stated_kernel(*_variances(y, predictive), scale) or marginal_kernel(y)


def stated_kernel(within: float, between: float, scale: OutputScale) -> Kernel | None:
    """k_Y at a scale from the mean variance given x and what the means add to it; None where there is no variance."""
    variance = within if scale == "residual" else within + between
    if not np.isfinite(variance) or variance <= 0.0:
        return None
    gamma = 1.0 / (2.0 * variance)
    return scaled_rbf(gamma) if scale == "multiscale" else RBF(gamma)


def _variances(y: Array, predictive: Distribution) -> tuple[float, float]:
    """Mean variance given x, and what the means add to it, over all targets summed."""
    if isinstance(predictive, Samples):
        pooled = np.concatenate([y[:, None], predictive.values], axis=1)
        within = float(np.sum(np.mean(np.var(pooled, axis=1, ddof=1), axis=0)))
        return within, 1.0 / (2.0 * variance_gamma(pooled.reshape(-1, *pooled.shape[2:]))) - within
    within = float(np.sum(np.mean(predictive.std() ** 2, axis=0)))
    return within, float(np.sum(np.var(predictive.mean(), axis=0)))
