r"""What each reference row contributes to a mean CCE, and the standard errors that follow: targets are what is random.

Points near each other are smoothed from the same targets, so their CCE values are no sample of independent numbers;
the rows of the reference split are. With e_j = sum_i a_i(x_j) Delta_i, the derivative of a mean over the points with
respect to the outcome of row i, times that outcome's residual r_i, is the row's influence (the infinitesimal
jackknife; Efron 1982, chapter 6):

.. math::  g_i = \frac{2}{m} \sum_j a_{ij} \langle e_j, r_i \rangle  \quad\text{of } \frac1m \sum_j |e_j|^2,
   \qquad  h_i = \frac{1}{m} \sum_j a_{ij} \Big\langle \frac{e_j}{|e_j|}, r_i \Big\rangle
   \quad\text{of } \frac1m \sum_j |e_j|.

One more smoothing gives both; of g_i a row's product with itself is taken off once. r_i is Delta_i less what its
neighbours tell of it, by a ridge fit, scaled to the variance of the noise: the part of the outcome that x does not
explain, with the Monte-Carlo error of a finite ensemble, which is as random.

The sum of their squares is the variance of what is linear in the outcomes, such as the difference of two versions'
squares. It counts twice what is quadratic in their noise: most of a mean CCE^2 near the noise floor, and what two
ensembles' own errors add. Signs drawn for the residuals (a multiplier bootstrap; Wu 1986) tell how much that is: with
s_b = sum_i a_i xi_ib r_i, the variance over b of mean |s_b|^2, or of the difference of two versions' with the same
signs. One version's standard errors are those of e shrunken to what is not noise, plus s_b. All of it runs in the
leading directions of the Gram matrix, by thin products; what the smoother keeps beyond them, much where the kernel is
narrow, is known from the probes of the noise floor (``Beyond``).

All of it is made of sums over rows, one block or many:

    of every row        U'Delta, |Delta|^2                        -> the fit that residuals are taken from
    of every point      U'e, U'(e / |e|); of every row r r'       -> the derivatives at the rows, leading axes of r
    of every row        its two influences; U'r under drawn signs -> standard errors

Of rows that depend on each other within blocks, residuals are those of a fit to other parts of the blocks, and the
signs are one a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array, root_and_square_means
from congruence.kernels.dependence.blocks import FOLDS, DependentBlocks
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.engine.results import CongruenceInfluence, CongruenceUncertainty
from congruence.kernels.engine.system import (
    projected,
    relative_eigenvalues,
    squares_at,
    validated_filters,
    weighted_squares,
)
from congruence.kernels.rng import row_codes, stream, sums_by_code, walsh_hadamard

SUMMED_ROWS = 4096
"""Of a tile where sums of hundreds of codes are added, which take as long for a few rows as for many."""
MULTIPLIERS = 200
RIDGES = np.geomspace(1e-6, 1e6, 37)  # relative to the metric's own n lambda
LEAST_FREEDOM = 1e-3  # share of its noise that a residual keeps, above the rounding of single precision
POINTS = 4096  # that means under drawn signs run over
AXES_ENERGY = 0.998  # of the residuals' features that the multipliers see
MAX_AXES = 256
_LEAST_NORM = 1e-150
_TINY = float(np.finfo(float).tiny)


def add_coefficients(
    sums: BlockSums, vectors: Array, delta: Array, positions: Array, blocks: DependentBlocks | None
) -> None:
    """U'Delta of the rows at some positions of the split; of blocks by folds, with U'U."""
    if blocks is None:
        sums.add("coefficients", projected(vectors, delta))
        return
    inside = [blocks.folds[positions] == fold for fold in range(FOLDS)]
    sums.add("coefficients", np.stack([projected(vectors[some], delta[some]) for some in inside]))
    sums.add("fold moments", np.stack([weighted_squares(vectors[some]) for some in inside]))


@dataclass(frozen=True)
class ResidualFit:
    """A ridge fit of Delta in the leading directions, from which residuals are taken.

    Attributes:
        coefficients: U'Delta, (k, r): of all rows, whose residuals are scaled; or of the other folds.
        chosen: filters of the ridge that predicts best, (k,).
        blocks: of rows that depend on each other, by whose folds a row is judged by a fit of other blocks.
    """

    coefficients: Array = field(repr=False)
    chosen: Array = field(repr=False)
    blocks: DependentBlocks | None = field(default=None, repr=False)

    @classmethod
    def of(cls, filters: Array, sums: BlockSums, n: int, blocks: DependentBlocks | None) -> ResidualFit:
        """From ``add_coefficients`` over all n rows, and |Delta|^2 of them."""
        coefficients, total = sums.added["coefficients"], sums.added["squares"]
        relative = relative_eigenvalues(filters)
        if blocks is None:
            ridges, energy = (np.inf, *RIDGES), np.sum(coefficients**2, axis=1)
            return cls(coefficients, validated_filters(relative, ridges, energy, total, n, least=0.5)[0])
        share = np.maximum(np.trace(sums.added["fold moments"], axis1=1, axis2=2), _TINY)
        lift = 1.0 / np.maximum(1.0 - share / np.sum(share), LEAST_FREEDOM)
        others = lift[:, None, None] * (np.sum(coefficients, axis=0) - coefficients)
        return cls(others, folded_filters(relative, coefficients, others, sums.added["fold moments"], total), blocks)

    def residuals(self, vectors: Array, delta: Array, positions: Array) -> Array:
        """Delta_i less its fit from other rows, (rows, r), of some rows U (rows, k) and Delta (rows, r)."""
        if self.blocks is None:
            return scaled_residuals(vectors, self.chosen, self.coefficients, delta)
        residuals, folds = np.array(delta, dtype=np.float64), self.blocks.folds[positions]
        for fold, coefficients in enumerate(self.coefficients) if self.chosen.any() else ():
            some = folds == fold
            residuals[some] -= vectors[some] @ (self.chosen[:, None] * coefficients).astype(vectors.dtype)
        return residuals


def add_points(sums: BlockSums, vectors: Array, smoothed: Array, norms: Array, weights: Array | None = None) -> None:
    """U'e and U'(e / |e|) of some points U (m, k) with errors e (m, r) of norms (m,), by their weights of mean 1."""
    if weights is not None:
        smoothed = weights[:, None] * smoothed
    sums.add("smoothed", projected(vectors, smoothed))
    # Far from all rows errors are so small that the squares in their norms are 0: they have no direction.
    sums.add("directions", projected(vectors, smoothed / np.where(norms > _LEAST_NORM, norms, np.inf)[:, None]))


def add_residuals(sums: BlockSums, residuals: Array, variance: Array) -> None:
    """The second moment of some rows' residuals, and how their squares vary beside the variance that is stated."""
    squares = np.einsum("ij,ij->i", residuals, residuals)
    sums.add("residual moment", residuals.T @ residuals)
    sums.add("as stated", float(squares @ variance))
    sums.add("squared variance", float(variance @ variance))
    sums.add("fourth powers", float(squares @ squares))


@dataclass(frozen=True)
class Multipliers:
    """What stands for new targets: of each row a b1 + b b2 with independent signs b1 and b2, a^2 + b^2 = 1.

    One sign keeps a residual's length, which new targets do not, and where the kernel is narrow most of an error is the
    row's own. The fourth moment 1 + 4 a^2 b^2 is that of the lengths: |r_i|^4 over the square of what it is on average
    at the variance that the version states. Blocks of rows have one sign each.

    Attributes:
        first, second: a and b.
    """

    first: float
    second: float

    @classmethod
    def of(cls, sums: BlockSums) -> Multipliers:
        """From ``add_residuals`` over all rows."""
        stated, squared, fourth = (sums.added[name] for name in ("as stated", "squared variance", "fourth powers"))
        varying = min(max(0.0, 1.0 - stated**2 / max(squared * fourth, _TINY)), 1.0)
        first = np.sqrt((1.0 + np.sqrt(1.0 - varying)) / 2.0)
        return cls(float(first), float(np.sqrt(1.0 - first**2)))

    @property
    def varying(self) -> float:
        """The variance of the squared multiplier."""
        return 4.0 * (self.first * self.second) ** 2

    def sums(self, vectors: Array, noise: Array, units: Array) -> Array:
        """U'r under drawn multipliers of some rows, by code; see ``sums_by_code``."""
        bits, purpose = MULTIPLIERS.bit_length(), "signs of residuals"
        # Not the evaluation's seed: two versions compare by the same signs.
        total = sums_by_code(vectors, np.float32(self.first) * noise, row_codes(units, bits, 0, purpose), bits)
        if self.second > 0.0:
            codes = row_codes(units, bits, 0, f"further {purpose}")
            total += sums_by_code(vectors, np.float32(self.second) * noise, codes, bits)
        return total


@dataclass(frozen=True)
class Beyond:
    """The noise that the smoother W = L + R keeps beyond its leading directions L, which alone run under multipliers.

    Attributes:
        mean: of |R r|^2 over the points.
        variance: of that mean over new targets.
    """

    mean: float
    variance: float

    @classmethod
    def of(cls, sums: BlockSums, varying: float, rows: int, points: int) -> Beyond:
        """From R z of probes z, summed over points, and ``add_residuals``.

        For z of variances V, E |R z|^2 = tr(R V R') and E (z'R'R z')^2 = |R V R'|^2: but for the rows' own terms half
        the variance of |R r|^2 where all residuals r_i lie on one axis. v_i is that of the version, and scaled.
        """
        moment, scale = (
            sums.added["residual moment"],
            sums.added["as stated"] / max(sums.added["squared variance"], _TINY),
        )
        products, count = scale * sums.added["rest of probes"], len(sums.added["rest of probes"])
        whole = float(np.trace(products)) / count
        pairs = float(np.sum(products**2) - np.sum(np.diagonal(products) ** 2)) / (count * (count - 1))
        own, alike = whole**2 / rows, float(np.sum(moment**2)) / max(float(np.trace(moment)) ** 2, _TINY)
        return cls(whole / points, (2.0 * alike * max(pairs - own, 0.0) + varying * own) / points**2)


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
    """

    filters: Array = field(repr=False)
    spread: Array = field(repr=False)
    fit: ResidualFit
    axes: Array = field(repr=False)
    squared: Array = field(repr=False)
    root: Array = field(repr=False)
    own: Array = field(repr=False)
    points: int
    multipliers: Multipliers
    beyond: Beyond

    @classmethod
    def of(cls, filters: Array, fit: ResidualFit, sums: BlockSums, points: int, rows: int) -> InfluenceWeights:
        """From ``add_points`` over all points and ``add_residuals`` over all ``rows``."""
        moment, spread = sums.added["residual moment"], sums.added["spread"]
        multipliers = Multipliers.of(sums) if fit.blocks is None else Multipliers(1.0, 0.0)
        return cls(
            filters,
            spread,
            fit,
            axes_of(moment),
            (filters[:, None] * sums.added["smoothed"]).astype(np.float32),
            (filters[:, None] * sums.added["directions"]).astype(np.float32),
            (filters[:, None] * spread * filters).astype(np.float32),
            points,
            multipliers,
            Beyond.of(sums, multipliers.varying, rows, points),
        )

    @property
    def blocks(self) -> int | None:
        """How many blocks of rows are taken as independent; None where all rows are."""
        return None if self.fit.blocks is None else self.fit.blocks.count

    def add_rows(self, sums: BlockSums, vectors: Array, delta: Array, positions: Array) -> dict[str, Array]:
        """The columns ``influence`` and ``influence_squared`` of some rows, whose residuals under signs are added."""
        residuals = self.fit.residuals(vectors, delta, positions)
        units = positions if self.fit.blocks is None else self.fit.blocks.labels[positions]  # that have one sign each
        # The derivative has a row's product with itself, |r_i|^2, twice, and the mean square has it once.
        own = squares_at(vectors, self.own) * np.einsum("ij,ij->i", residuals, residuals)
        squared = np.einsum("ij,ij->i", (vectors @ self.squared).astype(np.float64), residuals)
        root = np.einsum("ij,ij->i", (vectors @ self.root).astype(np.float64), residuals)
        noise = (residuals @ self.axes).astype(np.float32)
        left_out = np.maximum(np.sum(residuals**2, axis=1) - np.sum(noise**2, axis=1, dtype=np.float64), 0.0)
        sums.add("left out", weighted_squares(vectors, left_out))
        sums.add("signed", self.multipliers.sums(vectors, noise, units))
        if self.blocks is not None:
            sums.add("root of blocks", np.bincount(units, root, self.blocks))
            sums.add("square of blocks", np.bincount(units, 2.0 * squared - own, self.blocks))
        return {"influence": root / self.points, "influence_squared": (2.0 * squared - own) / self.points}

    def uncertainty(
        self, sums: BlockSums, vectors: Array, smoothed: Array, means: tuple[float, float], weights: Array | None = None
    ) -> CongruenceUncertainty:
        """Standard errors from the sums over all rows; the influences of rows are elsewhere.

        Args:
            sums: of ``add_rows``, and ``sampling variance`` of ensembles.
            vectors, smoothed: U and e at up to ``POINTS`` points, (p, k) and (p, r).
            means: of |e| and |e|^2 over all points.
            weights: of those points, (p,), where they count unequally.
        """
        filters = self.filters
        observed = (smoothed @ self.axes).astype(np.float32)
        # Of directions by the hundred the noise hardly varies: it stands at its mean.
        constant = squares_at(vectors, filters[:, None] * sums.added["left out"] * filters) + self.beyond.mean
        beside = np.maximum(np.sum(smoothed**2, axis=1) - np.sum(observed**2, axis=1), 0.0)
        drawn = kept_under_signs(sums.added["signed"], filters, MULTIPLIERS)
        roots, squares, noise, kept = means_under_signs(drawn, vectors, observed, beside, constant, weights)
        errors = {"root": float(np.std(roots, ddof=1)), "square": float(np.std(squares, ddof=1))}
        if self.blocks is not None:
            for name, error in errors.items():
                first_order = float(np.linalg.norm(sums.added[f"{name} of blocks"])) / self.points
                errors[name] = float(np.sqrt((1.0 - np.sqrt(kept)) * error**2 + np.sqrt(kept) * first_order**2))
        else:
            errors["square"] = float(np.sqrt(errors["square"] ** 2 + self.beyond.variance))
            errors["root"] = float(np.sqrt(errors["root"] ** 2 + self.beyond.variance / (4.0 * max(means[1], _TINY))))
        known_by = 1.0 if self.blocks is None else float(np.sqrt(self.blocks / (self.blocks - 1.0)))
        chance = 0.0
        if "sampling variance" in sums.added:
            chance = float(np.sum(filters[:, None] * sums.added["sampling variance"] * filters * self.spread))
        mean, mean_square = means
        nothing = np.zeros_like(observed), np.zeros_like(beside)
        return CongruenceUncertainty(
            CongruenceInfluence(mean_square - chance / self.points, mean, np.empty(0), np.empty(0), noise),
            standard_error=known_by * errors["root"],
            squared_standard_error=known_by * errors["square"],
            noise_standard_error=known_by * float(np.std(noise, ddof=1)),
            noise_means=None
            if self.blocks is None
            else means_under_signs(drawn, vectors, *nothing, constant, weights)[0],
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


def scaled_residuals(analysis: Array, chosen: Array, coefficients: Array, delta: Array) -> Array:
    """Residuals (rows, r) of the fit of some rows U (rows, k) and Delta (rows, r), with the variance of the noise.

    Of the fit's matrix H a row's residual keeps 1 - 2 h_ii + (H H')_ii of its noise: the root of it is divided out. A
    leave-one-out residual would have the noise of the prediction, too, which a narrow kernel makes a third larger.
    """
    fit = analysis @ (chosen[:, None] * coefficients).astype(analysis.dtype)
    kept = 1.0 - analysis.astype(np.float64) ** 2 @ (2.0 * chosen - chosen**2)
    return np.asarray((delta - fit) / np.sqrt(np.maximum(kept, LEAST_FREEDOM))[:, None])


def kept_under_signs(sums: Array, filters: Array, count: int) -> Array:
    """What the smoother keeps under each of ``count`` draws of the rows' signs, (count, k, c), from ``sums_by_code``.

    Any two draws are independent (see ``null``). That of g = 0, which leaves every sign as it is, is not among them.
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
    counts = np.ones(len(observed)) if weights is None else weights / np.mean(weights)
    moment = synthesis.T @ (synthesis if weights is None else synthesis * counts.astype(synthesis.dtype)[:, None])
    of_noise = np.array([np.sum(part * (moment @ part)) for part in drawn], dtype=np.float64) + counts @ constant
    signal = float(counts @ (np.sum(observed**2, axis=1, dtype=np.float64) + beside))
    # Of e = b + s, E|e|^2 = |b|^2 + E|s|^2: what is left of e without its noise.
    kept = max(0.0, 1.0 - float(np.mean(of_noise)) / signal) if signal > 0.0 else 0.0
    signal_kept, around = np.float32(np.sqrt(kept)) * observed, kept * beside + constant

    def squares_of(coefficients: Array) -> Array:
        values = synthesis @ coefficients
        values += signal_kept
        return np.asarray(np.einsum("bij,bij->bi", values, values) + around)

    means, squares = root_and_square_means(squares_of, drawn, len(synthesis), weights)
    return means, squares, of_noise / len(observed), kept


def axes_of(moment: Array) -> Array:
    """Leading eigenvectors (r, c) of the residuals' second moment (r, r): ``AXES_ENERGY`` of it, or ``MAX_AXES``."""
    total = max(float(np.trace(moment)), _TINY)
    basis = None
    if len(moment) > 2 * MAX_AXES:
        # Near the leading directions, by subspace iteration (Halko, Martinsson and Tropp 2011).
        basis = stream(0, "subspace of residuals").standard_normal((len(moment), 2 * MAX_AXES))
        for _ in range(3):
            basis, _ = np.linalg.qr(moment @ basis)
        moment = basis.T @ moment @ basis
    energy, axes = np.linalg.eigh(moment)
    count = min(int(np.searchsorted(np.cumsum(energy[::-1]) / total, AXES_ENERGY)) + 1, len(energy), MAX_AXES)
    leading = axes[:, : -count - 1 : -1]
    return np.ascontiguousarray(leading if basis is None else basis @ leading)
