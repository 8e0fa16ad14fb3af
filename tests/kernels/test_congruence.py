"""CCE and MCMD against their definitions, in float64: the papers' three-term form with both systems built."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_splits import CUBIC, unit_split

from congruence.kernels import (
    RBF,
    Gamma,
    Laplacian,
    Normal,
    Poisson,
    Samples,
    Uniform,
    conditional_congruence_error,
    maximum_conditional_mean_discrepancy,
    prepare,
    variance_gamma,
)
from congruence.kernels.engine.targets import output_features


def three_term_discrepancy(x, y, x_prime, y_prime, query, k_x, k_y, lam, lam_prime):
    """a'K_Y a - 2 a'K_YY' b + b'K_Y' b, its root, with a and b from a system each (Young et al. 2025, equation 2)."""
    a = np.linalg.solve(k_x(x) + len(x) * lam * np.eye(len(x)), k_x(x, query))
    b = np.linalg.solve(k_x(x_prime) + len(x_prime) * lam_prime * np.eye(len(x_prime)), k_x(x_prime, query))
    terms = [
        np.einsum("im,ij,jm->m", a, k_y(y), a),
        np.einsum("im,ij,jm->m", a, k_y(y, y_prime), b),
        np.einsum("im,ij,jm->m", b, k_y(y_prime), b),
    ]
    return np.sqrt(terms[0] - 2.0 * terms[1] + terms[2])


def squared_errors(x, delta):
    """CCE(x)^2 of each of many splits by the definition, (splits, n), of Delta (splits, n, r)."""
    gram = CUBIC(x)
    smoother = np.linalg.solve(gram + 0.1 * len(x) * np.eye(len(x)), gram)
    return np.sum((smoother @ delta) ** 2, axis=2)


def column(y):
    return y[:, None]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("k_x", [CUBIC, RBF(0.8), Laplacian(0.5)], ids=str)
@pytest.mark.parametrize("at", ["reference", "query"])
def test_the_collapsed_system_is_the_papers_three_term_form_with_its_own_system_of_all_samples(samples, k_x, at):
    x, y, mean = unit_split(40)
    rng = np.random.default_rng(1)
    drawn = rng.normal(mean[:, None], 1.5, size=(len(y), samples))
    query = x if at == "reference" else unit_split(7, seed=3)[0]
    k_y = RBF(variance_gamma(y))
    expected = three_term_discrepancy(
        x, column(y), np.repeat(x, samples, axis=0), column(drawn.ravel()), query, k_x, k_y, 0.1, 0.1
    )
    given_query = None if at == "reference" else query
    result = conditional_congruence_error(x, y, Samples(drawn), query=given_query, input_kernel=k_x)
    np.testing.assert_allclose(result.values, expected, rtol=1e-10)


def test_exact_means_are_what_many_samples_tend_to():
    x, y, mean = unit_split(40)
    predictive = Normal(mean + 1.0, np.full(len(y), 0.7))
    exact = conditional_congruence_error(x, y, predictive, input_kernel=CUBIC)
    sampled = conditional_congruence_error(x, y, predictive, input_kernel=CUBIC, samples=20_000)
    np.testing.assert_allclose(sampled.values, exact.values, rtol=0.03)


def test_draws_of_the_model_do_not_repeat_the_draws_that_made_the_inputs():
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, 500)
    y = rng.uniform(0.0, 1.0, 500)
    model = Uniform(np.zeros(500), np.ones(500))  # samples from the stream of x would be x
    result = conditional_congruence_error(x, y, model, input_kernel=RBF(20.0), samples=1, seed=0)
    assert result.mean < 2.0 * result.noise_floor


@pytest.mark.parametrize("family", ["normal", "poisson", "gamma"])
def test_the_noise_floor_is_the_mean_square_of_the_true_models_own_error(family):
    x, _, mean = unit_split(40)
    predictive = {
        "normal": Normal(mean, np.linspace(0.3, 3.0, len(mean))),
        "poisson": Poisson(mean),
        "gamma": Gamma(mean, np.ones(len(mean))),
    }[family]
    draws, kernel = predictive.sample(2000, seed=4), RBF(0.05)
    psi = output_features(kernel, draws.ravel(), predictive)
    expected = psi.expectation(predictive)
    squares = squared_errors(x, np.stack([psi(y) - expected for y in draws.T]))
    result = prepare(x, input_kernel=CUBIC).conditional_congruence_error(draws[:, 0], predictive, output_kernel=kernel)
    np.testing.assert_allclose(result.values**2, squares[0], rtol=1e-6)
    error = np.std(squares, axis=0) / np.sqrt(len(squares))
    assert np.all(np.abs(np.mean(squares, axis=0) - result.noise_floor_values**2) < 5.0 * error)


def test_the_noise_floor_of_an_ensemble_counts_the_noise_of_its_members():
    x, _, mean = unit_split(40)
    values = np.random.default_rng(5).normal(mean[:, None], 1.0, size=(2000, len(mean), 6))
    prepared, kernel, floors = prepare(x, input_kernel=CUBIC), RBF(0.05), []
    psi = output_features(kernel, values.ravel())
    squares = squared_errors(x, np.stack([psi(one[:, 0]) - psi.expectation(Samples(one[:, 1:])) for one in values]))
    for one, square in zip(values[:30], squares, strict=False):
        result = prepared.conditional_congruence_error(one[:, 0], Samples(one[:, 1:]), output_kernel=kernel)
        np.testing.assert_allclose(result.values**2, square, rtol=1e-6)
        floors.append(result.noise_floor_values**2)
    np.testing.assert_allclose(np.mean(floors), np.mean(squares), rtol=0.05)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.tuples(st.integers(5, 40), st.integers(5, 40)),
    lambdas=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    seed=st.integers(0, 1000),
)
def test_mcmd_of_two_samples_with_their_own_inputs_sizes_and_lambdas_is_the_definition(sizes, lambdas, seed):
    (x, y, _), (x_prime, y_prime, _) = unit_split(sizes[0], seed=seed), unit_split(sizes[1], seed=seed + 1)
    y_prime = y_prime + 2.0
    query = unit_split(6, seed=seed + 2)[0]
    expected = three_term_discrepancy(
        x,
        column(y),
        x_prime,
        column(y_prime),
        query,
        CUBIC,
        RBF(variance_gamma(np.concatenate([y, y_prime]))),
        *lambdas,
    )
    result = maximum_conditional_mean_discrepancy(
        x, y, x_prime, y_prime, query, input_kernel=CUBIC, regularization=lambdas[0], regularization_prime=lambdas[1]
    )
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-7)
    assert np.max(np.abs(result.values - expected)) <= result.error_bound + 1e-7  # the three terms cancel
    swapped = maximum_conditional_mean_discrepancy(
        x_prime, y_prime, x, y, query, input_kernel=CUBIC, regularization=lambdas[1], regularization_prime=lambdas[0]
    )
    np.testing.assert_allclose(swapped.values, result.values, rtol=1e-6, atol=1e-9)


def test_mcmd_of_a_sample_with_itself_is_zero():
    x, y, _ = unit_split(40)
    result = maximum_conditional_mean_discrepancy(x, y, x, y, x, input_kernel=CUBIC)
    assert np.max(result.values) < 1e-12
    assert result.mean == np.mean(result.values)
    assert result.bound_kind == "computed"


@settings(max_examples=10, deadline=None)
@given(shift=st.floats(-1e3, 1e3), factor=st.floats(0.01, 100.0), seed=st.integers(0, 1000))
def test_the_units_and_the_origin_of_the_targets_do_not_matter(shift, factor, seed):
    x, y, mean = unit_split(40, seed=seed)
    values = conditional_congruence_error(x, y, Normal(mean, np.ones(len(y))), input_kernel=CUBIC).values
    moved = conditional_congruence_error(
        x, shift + factor * y, Normal(shift + factor * mean, np.full(len(y), factor)), input_kernel=CUBIC
    ).values
    np.testing.assert_allclose(moved, values, rtol=1e-4)


def test_the_order_of_the_rows_does_not_matter():
    x, y, mean = unit_split(40)
    order = np.random.default_rng(0).permutation(len(y))
    values = conditional_congruence_error(x, y, Normal(mean, np.ones(len(y))), input_kernel=CUBIC).values
    shuffled = conditional_congruence_error(
        x[order], y[order], Normal(mean[order], np.ones(len(y))), input_kernel=CUBIC
    ).values
    np.testing.assert_allclose(shuffled, values[order], rtol=1e-9)


def test_a_biased_and_an_overconfident_model_exceed_the_floor_that_the_true_one_stays_near():
    x, y, mean = unit_split(800)
    versions = {
        "true": Normal(mean, np.ones(len(y))),
        "biased": Normal(mean + 1.5, np.ones(len(y))),
        "overconfident": Normal(mean, np.full(len(y), 0.1)),
    }
    results = prepare(x, input_kernel=CUBIC).evaluate(y, versions, output_kernel=RBF(0.5), draws=0)
    assert results["true"].mean < 1.5 * results["true"].noise_floor
    assert results["biased"].mean > 4.0 * results["biased"].noise_floor
    assert results["overconfident"].mean > 4.0 * results["overconfident"].noise_floor
    assert results["biased"].excess == pytest.approx(results["biased"].mean, rel=0.2)


def test_points_far_from_all_rows_have_an_error_of_zero():
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(200, 2)), np.array([[0.0, 0.0], [30.0, 0.0], [60.0, 0.0]])
    y = rng.normal(size=200)
    found = prepare(x, query=new, input_kernel=RBF(0.5)).conditional_congruence_error(y, Normal(x[:, 0], 1.0))
    assert found.values[0] > 0.0
    assert np.all(found.values[1:] < 1e-100)
