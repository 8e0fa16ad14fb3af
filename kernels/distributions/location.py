"""Distributions moved along the line: far from the origin, waves of their values lose the digits of the spread."""

from __future__ import annotations

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.distributions.mixture import Mixture
from congruence.kernels.distributions.parametric import LocationScale
from congruence.kernels.distributions.samples import Deterministic, Samples


def moved(law: Distribution, by: float) -> Distribution | None:
    """The distribution of Y + ``by``; None for families without a location."""
    if isinstance(law, LocationScale):
        return type(law)(**law.parameters() | {"loc": law.loc + by})
    if isinstance(law, Samples):
        return Samples(law.values + by)
    if isinstance(law, Deterministic):
        return Deterministic(law.value + by)
    if isinstance(law, Mixture):
        components = [moved(component, by) for component in law.components]
        whole = [component for component in components if component is not None]
        return Mixture(law.weights, whole) if len(whole) == len(components) else None
    return None


def mass_outside(law: Distribution, low: float, high: float) -> Array:
    """P(Y < low) + P(Y > high), (n,)."""
    return np.maximum(law.cdf_left(low) + (1.0 - law.cdf(high)), 0.0)
