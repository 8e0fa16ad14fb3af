"""Does the input kernel see anything, and how many points does a conditional mean rest on?

CCE at x is the norm of sum_i a_i(x) Delta_i with a(x) = A^-1 k(x). A kernel that hardly varies, or a lambda that is
too large, makes a(x) the same everywhere: CCE then tests the marginal only. One that is too narrow rests on few points.
"""

from __future__ import annotations

import warnings

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.streams import stream

NEARLY_CONSTANT = 0.01
POINTS = 46  # with 1,035 pairs


class NearlyConstantKernelWarning(UserWarning):
    """The input kernel hardly depends on its inputs, so that CCE hardly depends on x."""


def kernel_variation(x: Array, kernel: Kernel) -> float:
    """Relative standard deviation of k(x, x') over random pairs: near 0 means a kernel that ignores its input."""
    points = x[np.sort(stream(0, "kernel variation").choice(len(x), min(len(x), POINTS), replace=False))]
    if len(points) < 3:
        return float("nan")
    center = kernel.center(points)
    gram = kernel(points if center is None else points - center)
    values = gram[~np.eye(len(gram), dtype=bool)].astype(np.float64)
    mean = float(abs(values.mean()))
    return float((values / mean).std()) if mean > 0 else float("inf")


def warn_if_nearly_constant(variation: float, *, stacklevel: int = 3) -> None:
    """Warn of a kernel that varies so little."""
    if variation < NEARLY_CONSTANT:
        warnings.warn(constant_kernel(variation), NearlyConstantKernelWarning, stacklevel=stacklevel)


def constant_kernel(variation: float) -> str:
    """The warning of a kernel that varies so little."""
    return (
        f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x: inputs "
        "that are (nearly) the same, or unit-norm embeddings with gamma = 1/d, which belongs to raw ones; use "
        "gamma = 1 on unit norm, or check the inputs"
    )
