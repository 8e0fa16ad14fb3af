"""Computed CCEs are within their stated bound of the definition, for every kind of kernel, family and dimension."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from expectation_rules import composite
from hypothesis import example, given, settings
from hypothesis import strategies as st

from congruence.kernels import (
    RBF,
    CongruenceResult,
    Deterministic,
    Distribution,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    Mixture,
    MultivariateNormal,
    Normal,
    Polynomial,
    Samples,
    StudentT,
    conditional_congruence_error,
    maximum_conditional_mean_discrepancy,
    multiscale_rbf,
    prepare,
    variance_gamma,
)
from congruence.kernels.engine.null import features_of_split
from congruence.kernels.engine.plan import model_output_kernel
from congruence.kernels.engine.targets import output_features, target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Sum

INPUT_KERNEL = RBF(0.3)
RULE = np.polynomial.legendre.leggauss(200)
KERNELS: dict[str, Callable[[np.ndarray], Kernel]] = {
    "rbf": lambda y: RBF(variance_gamma(y)),
    "multiscale": multiscale_rbf,
    "laplacian": lambda y: Laplacian(np.sqrt(variance_gamma(y))),
    "matern 1/2": lambda y: Matern(0.5, float(np.std(y))),
    "matern 3/2": lambda y: Matern(1.5, float(np.std(y))),
    "matern 5/2": lambda y: Matern(2.5, float(np.std(y))),
}


def definition(x: np.ndarray, errors_gram: np.ndarray, regularization: float = 0.1) -> np.ndarray:
    """CCE at the reference points from H_ij = <D_i, D_j>, with the whole system."""
    k = INPUT_KERNEL(x)
    weights = np.linalg.solve(k + len(x) * regularization * np.eye(len(x)), k)
    return np.sqrt(np.maximum(np.einsum("im,ij,jm->m", weights, errors_gram, weights, optimize=True), 0.0))


def scalar_law(family: str, center: np.ndarray, rng: np.random.Generator) -> Distribution:
    n = len(center)
    scale = np.exp(rng.normal(0.0, 0.4, n))
    return {
        "normal": lambda: Normal(center, scale),
        "t": lambda: StudentT(np.full(n, 3.0), center, scale),
        "mixture": lambda: Mixture(
            np.array([0.3, 0.7]), (Normal(center - 2.0, scale), Normal(center + 1.0, 0.3 * scale))
        ),
        "ensemble": lambda: Samples(center[:, None] + rng.normal(size=(n, 7))),
    }[family]()


def within_bound(result: CongruenceResult, exact: np.ndarray, slack: float = 0.0) -> None:
    assert np.max(np.abs(result.values - exact)) <= result.error_bound + slack


def vector_expectation(kernel: Kernel, center: np.ndarray, variance: np.ndarray) -> float:
    """E k(Z, 0) for Z ~ N(center, diag(variance)), by one-dimensional integrals that know no closed form but RBF's."""
    if isinstance(kernel, Sum):
        return sum(vector_expectation(part, center, variance) for part in kernel.parts)
    if isinstance(kernel, RBF):
        total = 1.0 + 2.0 * kernel.gamma * variance
        return float(np.prod(np.exp(-kernel.gamma * center**2 / total) / np.sqrt(total)))
    if isinstance(kernel, Laplacian):
        value = 1.0
        for c, v in zip(center, variance, strict=True):
            if v == 0.0:
                value *= np.exp(-kernel.gamma * abs(c))
                continue
            low, high = c - 12.0 * np.sqrt(v), c + 12.0 * np.sqrt(v)
            edges = np.unique(np.clip([low, 0.0, c, high], low, high))
            z, w = composite(edges, *RULE)
            value *= float(w @ (scipy.stats.norm.pdf(z, c, np.sqrt(v)) * np.exp(-kernel.gamma * np.abs(z))))
        return value
    assert isinstance(kernel, Matern)
    if not np.any(variance):
        return float(kernel(center[None], np.zeros((1, len(center))))[0, 0])

    def integrand(s: float) -> float:  # T = s^2 ~ Gamma(nu)
        gamma = kernel.nu / (2.0 * kernel.length_scale**2 * s * s)
        law = 2.0 * s ** (2.0 * kernel.nu - 1.0) * np.exp(-s * s) / scipy.special.gamma(kernel.nu)
        return law * vector_expectation(RBF(gamma), center, variance)

    return float(scipy.integrate.quad(integrand, 0.0, 8.0, epsabs=1e-12, epsrel=1e-11, limit=400)[0])


def vector_gram(y: np.ndarray, law: MultivariateNormal, kernel: Kernel) -> np.ndarray:
    n, v = len(y), law.scale**2
    zero = np.zeros(y.shape[1])
    result = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            result[i, j] = (
                vector_expectation(kernel, y[i] - y[j], zero)
                - vector_expectation(kernel, law.loc[i] - y[j], v[i])
                - vector_expectation(kernel, y[i] - law.loc[j], v[j])
                + vector_expectation(kernel, law.loc[i] - law.loc[j], v[i] + v[j])
            )
    return result


@example(q=3, kernel="matern 3/2", seed=501)  # five rows in a volume that 1,024 nodes do not fill
@given(q=st.integers(2, 10), kernel=st.sampled_from(sorted(KERNELS)), seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_vector_errors_are_within_their_bound_of_the_definition(q: int, kernel: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5, 2))
    y = x[:, :1] + rng.normal(size=(5, q))
    law = MultivariateNormal(np.repeat(x[:, :1] + 0.5, q, axis=1), np.exp(rng.normal(0.0, 0.4, (5, q))))
    k_y = KERNELS[kernel](y)
    result = conditional_congruence_error(x, y, law, input_kernel=INPUT_KERNEL, output_kernel=k_y)
    exact = definition(x, vector_gram(y, law, k_y))
    within_bound(result, exact, slack=1e-9)
    assert result.error_bound < 1e-3 * result.mean


def vectors(n: int, q: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, MultivariateNormal]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    y = 0.5 * x @ rng.normal(size=(4, q)) + rng.normal(size=(n, q))
    return x, y, MultivariateNormal(0.3 * np.repeat(x[:, :1], q, axis=1), np.exp(rng.normal(0.0, 0.3, (n, q))))


def normal_gram(y: np.ndarray, law: MultivariateNormal, kernel: Kernel) -> np.ndarray:
    """By the Gaussian integral of each component (Widmann et al. 2021, appendix D.1)."""

    def expectation(
        loc: np.ndarray, variance: np.ndarray, others: np.ndarray, other_variance: np.ndarray
    ) -> np.ndarray:
        total = np.zeros((len(loc), len(others)))
        for term in kernel.terms:
            exponent = np.zeros_like(total)
            for a, v, b, w in zip(loc.T, variance.T, others.T, other_variance.T, strict=True):
                spread = 1.0 + 2.0 * term.gamma * np.add.outer(v, w)  # type: ignore[attr-defined]
                exponent -= term.gamma * np.subtract.outer(a, b) ** 2 / spread + 0.5 * np.log(spread)  # type: ignore[attr-defined]
            total += np.exp(exponent)
        return total

    none, variance = np.zeros_like(y), law.scale**2
    crossed = expectation(y, none, law.loc, variance)
    return expectation(y, none, y, none) - crossed - crossed.T + expectation(law.loc, variance, law.loc, variance)


@pytest.mark.parametrize(("q", "multiscale"), [(10, True), (10, False), (2, True)])
def test_ten_targets_fill_a_volume_and_are_exact(q: int, multiscale: bool) -> None:
    x, y, law = vectors(400, q)
    kernel = multiscale_rbf(y) if multiscale else RBF(variance_gamma(y))
    result = conditional_congruence_error(x, y, law, input_kernel=INPUT_KERNEL, output_kernel=kernel)
    exact = definition(x, normal_gram(y, law, kernel))
    within_bound(result, exact)
    assert result.error_bound < 1e-7
    np.testing.assert_allclose(result.values, exact, rtol=1e-7)


def test_ensembles_of_vectors_are_the_definition() -> None:
    rng = np.random.default_rng(3)
    x, y, _ = vectors(60, 4)
    values = y[:, None] + rng.normal(size=(60, 5, 4))
    kernel = Matern(1.5, 2.0)
    atoms = np.concatenate([y[:, None], values], axis=1).reshape(-1, 4)
    weights = np.kron(np.eye(60), np.array([1.0] + [-0.2] * 5))
    exact = definition(x, weights @ kernel(atoms) @ weights.T)
    for law in (Samples(values), Mixture(np.full(5, 0.2), tuple(Deterministic(values[:, k]) for k in range(5)))):
        result = conditional_congruence_error(x, y, law, input_kernel=INPUT_KERNEL, output_kernel=kernel)
        np.testing.assert_allclose(result.values, exact, rtol=1e-6)
        within_bound(result, exact, slack=1e-9)


@pytest.mark.parametrize("family", ["normal", "t"])
@pytest.mark.parametrize("spread", [150.0, 1e4])
def test_one_wide_prediction_among_narrow_ones(family: str, spread: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2))
    y, scale = x[:, 0] + rng.normal(size=8), np.ones(8)
    scale[3] = spread
    law = Normal(x[:, 0], scale) if family == "normal" else StudentT(np.full(8, 5.0), x[:, 0], scale)
    kernel = RBF(0.5)
    result = conditional_congruence_error(x, y, law, input_kernel=INPUT_KERNEL, output_kernel=kernel)
    within_bound(result, definition(x, spectral_gram(y, law, 1.0 / (2.0 * kernel.gamma))), slack=1e-8)


def spectral_gram(y: np.ndarray, law: Distribution, variance: float) -> np.ndarray:
    """H for the RBF of this variance from characteristic functions, by Gauss rules that shrink towards 0."""
    edges = np.concatenate([[0.0], np.geomspace(1e-7, 0.2, 60), np.linspace(0.2, 8.0, 40)[1:]])
    t, weights = composite(edges, *np.polynomial.legendre.leggauss(20))
    weight = np.sqrt(variance / (2 * np.pi)) * np.exp(-0.5 * variance * t**2) * 2 * weights
    wave = np.exp(1j * np.multiply.outer(y, t)) - law.characteristic_function(t)
    return ((wave * weight) @ wave.conj().T).real


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        *[("normal", "rbf"), ("t", "matern 3/2"), ("ensemble", "laplacian")],
        *[("mixture", "rbf"), ("normal", "laplacian"), ("mixture", "matern 3/2")],
    ],
)
def test_the_origin_of_the_targets_does_not_matter(family: str, kernel: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 2))
    y = np.round(x[:, 0] + rng.normal(size=50), 6)

    def at(origin: float) -> CongruenceResult:
        law = scalar_law(family, np.round(x[:, 0], 6) + origin, np.random.default_rng(5))
        k_y = KERNELS[kernel](y + origin)
        return conditional_congruence_error(x, y + origin, law, input_kernel=INPUT_KERNEL, output_kernel=k_y)

    here, there = at(0.0), at(1e8)
    np.testing.assert_allclose(there.values, here.values, rtol=1e-6, atol=there.error_bound + here.error_bound)


def test_a_polynomial_kernel_that_overflows_says_so() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), 1e200 * rng.normal(size=20)
    law = Samples(y[:, None] + np.zeros((20, 3)))
    with pytest.raises(InvalidInputError, match=r"the output kernel overflows.*rescale"):
        conditional_congruence_error(x, y, law, input_kernel=INPUT_KERNEL, output_kernel=Linear())
    with pytest.raises(InvalidInputError, match=r"limit of single precision.*rescale"):
        prepare(x, input_kernel=INPUT_KERNEL).evaluate(y, law, output_kernel=Linear(), draws=0)


def test_draws_that_overflow_single_precision_are_refused() -> None:
    y = 1e8 * np.random.default_rng(0).normal(size=40)
    with pytest.raises(InvalidInputError, match=r"limit of single precision.*rescale"):
        features_of_split(y, Normal(np.zeros(40), np.full(40, 1e8)), Polynomial(3, 1.0))


def test_directions_of_a_test_on_vectors_do_not_know_the_observed_targets() -> None:
    _, y, law = vectors(60, 3)
    draws, moved = (
        features_of_split(targets, law, model_output_kernel(targets, law)).against(targets, law)
        for targets in (y, y + 5.0)
    )
    np.testing.assert_array_equal(draws(y[:, None]), moved(y[:, None]))


def test_features_of_vectors_state_an_error_that_holds_between_their_nodes() -> None:
    rng = np.random.default_rng(0)
    for q in (2, 10):
        y = rng.normal(size=(3000, q))
        law = MultivariateNormal(np.zeros((3000, q)), np.ones((3000, q)))
        features = output_features(RBF(1.0), y, law)
        fresh = law[:200].sample(1, seed=9)[:, 0]
        wrong = np.abs(features(fresh) @ features(y[:500]).T - RBF(1.0)(fresh, y[:500])).max()
        assert wrong <= 1.2 * features.error
        directions = rng.normal(size=(features.rank, 3))
        np.testing.assert_allclose(features.along(directions)(fresh), features(fresh) @ directions, atol=1e-9)


def test_discrepancies_between_samples_of_vectors_are_exact() -> None:
    x, y, _ = vectors(300, 10)
    kernel = multiscale_rbf(y)
    value = maximum_conditional_mean_discrepancy(
        x[:150], y[:150], x[150:], y[150:], x[:5], input_kernel=INPUT_KERNEL, output_kernel=kernel
    ).values
    first, second = (
        np.linalg.solve(INPUT_KERNEL(part) + 15.0 * np.eye(150), INPUT_KERNEL(part, x[:5]))
        for part in (x[:150], x[150:])
    )
    signed = np.concatenate([first, -second])
    np.testing.assert_allclose(value, np.sqrt(np.einsum("im,ij,jm->m", signed, kernel(y), signed)), rtol=1e-8)


def test_the_noise_floor_of_vectors_is_that_of_the_closed_form() -> None:
    x, y, law = vectors(200, 10)
    kernel = RBF(variance_gamma(y))
    error = target_errors(y, law, kernel)
    total = 1.0 + 4.0 * kernel.gamma * law.scale**2
    np.testing.assert_allclose(error.variance, 1.0 - np.prod(total**-0.5, axis=1), atol=1e-10)
    prepared = prepare(x, input_kernel=INPUT_KERNEL)
    assert prepared.conditional_congruence_error(y, law, output_kernel=kernel).noise_floor > 0.0
