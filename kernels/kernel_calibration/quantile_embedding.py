"""Coordinates in which the Euclidean distance of two predictive distributions is their 2-Wasserstein distance.

On the line W_2(p, p')^2 is the integral of (Q(u) - Q'(u))^2 over u in (0, 1), with Q the quantile functions: the values
of Q at the nodes of a quadrature rule, times the roots of its weights, are such coordinates for every family. Location
and scale are enough where the family is closed under both.

Quantiles of 10^5 rows at 320 nodes are the dearest part of a version's kernel calibration error, so the nodes are as
few as the family allows: laws given by quantiles are integrated exactly, smooth quantile functions take a trapezoidal
rule in normal scores (of spectral accuracy; Trefethen and Weideman 2014) if it agrees with the full rule on a sample of
rows, counts read all quantiles of a row off one pass over its distribution function, and those of normal mixtures
follow from one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from scipy.spatial.distance import pdist
from scipy.special import ndtr

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.distributions import (
    Distribution,
    Laplace,
    Logistic,
    Mixture,
    MultivariateNormal,
    Normal,
    Quantiles,
    Samples,
)
from congruence.kernels.distributions.quadrature import probability_rule
from congruence.kernels.distributions.successive_quantiles import is_normal_mixture, successive_quantiles
from congruence.kernels.errors import InvalidInputError

_CHUNK_ROWS = 16_384
_PANELS, _ORDER = 20, 8  # 320 nodes, the outermost at 2^-20: what lies beyond weighs 1e-6 of a normal's variance
_DROPPED = 1e-11  # relative to the largest direction
_DROPPED_ENERGY = 1e-13  # the same from second moments, whose rounding is some 1e-15
_MANY_ROWS = 5_000  # beyond, the triangular factor would be the dearest part
_WORTHWHILE = 0.5  # of the columns: where more than so many are left, a rotation costs more than it saves
_ROWS_A_COLUMN = 3  # that are looked at for how many are left
_SCORES = 5.25  # normal scores over which a short rule reaches: beyond lies 1.5e-7 of the mass
_SHORT_RULES = (43, 85)  # nodes
_SAMPLED_ROWS = 200
_AGREEMENT = 1e-5  # of the mean distance of two sampled rows: a tenth of what the full rule promises
_FEW_ROWS = 1_000  # which the full rule serves at once

Rule = tuple[Array, Array]


def wasserstein_coordinates(parts: Sequence[Distribution]) -> list[Array]:
    """Coordinates (n, e) of the rows of each part, common to all parts.

    Closed forms for normals and Laplace distributions, exact order statistics for samples of one size, exact integrals
    for laws given by quantiles at the same levels, quadrature for every other scalar family (about 1e-4 relative for
    smooth ones, a step's width for discrete ones).

    Raises:
        InvalidInputError: a row has no finite variance, or the family is vector-valued without a closed form.
    """
    if len({type(part) for part in parts}) == 1:
        closed = [coordinates for part in parts if (coordinates := location_scale_coordinates(part)) is not None]
        if closed:
            return closed
    for part in parts:
        _require_scalar_with_variance(part)
    if _same_sample_size(parts):
        return _compressed([_order_statistics(cast(Samples, part)) for part in parts])
    if _same_levels(parts):
        return _compressed([_piecewise_linear(cast(Quantiles, part)) for part in parts])
    rule = _chosen_rule(parts)
    return _compressed([_quantile_values(part, rule) for part in parts])


def location_scale_coordinates(predictive: Distribution) -> Array | None:
    """(loc, std), (n, 2q), for families with W_2^2 = (loc - loc')^2 + (std - std')^2; else None."""
    ratio = _STANDARD_DEVIATIONS.get(type(predictive))
    if ratio is None:
        return None
    values = predictive.parameters()
    return np.column_stack([values["loc"], ratio * values["scale"]])


# The standard deviation at scale 1 of families that are closed under location and scale.
_STANDARD_DEVIATIONS: dict[type[Distribution], float] = {
    Normal: 1.0,
    MultivariateNormal: 1.0,  # with independent components
    Laplace: 2.0**0.5,
    Logistic: np.pi / 3.0**0.5,
}


def _require_scalar_with_variance(part: Distribution) -> None:
    std = part.std()
    if part.dimension > 1:
        raise InvalidInputError(
            f"{type(part).__name__}: the Wasserstein distance of these vector-valued predictions has no closed form; "
            "use MaximumMeanDiscrepancy() as the kernel on predictions"
        )
    if not np.all(np.isfinite(std)):
        row = int(np.argmin(np.isfinite(std)))
        raise InvalidInputError(
            f"{type(part).__name__}: row {row} has the standard deviation {std[row]}, so its 2-Wasserstein distance to "
            "others is not defined; use MaximumMeanDiscrepancy() as the kernel on predictions"
        )


def _same_sample_size(parts: Sequence[Distribution]) -> bool:
    return len({part.values.shape[1] if isinstance(part, Samples) else 0 for part in parts}) == 1 and isinstance(
        parts[0], Samples
    )


def _order_statistics(samples: Samples) -> Array:
    return np.asarray(np.sort(samples.values, axis=1) / np.sqrt(samples.values.shape[1]))


def _same_levels(parts: Sequence[Distribution]) -> bool:
    first = parts[0]
    return isinstance(first, Quantiles) and all(
        isinstance(part, Quantiles) and part.tails == "none" and np.array_equal(part.levels, first.levels)
        for part in parts
    )


def _piecewise_linear(part: Quantiles) -> Array:
    """Exact: the integral of a product of linear pieces is a quadratic form of the values at their ends."""
    levels, values = part.points
    width = np.diff(levels)
    products = np.diag(np.concatenate([width, [0.0]]) + np.concatenate([[0.0], width])) / 3.0
    products += (np.diag(width, 1) + np.diag(width, -1)) / 6.0
    return np.asarray(values @ np.linalg.cholesky(products))


def _chosen_rule(parts: Sequence[Distribution]) -> Rule:
    """The shortest rule that finds the distances of the full one between sampled rows, for all parts together."""
    full = probability_rule(_PANELS, _ORDER)
    if sum(len(part) for part in parts) <= _FEW_ROWS or any(part.is_discrete for part in parts):
        return full
    sampled = [part[np.unique(np.linspace(0, len(part) - 1, _SAMPLED_ROWS).astype(np.intp))] for part in parts]
    expected = _distances(sampled, full)
    for nodes in _SHORT_RULES:
        rule = _score_rule(nodes)
        if np.max(np.abs(_distances(sampled, rule) - expected), initial=0.0) <= _AGREEMENT * np.mean(expected):
            return rule
    return full


def _score_rule(nodes: int) -> Rule:
    """Levels and weights of the trapezoidal rule in normal scores: dp = phi(z) dz."""
    scores, step = np.linspace(-_SCORES, _SCORES, nodes, retstep=True)
    return ndtr(scores), step * np.exp(-0.5 * scores**2) / np.sqrt(2.0 * np.pi)


def _distances(parts: Sequence[Distribution], rule: Rule) -> Array:
    return np.asarray(pdist(np.concatenate([_quantile_values(part, rule, successively=True) for part in parts])))


def _quantile_values(part: Distribution, rule: Rule, *, successively: bool | None = None) -> Array:
    """Quantiles times the roots of their weights; those of normal mixtures each from the one before, or searched for.

    By default they follow from one another in more than a few rows, where that is the cheaper way.
    """
    p, w = rule
    values = np.empty((len(part), len(p)))
    for rows in row_slices(len(part), _CHUNK_ROWS):
        chosen = part[rows]
        many = len(chosen) > _FEW_ROWS if successively is None else successively
        np.multiply(_quantiles(chosen, p, successively=many), np.sqrt(w), out=values[rows])
    return values


def _quantiles(part: Distribution, levels: Array, *, successively: bool) -> Array:
    if successively and is_normal_mixture(part):
        return successive_quantiles(cast(Mixture, part), levels)
    return part.quantile(levels[None, :])


def _compressed(parts: list[Array]) -> list[Array]:
    """Rotate and cut: rows of quantile values span a handful of directions, and distances need no others.

    Those of many rows of counts span most of their columns, and are centred alone.
    """
    center = np.concatenate(parts).mean(axis=0) if len(parts) > 1 else parts[0].mean(axis=0)
    if sum(len(part) for part in parts) > _MANY_ROWS:
        if _few_are_many(parts, center):
            return [np.subtract(part, center, out=part) for part in parts]
        _, axes = _directions(_moment(parts, center))
        return [(part - center) @ axes for part in parts]
    triangle: Array = np.empty((0, len(center)))
    for part in parts:
        for rows in row_slices(len(part), _CHUNK_ROWS):
            block = part[rows] - center
            triangle = np.asarray(np.linalg.qr(np.concatenate([triangle, block]), mode="r"))
    _, singular, directions = np.linalg.svd(triangle, full_matrices=False)
    kept = max(1, int(np.sum(singular > _DROPPED * singular[0])))
    return [(part - center) @ directions[:kept].T for part in parts]


def _few_are_many(parts: list[Array], center: Array) -> bool:
    """Whether some rows alone span too much of their columns for a rotation of all rows to be worth its while."""
    asked = _ROWS_A_COLUMN * len(center)
    some = [part[:: max(1, len(part) // asked)] for part in parts]
    return len(_directions(_moment(some, center))[0]) > _WORTHWHILE * len(center)


def _directions(moment: Array) -> tuple[Array, Array]:
    """Energies (k,) and directions (e, k) of second moments, those without energy left out."""
    energy, axes = np.linalg.eigh(moment)
    kept = energy > _DROPPED_ENERGY * energy[-1]
    return energy[kept], axes[:, kept]


def _moment(parts: list[Array], center: Array) -> Array:
    """Second moments about ``center``, by chunks of rows."""
    total = np.zeros((len(center), len(center)))
    for part in parts:
        for rows in row_slices(len(part), _CHUNK_ROWS):
            block = part[rows] - center
            total += block.T @ block
    return total
