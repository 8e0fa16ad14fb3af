"""At which scale of the targets is congruence judged? The bandwidth of k_Y decides which errors can be seen.

The papers' gamma = 1 / (2 var y) sees errors of the order of the targets' spread. Where x explains nearly all of it, a
model that is several times overconfident passes. The residual scale is that of y given x; the sum over scales covers
both. Which one was used is part of a protocol.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from congruence.kernels.arrays import require_targets
from congruence.kernels.bandwidths import OutputScale, scaled_rbf, variance_gamma
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.spectrum import residual_variance
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol

SCALES: tuple[OutputScale, ...] = get_args(OutputScale)
FINEST = 1e-4  # of var(y): a residual variance below it is taken as this much


def output_kernel(
    scale: OutputScale | EvaluationProtocol, y: Any, prepared: PreparedCongruence | None = None
) -> Kernel:
    """k_Y at a scale, or that of a protocol.

    ``marginal``: RBF with gamma = 1 / (2 var y), ddof 1, as in the papers. ``residual``: gamma = 1 / (2 v), with v the
    variance of y given x by kernel ridge regression in the prepared input kernel, its ridge chosen by generalised
    cross-validation: the same for every model. ``multiscale``: the sum of RBFs at var(y) 4^-k, k = 0..3.

    Raises:
        InvalidInputError: an unknown scale, constant targets, or the residual scale without prepared inputs.
    """
    if isinstance(scale, EvaluationProtocol):
        return scale.output_kernel or output_kernel(scale.output_scale, y, prepared)
    targets = require_targets(y, "y")
    if scale not in SCALES:
        raise InvalidInputError(f"output scale: unknown {scale!r}; use one of {', '.join(SCALES)}")
    gamma = variance_gamma(targets)
    if scale != "residual":
        return kernel_at_scale(scale, gamma)
    if prepared is None:
        raise InvalidInputError("output scale 'residual' needs the inputs: pass the prepared reference split")
    require_targets(y, "y", prepared.operator.n)
    return kernel_at_scale(scale, gamma, residual_variance(prepared.spectrum, targets))


def kernel_at_scale(scale: OutputScale, gamma: float, residual: float = 0.0) -> Kernel:
    """k_Y at a scale from the papers' gamma = 1 / (2 var y), and for ``residual`` the variance of y given x."""
    if scale == "marginal":
        return RBF(gamma)
    if scale == "multiscale":
        return scaled_rbf(gamma)
    marginal = 1.0 / (2.0 * gamma)
    return RBF(1.0 / (2.0 * float(np.clip(residual, FINEST * marginal, marginal))))
