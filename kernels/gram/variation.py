"""Does the input kernel see anything, and how many points does a conditional mean rest on?

CCE at x is the norm of sum_i a_i(x) Delta_i with a(x) = A^-1 k(x). A kernel that hardly varies, or a lambda that is
too large, makes a(x) the same everywhere: CCE then tests the marginal only. One that is too narrow rests on few points.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.gram.operator import Operator
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.streams import stream

if TYPE_CHECKING:
    from congruence.kernels.congruence.prepared import PreparedCongruence

NEARLY_CONSTANT = 0.01
FEW_POINTS = 10.0
PROBES = 64


class NearlyConstantKernelWarning(UserWarning):
    """The input kernel hardly depends on its inputs, so that CCE hardly depends on x."""


@dataclass(frozen=True)
class KernelDiagnostics:
    """What a prepared reference split and its kernel can resolve.

    Attributes:
        effective_dimension: tr K A^-1, the number of directions in which conditional means can differ, a constant one
            among them; of a constant kernel k / (k + lambda).
        effective_sample_size: (sum_i a_i(x))^2 / sum_i a_i(x)^2, (m,): the points that an estimate at x rests on; n for
            equal weights, below 1 where positive and negative ones cancel.
        variation: relative standard deviation of k(x, x') over pairs of reference points; NaN for two of them, whose
            one value cannot vary.
        condition_bound: 1 + max k(x, x) / lambda, an upper bound on cond(A).
        reference_rows: n.
    """

    effective_dimension: float
    effective_sample_size: Array = field(repr=False)
    variation: float
    condition_bound: float
    reference_rows: int

    @property
    def nearly_constant(self) -> bool:
        """Whether the kernel ignores its inputs for all practical purposes."""
        return self.variation < NEARLY_CONSTANT

    def findings(self) -> list[str]:
        """What a reader of the numbers should know, in words; empty if nothing stands out."""
        found = []
        if self.nearly_constant:
            found.append(_constant_kernel(self.variation))
        size = float(np.median(self.effective_sample_size))
        if size < FEW_POINTS:
            found.append(
                f"a conditional mean rests on {size:.3g} of {self.reference_rows} reference points in the median: the "
                "noise floor is high; scale the features (to a standard deviation of 1), or use a wider input kernel, "
                "a larger lambda or more reference points"
            )
        return found


def kernel_diagnostics(prepared: PreparedCongruence, *, seed: int = 0) -> KernelDiagnostics:
    """Diagnostics of a prepared split from one solve of 65 right-hand sides, whatever the solver.

    The trace and the squared weights are read with random signs s: E s'(K A^-1)s = tr K A^-1 (Hutchinson 1990) and
    E (a(x)'s)^2 = |a(x)|^2, each with a relative error of sqrt(2/64) per point at most.
    """
    n = prepared.operator.n
    rng = stream(seed, "diagnostic probes")
    signs = rng.choice((-1.0, 1.0), size=(n, PROBES))
    rhs = np.hstack([np.ones((n, 1)), signs])
    smoothed, solution = prepared.smooth(rhs)
    kept = n - prepared.operator.shift * np.einsum("ij,ij->j", signs, solution.value[:, 1:])
    squares = np.mean(smoothed[:, 1:] ** 2, axis=1)
    maximum = float(np.max(prepared.operator.gram_diagonal()))
    return KernelDiagnostics(
        effective_dimension=float(np.mean(kept)),
        effective_sample_size=np.asarray(smoothed[:, 0] ** 2 / np.maximum(squares, np.finfo(float).tiny)),
        variation=operator_variation(prepared.operator, seed=seed),
        condition_bound=1.0 + maximum * n / prepared.operator.shift,
        reference_rows=n,
    )


def kernel_variation(x: Array, kernel: Kernel, *, pairs: int = 2000, seed: int = 0) -> float:
    """Relative standard deviation of k(x, x') over random pairs: near 0 means a kernel that ignores its input."""
    rng = stream(seed, "kernel variation")
    rows = np.sort(rng.choice(len(x), min(len(x), _sample(pairs)), replace=False))
    return _variation(kernel(x[rows]))


def operator_variation(operator: Operator, *, pairs: int = 2000, seed: int = 0) -> float:
    """``kernel_variation`` over the reference points of ``operator``, wherever they are, without their weights."""
    rng = stream(seed, "kernel variation")
    rows = np.sort(rng.choice(operator.n, min(operator.n, _sample(pairs)), replace=False))
    kernel, points = operator.kernel.unweighted(operator.rows(rows))
    center = kernel.center(points)
    return _variation(kernel(points if center is None else points - center))


def warn_if_nearly_constant(operator: Operator) -> None:
    """Warn where the kernel of ``operator`` hardly varies over its reference points."""
    variation = operator_variation(operator)
    if variation < NEARLY_CONSTANT:
        warnings.warn(_constant_kernel(variation), NearlyConstantKernelWarning, stacklevel=3)


def _sample(pairs: int) -> int:
    return int(np.sqrt(pairs)) + 2


def _variation(gram: Array) -> float:
    if len(gram) < 3:
        return float("nan")
    values = gram[~array_namespace(gram).eye(len(gram), dtype=bool)].astype(np.float64)
    mean = float(abs(values.mean()))
    return float((values / mean).std()) if mean > 0 else float("inf")


def _constant_kernel(variation: float) -> str:
    return (
        f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x: inputs "
        "that are (nearly) the same, or unit-norm embeddings with gamma = 1/d, which belongs to raw ones; use "
        "gamma = 1 on unit norm, or check the inputs"
    )
