"""One object for everything that is asked of versions on a split: the same numbers as the functions it stands on."""

import pickle

import numpy as np
import pytest

from congruence.kernels import (
    EXACT,
    RBF,
    InvalidInputError,
    MultivariateNormal,
    Normal,
    Polynomial,
    Samples,
    conditional_calibration_test,
    conditional_congruence_error,
    congruence_test,
    local_reading,
    pit_values,
    prepare,
)

N, KERNEL = 200, Polynomial(2, 0.5, 1.0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 3))
    y = x[:, 0] + 0.3 * rng.standard_normal(N)
    versions = {
        "right": Normal(x[:, 0], np.full(N, 0.3)),
        "wide": Normal(x[:, 0], np.full(N, 0.9)),
        "members": Samples(x[:, :1] + 0.3 * rng.standard_normal((N, 6))),
    }
    return x, y, versions, prepare(x, input_kernel=KERNEL)


def test_everything_about_some_versions_in_one_call(data):
    x, y, versions, split = data
    results = split.evaluate(y, versions, draws=199)
    right, wide = results["right"], results["wide"]
    assert right.p_value > 0.05 > wide.p_value == 0.005
    assert right.band.low < right.mean < right.band.high < wide.mean
    assert wide.interval()[0] < wide.mean < wide.interval()[1]
    assert 0.0 < wide.excess < wide.mean
    assert wide.mean**2 == pytest.approx(wide.expected**2 + wide.excess**2)
    assert wide.excess_interval()[0] < wide.excess < wide.excess_interval()[1]
    assert list(right.to_frame()) == ["cce", "cce_noise_floor", "cce_excess", "p_value", "q_value"]
    assert "p_value=" in repr(right)
    alone = conditional_congruence_error(x, y, versions["wide"], input_kernel=KERNEL)
    assert wide.mean == alone.mean
    assert wide.interval() == alone.interval()
    untested = split.evaluate(y, {"right": versions["right"]}, draws=0)["right"]
    assert untested.p_value is None
    assert "p_value" not in untested.to_frame()


def test_what_is_made_when_it_is_first_read_is_what_would_have_been_made_at_once(data):
    _, y, versions, split = data
    given = y.copy()
    later = split.conditional_congruence_error(given, versions["wide"])
    given[:] = 0.0  # a buffer that the next targets are written to
    at_once = split.evaluate(y, versions["wide"], draws=0)
    assert callable(later.made)
    assert (later.band, later.interval(), later.excess) == (at_once.band, at_once.interval(), at_once.excess)
    np.testing.assert_array_equal(later.uncertainty.influence.root, at_once.uncertainty.influence.root)
    kept = pickle.loads(pickle.dumps(split.conditional_congruence_error(y, versions["wide"])))
    assert not callable(kept.made)
    assert repr(kept) == repr(at_once)


def test_tests_and_comparisons_are_those_of_the_functions(data):
    x, y, versions, split = data
    test = split.congruence_test(y, versions["wide"], draws=99)
    assert test.p_value == congruence_test(x, y, versions["wide"], input_kernel=KERNEL, draws=99).p_value
    own = split.congruence_test(y, versions["wide"], draws=99, output_kernel=RBF(2.0))
    assert own.p_value == 0.01
    compared = split.compare(y, versions["wide"], versions["right"])
    results = split.evaluate(y, versions, draws=0)
    assert compared.mean_difference == pytest.approx(results["wide"].mean - results["right"].mean)
    assert compared.low > 0.0
    assert compared.p_value < 1e-3


def test_calibration_given_the_input_and_around_points_without_labels(data):
    x, y, versions, split = data
    test = split.calibration_test(y, versions["wide"])
    assert test.p_value == conditional_calibration_test(x, y, versions["wide"], input_kernel=KERNEL).p_value
    few = split.calibration_test(y, versions["wide"], draws=199)
    assert few.draws == 199
    reading = split.local_calibration(y, versions["wide"])
    np.testing.assert_array_equal(reading.scores, local_reading(split.smoother, pit_values(y, versions["wide"])).scores)
    elsewhere = split.local_calibration(y, versions["wide"], x[:7] + 0.01)
    assert elsewhere.scores.shape == (7, 4)
    np.testing.assert_allclose(elsewhere.scores, reading.scores[:7], atol=0.2)


def test_what_does_not_fit_is_named(data):
    x, y, versions, split = data
    with pytest.raises(InvalidInputError, match="200"):
        split.evaluate(y[:-1], versions)
    with pytest.raises(InvalidInputError, match="calibration_test is of the split's own rows"):
        prepare(x, query=x[:5], input_kernel=KERNEL).calibration_test(y, versions["right"])


def test_query_points_and_vector_targets(data):
    x, y, versions, _ = data
    elsewhere = prepare(x, query=x[:9], input_kernel=KERNEL).evaluate(y, {"wide": versions["wide"]}, draws=99)["wide"]
    assert len(elsewhere.values) == len(elsewhere.to_frame()) == 9
    pair = np.stack([y, -y], axis=1)
    law = MultivariateNormal(np.stack([x[:, 0], -x[:, 0]], axis=1), np.full((N, 2), 0.3))
    found = prepare(x, input_kernel=KERNEL).evaluate(pair, {"": law}, draws=99)[""]
    assert found.mean > 0.0
    assert 0.0 < found.p_value <= 1.0


def test_one_version_is_taken_as_it_is_and_the_protocols_kernel_where_none_is_given():
    rng = np.random.default_rng(5)
    x = rng.normal(2.0, 3.0, size=(60, 3))
    y, x_new = x[:, 0] + rng.normal(size=60), rng.normal(2.0, 3.0, size=(7, 3))
    law = Normal(x[:, 0], np.ones(60))
    unit, given = prepare(EXACT.apply(x), input_kernel=EXACT.input_kernel), prepare(x)
    found = given.evaluate(y, law, draws=19)
    assert found.mean == unit.evaluate(y, {"a": law}, draws=19)["a"].mean
    there, here = (each.local_calibration(y, law, at) for each, at in ((unit, EXACT.apply(x_new)), (given, x_new)))
    np.testing.assert_array_equal(here.to_frame(), there.to_frame())
    with pytest.raises(InvalidInputError, match="versions: is a tuple, expected predictive distributions"):
        given.evaluate(y, (x[:, 0], 1.0))
