"""Repeats of a protocol and downsampled references against direct evaluations."""

from dataclasses import replace

import numpy as np
import pytest
from unit_splits import CUBIC, unit_split

from congruence.kernels import (
    ECAI,
    EXACT,
    PREPRINT,
    RBF,
    Downsampling,
    Normal,
    Poisson,
    Samples,
    evaluate_protocol,
    prepare,
    variance_gamma,
)
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import reference_choices
from congruence.kernels.rng import stream


def test_without_repeats_a_protocol_is_one_evaluation():
    x, y, mean = unit_split()
    versions = {"a": Normal(mean, np.ones(len(y))), "b": Poisson(mean)}
    query = unit_split(30, seed=5)[0]
    for points in (None, query):
        found = evaluate_protocol(EXACT, 3.0 * x, y, versions, query=points)
        direct = prepare(x, query=points, input_kernel=CUBIC).evaluate(y, versions, draws=0)
        for name, result in direct.items():
            np.testing.assert_allclose(found[name].values, result.values, rtol=1e-9)
            assert found[name].mean == pytest.approx(result.mean)
            assert found[name].std == 0.0
            assert found[name].noise_floor == pytest.approx(result.noise_floor, rel=0.01)


def test_the_preprint_protocol_is_the_mean_over_its_draws_of_the_papers_estimate():
    x, y, mean = unit_split()
    model = Normal(mean, np.ones(len(y)))
    found = evaluate_protocol(replace(PREPRINT, draws=20), x, y, {"": model}, seed=3)[""]
    assert found.means.shape == (20,)
    prepared = prepare(x, input_kernel=PREPRINT.input_kernel)
    direct = [prepared.conditional_congruence_error(y, Samples(model.sample(1, seed=100 + i))).mean for i in range(200)]
    assert found.mean == pytest.approx(np.mean(direct), abs=4 * found.std / np.sqrt(20))
    assert found.std == pytest.approx(np.std(direct), rel=0.6)
    assert found.values.mean() == pytest.approx(found.mean)


def test_the_ecai_protocol_resamples_its_reference_and_evaluates_at_the_query_points():
    x, y, mean = unit_split()
    query = unit_split(30, seed=5)[0]
    model = Normal(mean, np.ones(len(y)))
    found = evaluate_protocol(ECAI, x, y, {"": model}, query=query, seed=3)[""]
    assert found.means.shape == (50,)
    assert found.values.shape == (30,)
    drawn = stream(3, "bootstrapped reference", 0).integers(len(x), size=len(x))
    direct = prepare(x[drawn], query=query, input_kernel=CUBIC)
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
    x, y, mean = unit_split()
    versions, few = {"a": Normal(mean, np.ones(len(y)))}, replace(ECAI, bootstraps=3)
    first, again, other = (evaluate_protocol(few, x, y, versions, seed=seed)["a"].means for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


def test_a_zero_embedding_has_no_direction():
    x, y, mean = unit_split()
    with pytest.raises(InvalidInputError, match="row 4 is all zeros"):
        evaluate_protocol(EXACT, np.where(np.arange(len(x))[:, None] == 4, 0.0, x), y, {"": Normal(mean, 1.0)})


def downsampled(x, y, versions, rows, repeats):
    return evaluate_protocol(replace(EXACT, downsampling=Downsampling(rows, repeats)), x, y, versions)


def test_all_points_downsampled_are_the_whole_split():
    x, y, mean = unit_split()
    model = Normal(mean + 0.5, np.ones(len(y)))
    found = downsampled(x, y, {"": model}, len(x), 2)[""]
    whole = prepare(x, input_kernel=CUBIC).conditional_congruence_error(y, model)
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-8)
    assert found.std == pytest.approx(0.0, abs=1e-10)


def test_a_part_of_the_split_ranks_versions_as_the_whole_and_all_points_are_queries():
    x, y, mean = unit_split(600)
    versions = {f"bias {bias}": Normal(mean + bias, np.ones(len(y))) for bias in (0.0, 1.0, 2.0, 3.0)}
    found = downsampled(x, y, versions, 150, 4)
    means = [result.mean for result in found.values()]
    assert means == sorted(means)
    whole = prepare(x, input_kernel=CUBIC).evaluate(y, versions, draws=0)
    assert found["bias 3.0"].mean == pytest.approx(whole["bias 3.0"].mean, rel=0.15)
    assert found["bias 0.0"].values.shape == (600,)
    assert found["bias 0.0"].noise_floor > 1.5 * whole["bias 0.0"].noise_floor
    assert found["bias 3.0"].std > 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1, 1), "rows: 1 reference points"), ((121, 1), "rows: 121 of 120"), ((5, 0), "repeats: 0")],
)
def test_impossible_downsampling_is_refused(arguments, message):
    x, y, mean = unit_split()
    with pytest.raises(InvalidInputError, match=message):
        downsampled(x, y, {"": Normal(mean, np.ones(len(y)))}, *arguments)


def test_means_over_repeats_are_those_of_each_reference():
    x, y, mean = unit_split()
    model = Normal(mean + 1.0, np.ones(len(y)))
    protocol = replace(EXACT, downsampling=Downsampling(60, 2))
    found = evaluate_protocol(protocol, x, y, {"wrong": model}, seed=4)["wrong"]
    alone = []
    for choice in reference_choices(protocol, len(y), 4):
        rows = choice.rows
        part = prepare(x[rows], query=x, input_kernel=CUBIC)
        kernel = RBF(variance_gamma(y))
        alone.append(part.conditional_congruence_error(y[rows], model[rows], output_kernel=kernel))
    np.testing.assert_allclose(found.values, np.mean([result.values for result in alone], axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.squared_values, np.mean([result.values**2 for result in alone], axis=0))
    np.testing.assert_allclose(found.means, [result.mean for result in alone])
    assert found.excess == pytest.approx(np.sqrt(found.mean**2 - found.expected**2))
    assert np.mean(found.squared_values) > np.mean(found.values**2)


def test_repeats_are_tested_by_the_whole_reference():
    x, y, mean = unit_split(200)
    versions = {"right": Normal(mean, np.ones(200)), "wrong": Normal(mean + 1.0, np.ones(200))}
    found = evaluate_protocol(replace(ECAI, bootstraps=2), x, y, versions, draws=199)
    assert found["wrong"].p_value < 0.01 < found["right"].p_value
    whole = prepare(x, input_kernel=CUBIC).evaluate(y, versions, draws=199)
    assert found["right"].p_value == whole["right"].p_value
    assert found["right"].band.low < found["right"].mean < found["right"].band.high
