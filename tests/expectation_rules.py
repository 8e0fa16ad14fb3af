"""Quadrature rules for one row of any law, made from its density or mass alone: the oracle of expectations."""

import numpy as np
from scipy.special import ndtr, ndtri
from scoringrules import quantile_score

from congruence.kernels.distributions import CensoredNormal, Deterministic, Mixture, Samples, WeightedSamples

GAUSS = np.polynomial.legendre.leggauss(16)


def by_density(law, row, cuts=()):
    """Values and weights: atoms and sums of masses exactly, densities by Gauss-Legendre between ``cuts``."""
    one = law[[row]]
    if (found := _atoms(law, row)) is not None:
        return found
    if isinstance(law, Mixture):
        return _mixed([by_density(part, row, cuts) for part in law.components], law.weights[row])
    ends = one.knots()[0]
    center, spread = float(one.quantile(0.5)[0]), float(np.diff(one.quantile(np.array([[0.25, 0.75]])))[0, 0])
    low, high = float(one.quantile(0.0)[0]), float(one.quantile(1.0)[0])
    grown = spread * 2.0 ** np.arange(-60, 60)
    edges = [ends, center + grown, center - grown, center + spread * np.linspace(-30, 30, 241), cuts]
    edges += [low + grown] if np.isfinite(low) else []
    edges += [high - grown] if np.isfinite(high) else []
    edges = np.unique(np.clip(np.concatenate(edges), low, high))
    values, weights = composite(edges[np.isfinite(edges)], *GAUSS)
    weights = weights * np.exp(one.log_prob(values[None, :]))[0]
    if isinstance(law, CensoredNormal):
        at = np.array([end for end in (low, high) if np.isfinite(end)])
        values, weights = np.append(values, at), np.append(weights, np.exp(one.log_prob(at[None, :]))[0])
    return values[weights > 0], weights[weights > 0]


def by_quantiles(law, row, breaks=None):
    """Fewer values, for functions that are smooth between ``breaks``: Gauss-Legendre over normal scores."""
    breaks = np.unique(law.breaks()) if breaks is None else breaks
    breaks = breaks[np.isfinite(breaks)]
    if (found := _atoms(law, row)) is not None:
        return found
    if isinstance(law, Mixture):
        return _mixed([by_quantiles(part, row, breaks) for part in law.components], law.weights[row])
    one = law[[row]]
    jumps = np.concatenate([one.cdf(breaks[None, :])[0], one.cdf_left(breaks[None, :])[0]])
    jumps = np.append(jumps, [] if law.quantile_levels is None else law.quantile_levels)
    scores = np.clip(ndtri(np.append(jumps, 0.5)), -8.25, 8.25)
    values, weights = composite(np.union1d(np.linspace(-8.25, 8.25, 20), scores), *GAUSS)
    return one.quantile(ndtr(values)[None, :])[0], weights * np.exp(-0.5 * values**2) / np.sqrt(2 * np.pi)


def _atoms(law, row):
    if isinstance(law, Samples):
        return law.values[row], np.full(law.values.shape[1], 1.0 / law.values.shape[1])
    if isinstance(law, WeightedSamples):
        return np.broadcast_to(law.support, law.weights.shape)[row], law.weights[row]
    if isinstance(law, Deterministic):
        return law.value[[row]], np.ones(1)
    if law.is_discrete:
        counts = np.arange(0.0, 600.0)
        return counts, np.exp(law[[row]].log_prob(counts[None, :]))[0]
    return None


def _mixed(parts, shares):
    values, weights = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate([share * part for share, part in zip(shares, weights, strict=True)])


def composite(edges, nodes, weights):
    """Values and weights of a rule on [-1, 1] between each two edges."""
    half = np.diff(edges)[:, None] / 2.0
    return ((edges[1:] + edges[:-1])[:, None] / 2.0 + half * nodes).ravel(), (half * weights).ravel()


def quantile_losses(levels, quantiles, y):
    """Twice the losses of a row's quantiles (L,) at y (m,), each by the share of levels to which it is the nearest.

    Near is meant in normal scores; all times what makes true quantiles of a normal distribution score its CRPS.
    """
    scores = ndtri(levels)
    shares = np.diff(ndtr(np.concatenate([[-np.inf], (scores[1:] + scores[:-1]) / 2.0, [np.inf]])))
    loss = np.stack([2.0 * quantile_score(y, q, level) for q, level in zip(quantiles, levels, strict=True)], axis=-1)
    of_normal = 2.0 * np.exp(-(scores**2) / 2.0) / np.sqrt(2.0 * np.pi)
    return loss @ shares / (np.sqrt(np.pi) * (shares @ of_normal))
