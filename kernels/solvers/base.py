"""What every solver of A Z = B offers: prepare once, solve many; the state holds all that depends on the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from congruence.kernels.arrays import Array, to_numpy
from congruence.kernels.gram.columns import GramColumns
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.solvers.low_rank import LowRankInverse
from congruence.kernels.streams import stream

NormKind = Literal["computed", "sampled"]


def weakest_kind(kinds: Iterable[NormKind]) -> NormKind:
    """The weakest of several ways to know a norm: one part that is sampled makes all of it so."""
    return "sampled" if "sampled" in kinds else "computed"


@dataclass(frozen=True)
class Solution:
    """Z with A Z = B up to a residual whose norm is known.

    Attributes:
        value: Z, (n, r).
        residual: the part of B - A Z that was computed, (n, r): all of it, or zeros where only its norm is known.
        iterations: passes over the Gram matrix that this solve made.
        seconds: wall time of this solve.
        projected_bytes: peak memory that the solver announced for its state and this solve.
        unread_norms: norms of the columns of the part of B - A Z that was not computed, (r,); None if there is none.
        norm_kind: how ||B - A Z|| is known: computed, or sampled (random rows, plus three standard errors); either for
            K as the arithmetic made it.
        dtype: of that arithmetic: the residual is known up to the rounding of K Z in it.
    """

    value: Array = field(repr=False)
    residual: Array = field(repr=False)
    iterations: int
    seconds: float
    projected_bytes: int
    unread_norms: Array | None = field(default=None, repr=False)
    norm_kind: NormKind = "computed"
    dtype: Any = np.float64

    def residual_norm(self, columns: slice = slice(None)) -> float:
        """||B - A Z||_F over some columns (those of one model version)."""
        return float(np.linalg.norm(self.residual[:, columns])) + self.unread_norm(columns)

    def unread_norm(self, columns: slice = slice(None)) -> float:
        """The part of ``residual_norm`` that was not computed."""
        return 0.0 if self.unread_norms is None else float(np.linalg.norm(self.unread_norms[columns]))


@dataclass(frozen=True)
class ResidualSample:
    """Random rows on which the residual of a solution is read, without a pass over the other rows.

    The estimate of ||B - A Z|| is unbiased in the square and gets three standard errors on top; rare rows of very large
    residual can escape it.
    """

    rows: Array = field(repr=False)
    columns: GramColumns = field(repr=False)
    n: int
    shift: float

    @classmethod
    def draw(cls, operator: RegularizedGram, count: int, seed: int) -> ResidualSample:
        """``count`` rows of ``operator``, drawn without replacement."""
        rows = residual_rows(operator.n, count, seed)
        return cls(rows, operator.columns(rows), operator.n, operator.shift)

    def residual(self, value: Any, rhs_rows: Any) -> Any:
        """The sampled rows of B - A Z, (rows, r), from Z (n, r) and the rows B[rows]."""
        return rhs_rows - self.columns.transposed_matmul(value) - self.shift * value[self.rows]

    def column_norms(self, residual: Any) -> Array:
        """Upper estimates of the column norms of B - A Z, (r,), from its sampled rows."""
        return sampled_norms(residual, self.n)


def residual_rows(n: int, count: int, seed: int) -> Array:
    """Sorted numbers of ``count`` random rows of n, on which residuals are read."""
    return np.sort(stream(seed, "residual rows").choice(n, min(count, n), replace=False))


def sampled_norms(residual: Any, n: int) -> Array:
    """Upper estimates of the column norms (r,) of n rows from some of them (rows, r): three standard errors on top."""
    squares = to_numpy(residual) ** 2
    error = 3.0 * np.std(squares, axis=0) / np.sqrt(len(residual))
    return np.asarray(np.sqrt(n * (np.mean(squares, axis=0) + error)))


def certified_error(shift: float, residual_norm: float, kernel_maximum: float) -> float:
    """Bound on |computed CCE(x) - CCE(x)|: sqrt(k(x, x) / (4 n lambda)) ||R||_F, for k(x, x) <= ``kernel_maximum``.

    The error of k(x)'Z is k(x)' A^-1 R. With k(x) = K^(1/2) u, where |u|^2 <= k(x, x) since the Gram matrix of the
    reference points and x is positive semi-definite, |A^-1 k(x)|^2 <= k(x, x) max_t t / (t + n lambda)^2, t >= 0.
    ``shift``: n lambda.
    """
    return float(np.sqrt(kernel_maximum / (4.0 * shift)) * residual_norm)


class Solver(Protocol):
    """``state = solver.prepare(operator)``, then ``solver.solve(state, rhs)`` for many right-hand sides."""

    @property
    def factorizes(self) -> bool:
        """Whether a state holds a factor of A, so that n right-hand sides cost no more than the factor did."""

    def prepare(self, operator: RegularizedGram) -> Any:
        """The state for ``operator``: a factor, a preconditioner, landmarks."""

    def low_rank(self, state: Any) -> LowRankInverse | None:
        """The Nystrom approximation that a state holds, if it holds one."""

    def solve(
        self, state: Any, rhs: Array, *, tolerances: Array | None = None, groups: Sequence[slice] | None = None
    ) -> Solution:
        """Z for A Z = rhs (n, r).

        ``tolerances`` (r,): residual norms that end a column, NaN for the default, which is relative to the norm of the
        right-hand sides. ``groups``: the columns of each model version, whose norm is theirs alone.
        """


def own_columns(columns: int, given: Array | None, groups: Sequence[slice] | None) -> list[Array]:
    """The numbers of the columns of the solver's own tolerance, group by group; all columns are one by default."""
    own = np.ones(columns, dtype=bool) if given is None else np.isnan(given)
    found = [np.arange(columns)[group][own[group]] for group in groups or [slice(0, columns)]]
    return [members for members in found if len(members)]


def column_tolerances(
    rhs: Array, tolerance: float, given: Array | None, groups: Sequence[slice] | None = None
) -> Array:
    """``given``, and where it is None or NaN an even share of ``tolerance`` ||B||_F over those columns of a group.

    Beside a version whose errors are large, another is solved as if it were alone.
    """
    result = np.zeros(rhs.shape[1]) if given is None else given.copy()
    for members in own_columns(rhs.shape[1], given, groups):
        result[members] = tolerance * np.linalg.norm(rhs[:, members]) / np.sqrt(len(members))
    return result
