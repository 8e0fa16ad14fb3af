"""Repeats of a protocol and downsampled references against direct evaluations."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from congruence.kernels import ECAI, EXACT, PREPRINT, RBF, Normal, Poisson, Polynomial, Samples, prepare, variance_gamma
from congruence.kernels.congruence.preparation import prepare as prepare_inputs
from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.mean_embeddings.residuals import marginal_kernel
from congruence.kernels.protocol.downsampling import downsampled_congruence
from congruence.kernels.protocol.evaluation import evaluate_protocol
from congruence.kernels.protocol.repeats import repeated_evaluation
from congruence.kernels.protocol.weighting import Reference, weighted_reference
from congruence.kernels.solvers import Cholesky, ConjugateGradient, Nystrom
from congruence.kernels.streams import stream

KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)


def split(n=120, d=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = 10.0 + 4.0 * x[:, 0]
    return x, rng.normal(mean, 1.0), mean


@pytest.mark.parametrize("solver", [Cholesky(), ConjugateGradient(1e-9)], ids=["cholesky", "conjugate gradient"])
def test_a_weighted_point_is_a_repeated_point(solver):
    x, y, _ = split(60)
    counts = np.random.default_rng(1).integers(1, 4, size=40)
    rows = np.arange(40)
    query = split(9, seed=2)[0]
    repeated = np.repeat(rows, counts)
    whole = prepare(x[repeated], query=query, input_kernel=KERNEL, solver=Cholesky())
    expected = whole.smooth(y[repeated][:, None])[0]
    reference = weighted_reference(
        x,
        rows,
        query=query,
        input_kernel=KERNEL,
        regularization=0.1,
        weights=counts,
        prepare_inputs=partial(prepare_inputs, solver=solver),
    )
    np.testing.assert_allclose(reference.smooth(y[:, None])[0], expected, rtol=1e-7)


def test_without_repeats_a_protocol_is_one_evaluation():
    x, y, mean = split()
    versions = {"a": Normal(mean, np.ones(len(y))), "b": Poisson(mean)}
    query = split(30, seed=5)[0]
    for points in (None, query):
        found = evaluate_protocol(EXACT, 3.0 * x, y, versions, query=points)
        direct = prepare(x, query=points, input_kernel=KERNEL).congruence_errors(y, versions)
        for name, result in direct.items():
            np.testing.assert_allclose(found[name].values, result.values, rtol=1e-9)
            assert found[name].mean == pytest.approx(result.mean)
            assert found[name].std == 0.0
            assert found[name].noise_floor == pytest.approx(result.noise_floor, rel=0.01)


def test_the_preprint_protocol_is_the_mean_over_its_draws_of_the_papers_estimate():
    x, y, mean = split()
    model = Normal(mean, np.ones(len(y)))
    found = evaluate_protocol(replace(PREPRINT, draws=20), x, y, {"": model}, seed=3)[""]
    assert found.means.shape == (20,)
    prepared = prepare(x, input_kernel=PREPRINT.input_kernel)
    direct = [prepared.conditional_congruence_error(y, Samples(model.sample(1, seed=100 + i))).mean for i in range(200)]
    assert found.mean == pytest.approx(np.mean(direct), abs=4 * found.std / np.sqrt(20))
    assert found.std == pytest.approx(np.std(direct), rel=0.6)
    assert found.values.mean() == pytest.approx(found.mean)


def test_the_ecai_protocol_resamples_its_reference_and_evaluates_at_the_query_points():
    x, y, mean = split()
    query = split(30, seed=5)[0]
    model = Normal(mean, np.ones(len(y)))
    found = evaluate_protocol(ECAI, x, y, {"": model}, query=query, seed=3)[""]
    assert found.means.shape == (50,)
    assert found.values.shape == (30,)
    drawn = stream(3, "bootstrapped reference", 0).integers(len(x), size=len(x))
    direct = prepare(x[drawn], query=query, input_kernel=KERNEL)
    exact = evaluate_protocol(replace(ECAI, samples=None, bootstraps=1), x, y, {"": model}, query=query, seed=3)[""]
    expected = direct.conditional_congruence_error(
        y[drawn], Normal(mean[drawn], np.ones(len(y))), output_kernel=RBF(variance_gamma(y))
    )
    np.testing.assert_allclose(exact.values, expected.values, rtol=1e-8)
    assert found.bound_kind == "computed"
    within = found.means.reshape(10, 5)
    assert np.std(within.mean(axis=1)) > 0.0
    assert found.std > np.mean(np.std(within, axis=1, ddof=1)) * 0.8


def test_repeats_depend_on_the_seed_alone():
    x, y, mean = split()
    versions = {"a": Normal(mean, np.ones(len(y)))}
    first, again = (evaluate_protocol(ECAI, x, y, versions, seed=1)["a"] for _ in range(2))
    np.testing.assert_array_equal(first.means, again.means)
    assert np.all(first.means != evaluate_protocol(ECAI, x, y, versions, seed=2)["a"].means)


def test_a_zero_embedding_has_no_direction():
    x, y, mean = split()
    with pytest.raises(ProtocolError, match="row 4 is all zeros"):
        evaluate_protocol(EXACT, np.where(np.arange(len(x))[:, None] == 4, 0.0, x), y, {"": Normal(mean, 1.0)})


def test_all_points_downsampled_are_the_whole_split():
    x, y, mean = split()
    model = Normal(mean + 0.5, np.ones(len(y)))
    found = downsampled_congruence(x, y, {"": model}, rows=len(x), repeats=2, input_kernel=KERNEL)[""]
    whole = prepare(x, input_kernel=KERNEL).conditional_congruence_error(y, model)
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-8)
    assert found.std == pytest.approx(0.0, abs=1e-10)


def test_a_part_of_the_split_ranks_versions_as_the_whole_and_all_points_are_queries():
    x, y, mean = split(600)
    versions = {f"bias {bias}": Normal(mean + bias, np.ones(len(y))) for bias in (0.0, 1.0, 2.0, 3.0)}
    found = downsampled_congruence(x, y, versions, rows=150, repeats=4, input_kernel=KERNEL)
    means = [result.mean for result in found.values()]
    assert means == sorted(means)
    whole = prepare(x, input_kernel=KERNEL).congruence_errors(y, versions)
    assert found["bias 3.0"].mean == pytest.approx(whole["bias 3.0"].mean, rel=0.15)
    assert found["bias 0.0"].values.shape == (600,)
    assert found["bias 0.0"].noise_floor > 1.5 * whole["bias 0.0"].noise_floor
    assert found["bias 3.0"].std > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 1}, "rows: 1 reference points"),
        ({"rows": 121}, "rows: 121 of 120"),
        ({"rows": 5, "repeats": 0}, "repeats: 0"),
    ],
)
def test_impossible_downsampling_is_refused(arguments, message):
    x, y, mean = split()
    with pytest.raises(InvalidInputError, match=message):
        downsampled_congruence(x, y, {"": Normal(mean, np.ones(len(y)))}, input_kernel=KERNEL, **arguments)


def test_the_excess_over_repeats_is_of_the_means_over_them():
    x, y, mean = split()
    models = {"wrong": Normal(mean + 1.0, np.ones(len(y)))}
    rows = [np.arange(0, len(y), 2), np.arange(1, len(y), 2)]
    references = [weighted_reference(x, half, query=x, input_kernel=KERNEL, regularization=0.1) for half in rows]
    found = repeated_evaluation(references, y, models, marginal_kernel(y), repeats=2)["wrong"]
    alone = [
        repeated_evaluation([reference], y, models, marginal_kernel(y), repeats=2)["wrong"] for reference in references
    ]
    squares = np.mean([result.values**2 for result in alone], axis=0)
    floors = np.mean([result.noise_floor_values**2 for result in alone], axis=0)
    np.testing.assert_allclose(found.squared_values, squares)
    assert found.excess == pytest.approx(np.sqrt(found.mean**2 - np.mean(np.sqrt(floors)) ** 2), rel=1e-3)
    assert np.mean(found.squared_values) > np.mean(found.values**2)


def test_repeats_are_known_as_well_as_the_worst_of_them():
    x, y, mean = split(400)
    model = Normal(mean, np.ones(len(y)))
    references = [
        Reference.whole(prepare(x, input_kernel=KERNEL, solver=solver)) for solver in (Cholesky(), Nystrom(20, rows=50))
    ]
    found = repeated_evaluation(references, y, {"": model}, marginal_kernel(y), repeats=2)[""]
    assert found.bound_kind == "sampled"
