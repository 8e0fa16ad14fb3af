"""Laws that break at thousands of places of their own under kernels with a kink: SKCE is the double sum, to 1e-8."""

from __future__ import annotations

import numpy as np
import pytest

from congruence.kernels.distributions import Histogram, Quantiles, Uniform, WeightedSamples
from congruence.kernels.kernel_calibration import squared_kernel_calibration_error
from congruence.kernels.kernel_calibration.prediction_kernels import Wasserstein
from congruence.kernels.kernel_functions import Laplacian, Matern
from congruence.kernels.mean_embeddings.residuals import target_errors

KERNELS = {"Laplacian": Laplacian(2.0), "Matern 3/2": Matern(1.5, 0.8)}


def piecewise_uniform(name, n):
    rng = np.random.default_rng([n, 7])
    loc, scale = rng.normal(size=n), rng.uniform(0.5, 1.5, n)
    y = loc + scale * rng.normal(size=n)
    if name == "Uniform":
        return y, Uniform(loc, scale), np.column_stack([loc, loc + scale]), np.array([0.0, 1.0])
    levels = np.linspace(0.1, 0.9, 9)
    law = Quantiles(levels, loc[:, None] + scale[:, None] * np.sort(rng.normal(size=(n, 9)), axis=1), tails="none")
    return y, law, law.points[1], law.points[0]


def exact_products(y, ends, levels, kernel):
    """By the second antiderivative of k: a density of steps s_e at e has E k(Z, Z') = -sum s_e s'_e' K2(e - e')."""
    density = np.diff(levels) / np.diff(ends, axis=1)
    steps = np.diff(density, axis=1, prepend=0.0, append=0.0)
    smooth = isinstance(kernel, Matern) and kernel.nu == 1.5
    rate = kernel.gamma if isinstance(kernel, Laplacian) else np.sqrt(2.0 * kernel.nu) / kernel.length_scale
    first, last = (2.0, 3.0) if smooth else (1.0, 1.0)

    def once(x):
        z = rate * np.abs(x)
        return np.sign(x) * (first - (first + smooth * z) * np.exp(-z)) / rate

    def twice(x):
        z = rate * np.abs(x)
        return ((last + smooth * z) * np.exp(-z) + first * z) / rate**2

    _n, each = ends.shape
    products = kernel(y, y)
    at = sum(-steps[:, [q]] * once(ends[:, [q]] - y[None, :]) for q in range(each))
    products -= at + at.T
    for q in range(each):
        for r in range(each):
            products -= steps[:, [q]] * steps[:, r] * twice(ends[:, [q]] - ends[:, r])
    return products


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "n"), [("Uniform", 800), ("Quantiles", 160)])
def test_the_kernel_calibration_error_is_the_double_sum(name, n, kernel):
    y, law, ends, levels = piecewise_uniform(name, n)
    kernel = KERNELS[kernel]
    exact = exact_products(y, ends, levels, kernel)
    (coordinates,) = Wasserstein().coordinates([law], kernel)
    h = Wasserstein().fitted(coordinates)(coordinates, coordinates) * exact
    unbiased = squared_kernel_calibration_error(y, law, output_kernel=kernel)
    assert unbiased == pytest.approx((h.sum() - np.trace(h)) / (n * (n - 1)), abs=1e-9)
    biased = squared_kernel_calibration_error(y, law, output_kernel=kernel, estimator="biased")
    assert biased == pytest.approx(np.mean(h), abs=1e-8)


def test_what_is_stated_covers_every_product_of_errors():
    y, law, ends, levels = piecewise_uniform("Uniform", 800)
    exact = exact_products(y, ends, levels, Laplacian(2.0))
    found = target_errors(y, law, Laplacian(2.0))
    norms, moved = np.sqrt(np.diagonal(exact)), np.sqrt(found.feature_error.displaced)
    missed = np.sqrt(np.multiply.outer(found.feature_error.rows, found.feature_error.rows))
    stated = np.multiply.outer(norms, moved) + np.multiply.outer(moved, norms + moved) + missed
    apart = np.abs(found.delta @ found.delta.T - exact)
    assert np.all(apart <= stated + 1e-12)
    assert np.max(apart) < 1e-6
    assert np.mean(apart) < 1e-9


def test_laws_of_bins_and_of_weighted_points_have_errors_under_a_kernel_with_a_kink() -> None:
    """A selection of none of their rows was refused, and with it every such law."""
    rng = np.random.default_rng(0)
    y, points = rng.normal(size=20), np.sort(rng.normal(size=6))
    bins = Histogram(np.linspace(-3.0, 3.0, 7), rng.dirichlet(np.ones(6), 20))
    weighted = WeightedSamples(points, rng.dirichlet(np.ones(6), 20))
    for law in (bins, weighted, Histogram(np.tile(bins.borders, (20, 1)), bins.probabilities)):
        assert len(law[np.empty(0, dtype=np.intp)].cdf(np.zeros((0, 3)))) == 0
    kernel = Laplacian(0.5)
    found = target_errors(y, weighted, kernel).delta
    cross, among = weighted.weights @ kernel(points, y), weighted.weights @ kernel(points) @ weighted.weights.T
    np.testing.assert_allclose(found @ found.T, kernel(y) - cross - cross.T + among, atol=1e-8)
    found = target_errors(y, bins, kernel).delta
    nodes = np.linspace(-3.0, 3.0, 1_201)
    fine = (nodes[:-1] + nodes[1:]) / 2.0
    shares = np.repeat(bins.probabilities, 200, axis=1) / 200.0
    cross, among = shares @ kernel(fine, y), shares @ kernel(fine) @ shares.T
    np.testing.assert_allclose(found @ found.T, kernel(y) - cross - cross.T + among, atol=1e-5)


def test_bins_of_each_row_s_own_are_known_where_they_end() -> None:
    rng = np.random.default_rng(0)
    y, borders = rng.normal(size=20), np.sort(rng.normal(size=(20, 7)), axis=1)
    bins, kernel = Histogram(borders, rng.dirichlet(np.ones(6), 20)), Laplacian(0.5)
    found = target_errors(y, bins, kernel)
    assert np.max(found.feature_error.rows) < 1e-12
    inside = (np.arange(400) + 0.5) / 400
    fine = (borders[:, :-1, None] + np.diff(borders, axis=1)[..., None] * inside).reshape(20, -1)
    shares = np.repeat(bins.probabilities, 400, axis=1) / 400
    cross = np.array([[shares[i] @ kernel(fine[i], y[[j]])[:, 0] for j in range(20)] for i in range(20)])
    among = np.array([[shares[i] @ kernel(fine[i], fine[j]) @ shares[j] for j in range(3)] for i in range(3)])
    expected = (kernel(y) - cross - cross.T)[:3, :3] + among
    np.testing.assert_allclose((found.delta @ found.delta.T)[:3, :3], expected, atol=1e-6)
