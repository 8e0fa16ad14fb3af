"""Quantiles from a cdf: the smallest value that reaches a level, found in few evaluations."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from congruence.kernels.distributions import Deterministic, Gamma, Laplace, Mixture, Normal, Uniform
from congruence.kernels.distributions.quadrature import smallest_reaching

LEVELS = np.array([[1e-100, 1e-18, 1e-8, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1 - 1e-8]])
FAMILIES = {
    "normal": Normal,
    "laplace": Laplace,
    "gamma": lambda place, scale: Gamma(1.0 + np.abs(place), scale),
    "atom": lambda place, scale: Deterministic(place),
}


def bisected(law, q):
    """The definition, by bisection down to rounding."""
    ends = np.stack([component.quantile(q) for component in law.components])
    low, high = ends.min(axis=0), ends.max(axis=0)
    high = np.where(law.cdf(low) >= q, low, high)
    for _ in range(120):
        middle = low + (high - low) / 2
        if np.all((middle == low) | (middle == high)):
            break  # no step moves the upper end any more
        reached = law.cdf(middle) >= q
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return high


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 3.0, 1e3]),
    families=st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=4),
)
def test_quantiles_of_mixtures_are_those_of_bisection(seed, spread, families):
    rng = np.random.default_rng(seed)
    n = 8
    parts = [FAMILIES[name](spread * rng.standard_normal(n), np.exp(rng.standard_normal(n))) for name in families]
    law = Mixture(rng.dirichlet(np.ones(len(parts)), n), parts)
    q = np.broadcast_to(LEVELS, (n, LEVELS.shape[1]))
    found, exact = law.quantile(q), bisected(law, q)
    scale = np.abs(exact).max(axis=1, keepdims=True)
    # As values, or, where the cdf is as flat as its rounding, as levels: in the lower tail that is relative.
    close = (np.abs(found - exact) <= 1e-8 * scale) | (np.abs(law.cdf(found) - q) <= 4e-15 * q)
    assert close.all()


def test_the_left_end_of_a_gap_between_components_is_found():
    gap = Mixture([0.5, 0.5], [Uniform(0.0, 1.0), Uniform(2.0, 1.0)])
    np.testing.assert_allclose(gap.quantile([[0.0, 0.25, 0.5, 0.75, 1.0]]), [[0.0, 0.5, 1.0, 2.5, 3.0]], atol=1e-14)
    atoms = Mixture([0.5, 0.5], [Deterministic(0.0), Deterministic(1.0)])
    np.testing.assert_allclose(atoms.quantile([[0.25, 0.5, 0.75]]), [[0.0, 0.0, 1.0]], atol=1e-14)


def test_no_levels_have_no_quantiles():
    law = Mixture([0.5, 0.5], [Normal([0.0, 1.0], 1.0), Normal([2.0, 3.0], 1.0)])
    assert law.quantile(np.empty((2, 0))).shape == (2, 0)


def test_a_smooth_cdf_is_asked_about_a_dozen_times():
    rng = np.random.default_rng(0)
    law = Mixture(rng.dirichlet([1.0, 1.0], 1), [Normal(-3.0, 2.0), Normal(4.0, 1.0)])
    q = np.linspace(0.001, 0.999, 999)
    asked = []

    def cdf_of(elements):
        def cdf(s):
            asked.append(len(elements))
            return law.cdf(s[None, :])[0]

        return cdf

    ends = [component.quantile(q[None, :])[0] for component in law.components]
    found = smallest_reaching(cdf_of, q, np.minimum(*ends), np.maximum(*ends), whole=False)
    np.testing.assert_allclose(law.cdf(found[None, :])[0], q, atol=1e-14)
    assert sum(asked) <= 15 * len(q)
