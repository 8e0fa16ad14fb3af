"""What a prepared reference split and its kernel can resolve."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.gram.variation import NEARLY_CONSTANT, constant_kernel, operator_variation
from congruence.kernels.streams import stream

FEW_POINTS = 10.0
PROBES = 64


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
            found.append(constant_kernel(self.variation))
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
