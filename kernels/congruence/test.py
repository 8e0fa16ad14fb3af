r"""Is a congruence error real? Monte-Carlo tests of "the model is the truth", for a split and for each of its points.

Under the null hypothesis y*_i ~ f(x_i) is exchangeable with y_i, so for *any* statistic computed alike on observed and
drawn targets

.. math::  p = (1 + \#\{T^*_b \ge T\}) / (B + 1)

is a valid p-value at any n (Dwass 1957; Davison and Hinkley 1997, section 4.2). Only right-hand sides change. The
statistic is the mean CCE over the points, smoothed in the leading directions of the Gram matrix and of the output
features, which costs thin products instead of solves; a solver can be named to have it exactly.

In the leading directions the simulated splits are drawn from pools. A row's observed target and 15 draws from its law
are exchangeable if the model is the truth (an ensemble's target and members are, too), and every simulated split takes
one of the 16 for each row. Which one is the action of a group on the pools, in which the observed split stands for the
identity, and the draws are elements of that group chosen at random: p is exact for any number of them (Hemerik and
Goeman 2018, theorem 2), and all of them together cost a few products (``coded_draws``). The observed target is in one
of 16 rows of a simulated split: of a wrong model the simulated statistics lie a little closer to the observed one.

Draws belong to rows by their position, and the splits of fewer draws are the first ones of more: the p-value does not
depend on where and in what order rows are worked on, and 199 draws are the first 199 of 999.

Rows that depend on each other are not exchangeable with draws one by one. There the simulated splits are the observed
one with a random sign for every block of rows (``signed_splits``), and p holds in the limit of many blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, on_card, require_targets, to_numpy
from congruence.kernels.bandwidths import OutputScale
from congruence.kernels.congruence.coded_draws import ENTRY_BITS, POOL_BITS, SimulatedSplits
from congruence.kernels.congruence.null_draws import (
    NullDraws,
    NullFeatures,
    drawn_targets,
    features_of_split,
    null_draws,
)
from congruence.kernels.congruence.outcome import TIE, CongruenceTest, judged
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.congruence.signed_splits import negated
from congruence.kernels.congruence.simulated import SimulatedVersion
from congruence.kernels.dependence.blocks import DependentBlocks, enlargement
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.landmarks import LEADING
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.solvers import Nystrom, Solver
from congruence.kernels.threads import available_threads, map_on_threads

BLOCK_BYTES = 2**26
TILE_BYTES = 2**23  # of the simulated errors at some points, for one thread
CACHED_BYTES = 2**20  # of these, what is worked on at a time
DRAWS = 999
DRAWS_OF_MANY = 199
ROWS_OF_FEWER_DRAWS = 50_000  # beyond, the test costs a fifth
MANY_ROWS = 10_000  # of a split, beyond which the test smooths in fewer directions
FILTER_OF_MANY = 0.05


def null_draw_count(n: int) -> int:
    """999 simulated sets of targets up to 50,000 rows, and the first 199 of them beyond: p is exact for any number."""
    return DRAWS if n <= ROWS_OF_FEWER_DRAWS else DRAWS_OF_MANY


def congruence_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    draws: int | None = None,
    seed: int = 0,
    query: Any | None = None,
    input_kernel: Kernel,
    output_kernel: Kernel | None = None,
    regularization: float = 0.1,
    solver: Solver | None = None,
    groups: Any | None = None,
    time: Any | None = None,
) -> CongruenceTest:
    """Test whether targets y could be draws from ``predictive``, given the inputs x.

    Args:
        x: reference inputs (n, d).
        y: their targets, (n,) or (n, q).
        predictive: the model's predictive distributions at x, n rows. ``Samples`` count as draws from the model's law.
        draws: simulated sets of targets B; the smallest p-value is 1 / (B + 1). Memory grows with B. By default 999,
            and 199 beyond 50,000 rows.
        seed: of the draws.
        query: points (m, d) at which to evaluate; by default x itself.
        input_kernel: k_X.
        output_kernel: k_Y; by default RBF at the marginal variance that the model states, which makes the test exact.
            The papers' bandwidth is read from y, and the level then holds up to O(1 / n).
        regularization: lambda.
        solver: compute every statistic with it; by default in the leading directions of 400 landmarks.
        groups: one value per row: rows of one group may depend on each other (see ``dependence.blocks``). The p-values
            then hold in the limit of many blocks of rows.
        time: as ``groups``, of rows near each other in time.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value; no draws; or fewer than ten
            groups or runs of time.
    """
    quick = Nystrom(LEADING) if solver is None else solver
    prepared = prepare(
        x, query=query, input_kernel=input_kernel, regularization=regularization, solver=quick, groups=groups, time=time
    )
    versions = {"": predictive}
    return congruence_tests(
        prepared, y, versions, draws=draws, seed=seed, output_kernel=output_kernel, exact=solver is not None
    )[""]


def congruence_tests(
    prepared: PreparedCongruence,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    draws: int | None = None,
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
        draws: see ``congruence_test``.
        seed: see ``congruence_test``.
        output_kernel: see ``congruence_test``.
        output_scale: of each model's own kernel, where no ``output_kernel`` is given.
        exact: compute every statistic with the prepared solver, at ``draws`` times the price of an evaluation.
        roots: of the weights of the reference points, (n,), where they count unequally (see ``weighting.Reference``).
    """
    y = require_targets(y, "y", prepared.operator.n)
    blocks = {name: version_blocks(prepared.dependence, y, law) for name, law in versions.items()}
    if exact:
        count = _checked_draws(draws, len(y))
        return {
            name: _solved_test(
                null_draws(y, predictive, output_kernel, scale=output_scale),
                y,
                predictive,
                prepared,
                roots,
                count,
                seed,
                blocks[name],
            )
            for name, predictive in versions.items()
        }
    smoother = tested_smoother(prepared.smoother)
    synthesis = on_card(smoother.synthesis) if prepared.operator.has_card else None
    return {
        name: smoothed_test(
            smoother,
            y,
            predictive,
            draws=draws,
            seed=seed,
            output_kernel=output_kernel,
            output_scale=output_scale,
            roots=roots,
            synthesis=synthesis,
            blocks=blocks[name],
        )
        for name, predictive in versions.items()
    }


def tested_smoother(smoother: SpectralSmoother) -> SpectralSmoother:
    """The smoother in the directions of ``tested_directions``."""
    return smoother.leading(tested_directions(smoother.filters, len(smoother.analysis)))


def smoothed_test(
    smoother: SpectralSmoother,
    y: Any,
    predictive: Distribution,
    *,
    draws: int | None = None,
    seed: int = 0,
    output_kernel: Kernel | None = None,
    output_scale: OutputScale = "marginal",
    roots: Array | None = None,
    synthesis: Any | None = None,
    blocks: DependentBlocks | None = None,
) -> CongruenceTest:
    """The test of one version wherever the smoother of its split is; see ``congruence_tests``.

    Args:
        smoother: from ``tested_smoother``, from n reference rows to m points.
        y: targets of the n reference rows.
        predictive: of these rows.
        draws, seed, output_kernel, output_scale, roots: see ``congruence_tests``.
        synthesis: that of the smoother, where it is on a card.
        blocks: of rows that depend on each other.
    """
    y = require_targets(y, "y", len(smoother.analysis))
    draws = _checked_draws(draws, len(y))
    features = features_of_split(y, predictive, output_kernel, scale=output_scale)
    kept = coefficients_of_split(smoother, y, predictive, features, draws=draws, seed=seed, roots=roots, blocks=blocks)
    synthesis = smoother.synthesis if synthesis is None else synthesis
    found = errors_at_points(synthesis, kept)
    means = found.totals / len(found.observed)
    count = None if blocks is None else blocks.count
    return judged(float(means[0]), means[1:], found.observed, found.reached, blocks=count)


def _checked_draws(draws: int | None, n: int) -> int:
    count = null_draw_count(n) if draws is None else draws
    if count < 1:
        raise InvalidInputError(f"draws: {count}; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %")
    return count


def tested_directions(filters: Array, n: int) -> int:
    """Leading directions that the test smooths in: all up to 10,000 rows, beyond those that keep at least 5 %.

    A test is exact for any statistic; those left out hold some 1 % of the squared weights and most of the work.
    """
    return len(filters) if n <= MANY_ROWS else max(1, int((filters >= FILTER_OF_MANY).sum()))


@dataclass(frozen=True)
class SimulatedErrors:
    """Smoothed errors at some points.

    Attributes:
        observed: of the observed split, (p,).
        reached: how many of the simulated splits reach it there, (p,).
        expected: the mean of the simulated splits there, (p,).
        roots: their root mean square there, (p,).
        totals: sums over the points, of the observed split and of each simulated one, (1 + draws,).
    """

    observed: Array
    reached: Array
    expected: Array
    roots: Array
    totals: Array

    @classmethod
    def joined(cls, parts: Sequence[SimulatedErrors]) -> SimulatedErrors:
        """Of the points of ``parts`` one after the other."""
        return cls(
            np.concatenate([part.observed for part in parts]),
            np.concatenate([part.reached for part in parts]),
            np.concatenate([part.expected for part in parts]),
            np.concatenate([part.roots for part in parts]),
            np.sum([part.totals for part in parts], axis=0),
        )


def errors_at_points(synthesis: Any, kept: Array) -> SimulatedErrors:
    """Errors at points U (m, k), the host's or a card's, by all threads, from ``coefficients_of_split``."""
    coefficients = kept if array_namespace(synthesis) is np else on_card(kept)
    points, total = max(1, TILE_BYTES // (4 * kept.shape[2])), len(synthesis)

    def at_some(start: int) -> SimulatedErrors:
        some = synthesis[start : start + points]
        return simulated_errors(some, coefficients)

    return SimulatedErrors.joined(map_on_threads(at_some, range(0, max(1, total), points), available_threads()))


def simulated_errors(synthesis: Any, coefficients: Any) -> SimulatedErrors:
    """Errors at points U (p, k) from ``coefficients_of_split``, (r, k, 1 + draws), where these are; host arrays."""
    xp = array_namespace(synthesis)
    draws = coefficients.shape[2]
    # The host's in parts that a core keeps in its own cache, in the same memory one after the other.
    at_once = len(synthesis) if xp is not np else max(1, min(len(synthesis), CACHED_BYTES // (4 * draws)))
    values, smoothed = (xp.empty((at_once, draws), dtype=np.float32) for _ in range(2))
    observed, reached, expected, roots, totals = [], [], [], [], xp.zeros(draws)
    for start in range(0, len(synthesis), max(1, at_once)):
        some = synthesis[start : start + at_once]
        value, each = values[: len(some)], smoothed[: len(some)]
        value[...] = 0.0
        for of_feature in coefficients:
            xp.matmul(some, of_feature, out=each)
            value += xp.multiply(each, each, out=each)
        roots.append(to_numpy(xp.sqrt(value[:, 1:].mean(axis=1, dtype=np.float64))))
        xp.sqrt(value, out=value)
        observed.append(to_numpy(value[:, 0]).copy())
        reached.append(to_numpy((value[:, 1:] >= TIE * value[:, :1]).sum(axis=1)))
        expected.append(to_numpy(value[:, 1:].mean(axis=1, dtype=np.float64)))
        totals += value.sum(axis=0, dtype=np.float64)
    return SimulatedErrors(
        np.concatenate(observed),
        np.concatenate(reached),
        np.concatenate(expected),
        np.concatenate(roots),
        to_numpy(totals),
    )


def coefficients_of_split(
    smoother: SpectralSmoother,
    y: Array,
    predictive: Distribution,
    features: NullFeatures,
    *,
    draws: int,
    seed: int,
    roots: Array | None = None,
    blocks: DependentBlocks | None = None,
) -> Array:
    """What the smoother keeps of the observed split and of each simulated one, where all rows are here."""
    version = SimulatedVersion(None, features, draws, len(smoother.filters), seed, blocks)
    sums = version.sums(smoother, y, predictive, roots=roots, threads=available_threads())
    return version.null_coefficients(sums, smoother.filters)


def _solved_test(
    delta: NullDraws,
    y: Array,
    predictive: Distribution,
    prepared: PreparedCongruence,
    roots: Array | None,
    draws: int,
    seed: int,
    blocks: DependentBlocks | None,
) -> CongruenceTest:
    """The same simulated splits by the prepared solver, some at a time."""
    n = prepared.operator.n
    if blocks is None:
        drawn = drawn_targets(y, predictive, np.arange(n), 2**POOL_BITS - 1, seed)
        chosen = SimulatedSplits(draws, POOL_BITS, ENTRY_BITS, seed).choices(np.arange(n))
        pool = delta.of_values(np.concatenate([y[:, None], drawn], axis=1))
    else:
        observed = delta.observed()
        chosen, pool = negated(blocks, draws, seed), np.stack([observed, -observed], axis=1)
    if roots is not None:
        pool = pool * roots.astype(np.float32)[:, None, None]
    at_once = int(np.clip(BLOCK_BYTES // (8 * pool.shape[0] * pool.shape[2]), 1, 64))
    values = []
    for start in range(0, 1 + draws, at_once):
        rhs = np.take_along_axis(pool, chosen[:, start : start + at_once, None], axis=1)
        smoothed, _ = prepared.smooth(rhs.reshape(n, -1).astype(np.float64))
        parts = smoothed.reshape(len(smoothed), rhs.shape[1], -1)
        values.append(np.sqrt(np.einsum("mbr,mbr->mb", parts, parts)))
    errors = np.concatenate(values, axis=1)
    if blocks is not None:
        counts = blocks.sums(y - predictive.mean()) if blocks.sparse else None
        errors[:, 1:] *= enlargement(blocks.count, counts)
    reached = np.count_nonzero(errors[:, 1:] >= TIE * errors[:, :1], axis=1)
    means = np.mean(errors, axis=0)
    return judged(float(means[0]), means[1:], errors[:, 0], reached, blocks=None if blocks is None else blocks.count)
