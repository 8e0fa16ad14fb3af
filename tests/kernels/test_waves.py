"""Waves by products against sines and cosines, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels.distributions.waves import average_wave, waves


@pytest.mark.parametrize(
    "t",
    [0.07 * np.arange(131), 0.3 + 0.07 * np.arange(40), np.array([0.0, 0.1, 0.4]), np.array([0.2]), np.array([])],
    ids=["from 0", "from elsewhere", "uneven", "one", "none"],
)
def test_waves_are_those_of_sines_and_cosines(t):
    values = 20.0 * np.random.default_rng(0).standard_normal((3, 700))
    phase = np.multiply.outer(values, t)
    found = waves(values, t)
    assert found.shape == phase.shape
    rounding = 2.0 * np.finfo(float).eps * max(4.0, np.max(np.abs(phase), initial=0.0))  # of the phase itself
    np.testing.assert_allclose(found, np.cos(phase) + 1j * np.sin(phase), rtol=0, atol=rounding)
    np.testing.assert_allclose(waves(values[0, 0], t), found[0, 0], rtol=0, atol=rounding)


@pytest.mark.parametrize("t", [0.11 * np.arange(90), np.array([0.0, 0.1, 0.4])], ids=["even", "uneven"])
def test_averages_of_uniform_laws_of_any_width(t):
    """A width of 0 is a point, and a small one keeps its digits."""
    rng = np.random.default_rng(0)
    center, weights = 5.0 * rng.standard_normal((900, 6)), rng.dirichlet(np.ones(6))
    half = np.abs(rng.standard_normal((900, 6))) * np.array([0.0, 1e-300, 1e-12, 1e-4, 1.0, 9.0])
    expected = np.empty((900, len(t)), dtype=complex)
    for j, frequency in enumerate(t):
        expected[:, j] = (np.exp(1j * frequency * center) * np.sinc(frequency * half / np.pi)) @ weights
    np.testing.assert_allclose(average_wave(center, weights, t, half_widths=half), expected, rtol=0, atol=2e-14)
