"""Does the input kernel see anything, and how many points does a conditional mean rest on?

CCE at x is the norm of sum_i a_i(x) Delta_i with a(x) = A^-1 k(x). A kernel that hardly varies, or a lambda that is
too large, makes a(x) the same everywhere: CCE then tests the marginal only. One that is too narrow rests on few points.
"""

from __future__ import annotations

import warnings

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.streams import stream

NEARLY_CONSTANT = 0.01


class NearlyConstantKernelWarning(UserWarning):
    """The input kernel hardly depends on its inputs, so that CCE hardly depends on x."""


def kernel_variation(x: Array, kernel: Kernel, *, pairs: int = 2000, seed: int = 0) -> float:
    """Relative standard deviation of k(x, x') over random pairs: near 0 means a kernel that ignores its input."""
    rng = stream(seed, "kernel variation")
    rows = np.sort(rng.choice(len(x), min(len(x), _sample(pairs)), replace=False))
    return _variation(kernel(x[rows]))


def operator_variation(operator: RegularizedGram, *, pairs: int = 2000, seed: int = 0) -> float:
    """``kernel_variation`` over the reference points of ``operator``, wherever they are."""
    rng = stream(seed, "kernel variation")
    rows = np.sort(rng.choice(operator.n, min(operator.n, _sample(pairs)), replace=False))
    kernel, points = operator.kernel, operator.rows(rows)
    center = kernel.center(points)
    return _variation(kernel(points if center is None else points - center))


def warn_if_nearly_constant(operator: RegularizedGram) -> None:
    """Warn where the kernel of ``operator`` hardly varies over its reference points."""
    variation = operator_variation(operator)
    if variation < NEARLY_CONSTANT:
        warnings.warn(constant_kernel(variation), NearlyConstantKernelWarning, stacklevel=3)


def _sample(pairs: int) -> int:
    return int(np.sqrt(pairs)) + 2


def _variation(gram: Array) -> float:
    if len(gram) < 3:
        return float("nan")
    values = gram[~array_namespace(gram).eye(len(gram), dtype=bool)].astype(np.float64)
    mean = float(abs(values.mean()))
    return float((values / mean).std()) if mean > 0 else float("inf")


def constant_kernel(variation: float) -> str:
    """The warning of a kernel that varies so little."""
    return (
        f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x: inputs "
        "that are (nearly) the same, or unit-norm embeddings with gamma = 1/d, which belongs to raw ones; use "
        "gamma = 1 on unit norm, or check the inputs"
    )
