r"""Standard errors by sums over rows: what all rows add, what each one contributes; one block, or many.

    of every row        U'Delta, |Delta|^2                        -> the fit that residuals are taken from
    of every point      U'e, U'(e / |e|); of every row r r'       -> the derivatives at the rows, leading axes of r
    of every row        its two influences; U'r under drawn signs -> standard errors

See ``influence`` for what they mean. Of rows that depend on each other within blocks, residuals are those of a fit to
other parts of the blocks, and the signs are one a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.congruence.coded_draws import row_codes, sums_by_code, walsh_hadamard
from congruence.kernels.congruence.influence import CongruenceInfluence, CongruenceUncertainty
from congruence.kernels.congruence.residual_axes import axes_of
from congruence.kernels.dependence.blocks import FOLDS, DependentBlocks
from congruence.kernels.gram.spectrum import SpectralSmoother, relative_eigenvalues, validated_filters
from congruence.kernels.gram.thin_products import projected, squares_at, weighted_squares
from congruence.kernels.weights import mean_over

MULTIPLIERS = 200
RIDGES = np.geomspace(1e-6, 1e6, 37)  # relative to the metric's own n lambda
LEAST_FREEDOM = 1e-3  # 1 - h_ii of a row that has a direction to itself, above the rounding of single precision
POINTS = 4096  # that means under drawn signs run over
_TINY = float(np.finfo(float).tiny)


def congruence_uncertainty(
    smoother: SpectralSmoother,
    delta: Array,
    smoothed: Array,
    *,
    sampling_variance: Array | None = None,
    blocks: DependentBlocks | None = None,
) -> CongruenceUncertainty:
    """Influences and standard errors of the mean CCE and of the mean CCE^2, where all rows and points are here.

    Args:
        smoother: k(x)' A^-1 in the leading directions, at m points.
        delta: Delta of the n reference rows, (n, r).
        smoothed: e = k(x)' A^-1 Delta, (m, r).
        sampling_variance: the part of E|Delta_i|^2 that is the Monte-Carlo error of an ensemble, (n,).
        blocks: of rows that depend on each other.
    """
    analysis, synthesis, filters, points = smoother.analysis, smoother.synthesis, smoother.filters, len(smoothed)
    weights = smoother.weights
    sums = BlockSums()
    rows = FittedRows.at(np.arange(len(delta)), blocks)
    add_coefficients(sums, analysis, delta, rows)
    fit = ResidualFit.of(filters, sums, len(delta))
    norms = np.sqrt(np.einsum("ij,ij->i", smoothed, smoothed))
    add_points(sums, synthesis, smoothed, norms, weights)
    add_residuals(sums, fit.residuals(analysis, delta, rows))
    if sampling_variance is not None:
        sums.add("sampling variance", weighted_squares(analysis, sampling_variance))
    count = None if blocks is None else blocks.count
    known = InfluenceWeights.of(filters, weighted_squares(synthesis, weights), fit, sums, points, count)
    columns = known.add_rows(sums, analysis, delta, rows)
    shown = mean_points(points)
    means = mean_over(norms, weights), mean_over(norms**2, weights)
    shown_weights = None if weights is None else weights[shown]
    return known.uncertainty(sums, synthesis[shown], smoothed[shown], means, columns, shown_weights)


@dataclass(frozen=True)
class FittedRows:
    """What fits and signs need to know of some rows.

    Attributes:
        units: rows of one unit have one sign: positions in the split, or blocks of rows that depend on each other.
        folds: of the blocks, by which a row is judged by a fit of other blocks; None of independent rows.
    """

    units: Array = field(repr=False)
    folds: Array | None = field(default=None, repr=False)

    @classmethod
    def at(cls, positions: Array, blocks: DependentBlocks | None) -> FittedRows:
        """Rows at some positions of their split."""
        return cls(positions) if blocks is None else cls(blocks.labels[positions], blocks.folds[positions])


def add_coefficients(sums: BlockSums, vectors: Array, delta: Array, rows: FittedRows) -> None:
    """U'Delta and |Delta|^2 of some rows; of blocks by folds, with U'U."""
    sums.add("squares", float(np.sum(delta**2)))
    if rows.folds is None:
        sums.add("coefficients", projected(vectors, delta))
        return
    inside = [rows.folds == fold for fold in range(FOLDS)]
    sums.add("coefficients", np.stack([projected(vectors[some], delta[some]) for some in inside]))
    sums.add("fold moments", np.stack([weighted_squares(vectors[some]) for some in inside]))


@dataclass(frozen=True)
class ResidualFit:
    """A ridge fit of Delta in the leading directions, from which residuals of rows that it does not know are taken.

    Attributes:
        coefficients: U'Delta, (k, r): of all rows, of which a row's own part is taken off; or of the other folds.
        chosen: filters of the ridge that predicts best, (k,).
    """

    coefficients: Array = field(repr=False)
    chosen: Array = field(repr=False)

    @classmethod
    def of(cls, filters: Array, sums: BlockSums, n: int) -> ResidualFit:
        """From ``add_coefficients`` over all n rows."""
        coefficients, total = sums.added["coefficients"], sums.added["squares"]
        relative = relative_eigenvalues(filters)
        if coefficients.ndim == 2:
            ridges, energy = (np.inf, *RIDGES), np.sum(coefficients**2, axis=1)
            return cls(coefficients, validated_filters(relative, ridges, energy, total, n, least=0.5)[0])
        share = np.maximum(np.trace(sums.added["fold moments"], axis1=1, axis2=2), _TINY)
        lift = 1.0 / np.maximum(1.0 - share / np.sum(share), LEAST_FREEDOM)
        others = lift[:, None, None] * (np.sum(coefficients, axis=0) - coefficients)
        return cls(others, folded_filters(relative, coefficients, others, sums.added["fold moments"], total))

    def residuals(self, vectors: Array, delta: Array, rows: FittedRows) -> Array:
        """Delta_i less its fit from other rows, (rows, r), of some rows U (rows, k) and Delta (rows, r)."""
        if rows.folds is None:
            return leave_one_out(vectors, self.chosen, self.coefficients, delta)
        residuals = np.array(delta, dtype=np.float64)
        for fold, coefficients in enumerate(self.coefficients) if self.chosen.any() else ():
            some = rows.folds == fold
            residuals[some] -= vectors[some] @ (self.chosen[:, None] * coefficients).astype(vectors.dtype)
        return residuals


def add_points(sums: BlockSums, vectors: Array, smoothed: Array, norms: Array, weights: Array | None = None) -> None:
    """U'e and U'(e / |e|) of some points U (m, k) with errors e (m, r) of norms (m,), by their weights of mean 1."""
    if weights is not None:
        smoothed = weights[:, None] * smoothed
    sums.add("smoothed", projected(vectors, smoothed))
    sums.add("directions", projected(vectors, smoothed / np.maximum(norms, _TINY)[:, None]))


def add_residuals(sums: BlockSums, residuals: Array) -> None:
    """The second moment of some rows' residuals."""
    sums.add("residual moment", residuals.T @ residuals)


@dataclass(frozen=True)
class InfluenceWeights:
    """What is needed for the influence of a row, once all points and residuals are summed.

    Attributes:
        filters: F, (k,).
        spread: U'U at the points, (k, k).
        fit: of the residuals.
        axes: leading axes of the residuals, (r, c).
        squared: F U'e, (k, r).
        root: F U'(e / |e|), (k, r).
        own: F U'U F of the points, (k, k).
        points: m.
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    filters: Array = field(repr=False)
    spread: Array = field(repr=False)
    fit: ResidualFit
    axes: Array = field(repr=False)
    squared: Array = field(repr=False)
    root: Array = field(repr=False)
    own: Array = field(repr=False)
    points: int
    blocks: int | None = None

    @classmethod
    def of(
        cls, filters: Array, spread: Array, fit: ResidualFit, sums: BlockSums, points: int, blocks: int | None = None
    ) -> InfluenceWeights:
        """From ``add_points`` over all points and ``add_residuals`` over all rows."""
        moment = sums.added["residual moment"]
        return cls(
            filters,
            spread,
            fit,
            axes_of(moment),
            (filters[:, None] * sums.added["smoothed"]).astype(np.float32),
            (filters[:, None] * sums.added["directions"]).astype(np.float32),
            (filters[:, None] * spread * filters).astype(np.float32),
            points,
            blocks,
        )

    def add_rows(self, sums: BlockSums, vectors: Array, delta: Array, rows: FittedRows) -> dict[str, Array]:
        """The columns ``influence`` and ``influence_squared`` of some rows, whose residuals under signs are added."""
        residuals = self.fit.residuals(vectors, delta, rows)
        # The derivative has a row's product with itself, |r_i|^2, twice, and the mean square has it once.
        own = squares_at(vectors, self.own) * np.einsum("ij,ij->i", residuals, residuals)
        squared = np.einsum("ij,ij->i", (vectors @ self.squared).astype(np.float64), residuals)
        root = np.einsum("ij,ij->i", (vectors @ self.root).astype(np.float64), residuals)
        noise = (residuals @ self.axes).astype(np.float32)
        left_out = np.maximum(np.sum(residuals**2, axis=1) - np.sum(noise**2, axis=1, dtype=np.float64), 0.0)
        sums.add("left out", weighted_squares(vectors, left_out))
        # Not the evaluation's seed: two versions compare by the same signs.
        bits = MULTIPLIERS.bit_length()
        sums.add("signed", sums_by_code(vectors, noise, row_codes(rows.units, bits, 0, "signs of residuals"), bits))
        if self.blocks is not None:
            sums.add("root of blocks", np.bincount(rows.units, root, self.blocks))
            sums.add("square of blocks", np.bincount(rows.units, 2.0 * squared - own, self.blocks))
        return {"influence": root / self.points, "influence_squared": (2.0 * squared - own) / self.points}

    def uncertainty(
        self,
        sums: BlockSums,
        vectors: Array,
        smoothed: Array,
        means: tuple[float, float],
        columns: dict[str, Array] | None = None,
        weights: Array | None = None,
    ) -> CongruenceUncertainty:
        """Standard errors from the sums over all rows.

        Args:
            sums: of ``add_rows``, and ``sampling variance`` of ensembles.
            vectors, smoothed: U and e at the points ``mean_points``, (p, k) and (p, r).
            means: of |e| and |e|^2 over all points.
            columns: influences of all rows, where they are here.
            weights: of those points, (p,), where they count unequally.
        """
        filters = self.filters
        observed = (smoothed @ self.axes).astype(np.float32)
        # Of directions by the hundred the noise hardly varies: it stands at its mean.
        constant = squares_at(vectors, filters[:, None] * sums.added["left out"] * filters)
        beside = np.maximum(np.sum(smoothed**2, axis=1) - np.sum(observed**2, axis=1), 0.0)
        drawn = kept_under_signs(sums.added["signed"], filters, MULTIPLIERS)
        roots, squares, noise, kept = means_under_signs(drawn, vectors, observed, beside, constant, weights)
        errors = {"root": float(np.std(roots, ddof=1)), "square": float(np.std(squares, ddof=1))}
        if self.blocks is not None:
            for name, error in errors.items():
                first_order = float(np.linalg.norm(sums.added[f"{name} of blocks"])) / self.points
                errors[name] = float(np.sqrt((1.0 - np.sqrt(kept)) * error**2 + np.sqrt(kept) * first_order**2))
        known_by = 1.0 if self.blocks is None else float(np.sqrt(self.blocks / (self.blocks - 1.0)))
        chance = 0.0
        if "sampling variance" in sums.added:
            chance = float(np.sum(filters[:, None] * sums.added["sampling variance"] * filters * self.spread))
        known = {"influence": np.empty(0), "influence_squared": np.empty(0)} if columns is None else columns
        mean, mean_square = means
        return CongruenceUncertainty(
            CongruenceInfluence(
                mean_square - chance / self.points, mean, known["influence_squared"], known["influence"], noise
            ),
            standard_error=known_by * errors["root"],
            squared_standard_error=known_by * errors["square"],
            noise_standard_error=known_by * float(np.std(noise, ddof=1)),
            blocks=self.blocks,
            noise_means=None if self.blocks is None else norms_of_noise(drawn, vectors, constant, weights),
        )


def folded_filters(relative: Array, coefficients: Array, others: Array, moments: Array, total: float) -> Array:
    """Filters (k,) of the ridge that predicts each fold best from the others, zeros where none predicts at all.

    Args:
        relative: eigenvalues over the metric's own n lambda, (k,).
        coefficients: U'Delta of each fold, (folds, k, r).
        others: of the other folds, on the scale of all rows, (folds, k, r).
        moments: U'U of each fold, (folds, k, k).
        total: |Delta|^2.
    """
    best, chosen = total, np.zeros_like(relative)
    for ridge in RIDGES:
        tried = relative / (relative + ridge)
        fit = tried[:, None] * others
        missed = total - 2.0 * float(np.sum(coefficients * fit)) + float(np.sum(fit * (moments @ fit)))
        if missed < best:
            best, chosen = missed, tried
    return chosen


def norms_of_noise(drawn: Array, synthesis: Array, constant: Array, weights: Array | None = None) -> Array:
    """Mean |s_b| over some points for every draw of the signs, (B,): the mean CCE if the version were the truth.

    Args:
        drawn, synthesis, constant, weights: see ``means_under_signs``.
    """
    means = np.empty(len(drawn))
    for number, coefficients in enumerate(drawn):
        values = synthesis @ coefficients
        means[number] = mean_over(np.sqrt(np.einsum("ij,ij->i", values, values) + constant), weights)
    return means


def leave_one_out(analysis: Array, chosen: Array, coefficients: Array, delta: Array) -> Array:
    """Leave-one-out residuals (rows, r) of some rows U (rows, k) and Delta (rows, r), by the fit of all."""
    fit = analysis @ (chosen[:, None] * coefficients).astype(analysis.dtype)
    leverage = np.einsum("ij,j,ij->i", analysis, chosen, analysis)
    return np.asarray((delta - fit) / np.maximum(1.0 - leverage, LEAST_FREEDOM)[:, None])


def kept_under_signs(sums: Array, filters: Array, count: int) -> Array:
    """What the smoother keeps under each of ``count`` draws of the rows' signs, (count, k, c), from ``sums_by_code``.

    Any two draws are independent (``coded_draws``). That of g = 0, which leaves every sign as it is, is not among them.
    """
    drawn = walsh_hadamard(np.asarray(sums, dtype=np.float32))[1 : count + 1]
    drawn *= filters[:, None]
    return drawn


def means_under_signs(
    drawn: Array, synthesis: Array, observed: Array, beside: Array, constant: Array, weights: Array | None = None
) -> tuple[Array, Array, Array, float]:
    """Mean CCE, mean CCE^2 and mean |s_b|^2 over some points for every draw of the signs, (B,) each.

    And the share of the observed squares that is not noise.

    Args:
        drawn: what the smoother keeps of the residuals under drawn signs, in their leading axes, (B, k, c).
        synthesis: U at the points, (p, k).
        observed: e at the points in those axes, (p, c).
        beside: |e|^2 outside of them, (p,).
        constant: expected square of the noise outside of them, (p,).
        weights: of the points, (p,), where they count unequally.
    """
    multipliers = len(drawn)
    counts = np.ones(len(observed)) if weights is None else weights / np.mean(weights)
    moment = synthesis.T @ (synthesis if weights is None else synthesis * counts.astype(synthesis.dtype)[:, None])
    of_noise = np.array([np.sum(part * (moment @ part)) for part in drawn], dtype=np.float64) + counts @ constant
    signal = float(counts @ (np.sum(observed**2, axis=1, dtype=np.float64) + beside))
    # Of e = b + s, E|e|^2 = |b|^2 + E|s|^2: what is left of e without its noise.
    kept = max(0.0, 1.0 - float(np.mean(of_noise)) / signal) if signal > 0.0 else 0.0
    signal_kept, around = np.float32(np.sqrt(kept)) * observed, kept * beside + constant
    means, squares = np.empty(multipliers), np.empty(multipliers)
    for number, coefficients in enumerate(drawn):
        values = synthesis @ coefficients
        values += signal_kept
        square = np.einsum("ij,ij->i", values, values) + around
        means[number], squares[number] = mean_over(np.sqrt(square), weights), mean_over(square, weights)
    return means, squares, of_noise / len(observed), kept


def mean_points(n: int) -> Array:
    """Evenly spaced points over which means under drawn signs run."""
    return np.linspace(0, n - 1, min(n, POINTS)).astype(np.intp)
