r"""Is a congruence error real? Monte-Carlo tests of "the model is the truth", for a split and for each of its points.

Under the null hypothesis y*_i ~ f(x_i) is exchangeable with y_i, so for *any* statistic computed alike on observed and
drawn targets

.. math::  p = (1 + \#\{T^*_b \ge T\}) / (B + 1)

is a valid p-value at any n (Dwass 1957; Davison and Hinkley 1997, section 4.2). Only right-hand sides change. The
statistic is the mean CCE over the points, smoothed in the leading directions of the Gram matrix and of the output
features, which costs thin products instead of solves; a solver can be named to have it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, on_card, require_targets, to_numpy
from congruence.kernels.bandwidths import OutputScale
from congruence.kernels.congruence.null_draws import NullDraws, null_draws
from congruence.kernels.congruence.prepared import PreparedCongruence, prepare
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.landmarks import LEADING
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers import Nystrom, Solver
from congruence.kernels.streams import stream
from congruence.kernels.threads import available_threads, map_on_threads

BLOCK_BYTES = 2**26
TIE = 1.0 - 1e-5  # single precision must not make a tie with the observed value look smaller than it


@dataclass(frozen=True)
class CongruenceTest:
    """A Monte-Carlo test of congruence at m points.

    Attributes:
        statistic: T, the mean over the points of the smoothed error of the observed targets.
        p_value: of the whole split; at least 1 / (draws + 1).
        point_p_values: of each point's neighbourhood, (m,), under "the model is the truth everywhere".
        point_statistics: the smoothed error at each point, (m,).
        null_statistics: T* of the drawn targets, (draws,).
    """

    statistic: float
    p_value: float
    point_p_values: Array = field(repr=False)
    point_statistics: Array = field(repr=False)
    null_statistics: Array = field(repr=False)

    @property
    def expected(self) -> float:
        """What the statistic would be on average if the model were the truth: the mean of the null statistics."""
        return float(np.mean(self.null_statistics))

    @property
    def band(self) -> tuple[float, float]:
        """Where the statistic lies in 95 of 100 splits if the model is the truth."""
        low, high = np.quantile(self.null_statistics, (0.025, 0.975))
        return float(low), float(high)

    @property
    def draws(self) -> int:
        """Number of simulated sets of targets B."""
        return len(self.null_statistics)

    def significant_points(self, level: float = 0.05) -> Array:
        """Points around which the model is wrong, with a false discovery rate of at most ``level``: (m,) booleans.

        What is tested at a point is the smoothed error there against a model that is the truth *everywhere*: a point
        next to a region where the model is wrong is smoothed from that region's targets too, and may be found though
        the model is right at the point itself. Read them as places to look around, not as verdicts on single points.
        """
        return benjamini_hochberg(self.point_p_values) <= level


def benjamini_hochberg(p_values: Array) -> Array:
    """Adjusted p-values (q-values): rejecting where q <= level keeps the false discovery rate at ``level``.

    q_(i) = min over j >= i of m p_(j) / j (Benjamini and Hochberg 1995). Valid for p-values that are independent or
    positively dependent, as those of neighbouring points are.

    Raises:
        InvalidInputError: not a vector of probabilities.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise InvalidInputError("p_values: expected a vector of probabilities inside [0, 1]")
    order = np.argsort(p)[::-1]
    scaled = p[order] * len(p) / np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return adjusted


def congruence_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    draws: int = 999,
    seed: int = 0,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    solver: Solver | None = None,
) -> CongruenceTest:
    """Test whether targets y could be draws from ``predictive``, given the inputs x.

    Args:
        x: reference inputs (n, d).
        y: their targets, (n,) or (n, q).
        predictive: the model's predictive distributions at x, n rows. ``Samples`` count as draws from the model's law.
        draws: simulated sets of targets B; the smallest p-value is 1 / (B + 1).
        seed: of the draws.
        query: points (m, d) at which to evaluate; by default x itself.
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF at the marginal variance that the model states, which makes the test exact.
            The papers' bandwidth is read from y, and the level then holds up to O(1 / n).
        regularization: lambda.
        solver: compute every statistic with it; by default in the leading directions of 400 landmarks.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value; or no draws.
    """
    quick = Nystrom(LEADING) if solver is None else solver
    prepared = prepare(x, query=query, input_kernel=input_kernel, regularization=regularization, solver=quick)
    versions = {"": predictive}
    return congruence_tests(
        prepared, y, versions, draws=draws, seed=seed, output_kernel=output_kernel, exact=solver is not None
    )[""]


def congruence_tests(
    prepared: PreparedCongruence,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    draws: int = 999,
    seed: int = 0,
    output_kernel: Kernel | None = None,
    output_scale: OutputScale = "marginal",
    exact: bool = False,
    roots: Array | None = None,
) -> dict[str, CongruenceTest]:
    """The test of many model versions on one prepared split; see ``congruence_test``.

    Args:
        prepared: the reference split, from ``prepare``.
        y: its targets, (n,) or (n, q).
        versions: predictive distributions by version.
        draws, seed, output_kernel: see ``congruence_test``.
        output_scale: of each model's own kernel, where no ``output_kernel`` is given.
        exact: compute every statistic with the prepared solver, at ``draws`` times the price of an evaluation.
        roots: of the weights of the reference points, (n,), where they count unequally (see ``weighting.Reference``).
    """
    if draws < 1:
        raise InvalidInputError(f"draws: {draws}; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %")
    y = require_targets(y, "y", prepared.operator.n)
    if exact:
        smooth: Callable[[Any], Any] = lambda rhs: prepared.smooth(np.asarray(rhs, dtype=np.float64))[0]  # noqa: E731
        threads = 1
    elif prepared.operator.has_card:
        smooth, threads = _placing(prepared.smoother.placed()), available_threads()
    else:
        smooth = prepared.smoother
        threads = available_threads()
    weighted = smooth if roots is None else _weighted(smooth, roots)
    results = {}
    for name, predictive in versions.items():
        delta = null_draws(y, predictive, output_kernel, scale=output_scale)
        results[name] = _test(delta, weighted, draws, seed, threads)
    return results


def _placing(smooth: Callable[[Any], Any]) -> Callable[[Array], Any]:
    """``smooth`` of host arrays on the card: targets are drawn by the host, whose streams say which they are."""
    return lambda rhs: smooth(on_card(rhs))


def _weighted(smooth: Callable[[Array], Any], roots: Array) -> Callable[[Array], Any]:
    column = roots.astype(np.float32)[:, None]
    return lambda rhs: smooth(column * rhs)


def _test(delta: NullDraws, smooth: Callable[[Array], Any], draws: int, seed: int, threads: int) -> CongruenceTest:
    observed = delta.observed()
    observed_points = _point_statistics(smooth(observed), 1)
    point_statistics = to_numpy(observed_points[:, 0])
    statistic = float(np.mean(point_statistics, dtype=np.float64))
    reached = np.zeros(len(point_statistics), dtype=np.int64)
    null = np.empty(draws)
    lock = Lock()
    per_block = int(np.clip(BLOCK_BYTES // (4 * observed.size), 1, 64))

    def block_of_draws(start: int) -> None:
        count = min(per_block, draws - start)
        drawn = delta.draw(count, stream(seed, "null draws", start))
        values = _point_statistics(smooth(drawn.reshape(len(drawn), -1)), count)
        null[start : start + count] = to_numpy(values.mean(axis=0, dtype=np.float64))
        exceeds = to_numpy((values >= TIE * observed_points).sum(axis=1))
        with lock:
            np.add(reached, exceeds, out=reached)

    map_on_threads(block_of_draws, range(0, draws, per_block), threads)
    p_value = (1 + int(np.count_nonzero(null >= TIE * statistic))) / (draws + 1)
    return CongruenceTest(statistic, p_value, (1 + reached) / (draws + 1), point_statistics, null)


def _point_statistics(smoothed: Any, count: int) -> Any:
    """Norms over the features of ``count`` stacked right-hand sides, (m, count)."""
    xp, values = array_namespace(smoothed), smoothed.reshape(len(smoothed), count, -1)
    return xp.sqrt(xp.einsum("mbr,mbr->mb", values, values))
