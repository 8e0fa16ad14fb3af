"""What a person at a prompt reads: results that say their mean, arguments that say what they should be."""

import numpy as np
import pytest

from congruence.kernels import (
    EXACT,
    RBF,
    DoublePoisson,
    InvalidInputError,
    Mixture,
    NegativeBinomial,
    Normal,
    calibration_test,
    conditional_calibration_test,
    conditional_congruence_error,
    crps,
    evaluate_protocol,
    expected_calibration_error,
    interpret_pit,
    negative_log_likelihood,
    pit_values,
    prepare,
)

RNG = np.random.default_rng(3)
X = RNG.normal(size=(80, 2))
Y = X[:, 0] + RNG.normal(size=80)
LAW = Normal(X[:, 0], np.ones(80))


def test_a_result_says_its_mean_and_what_it_rests_on():
    result = conditional_congruence_error(X, Y, LAW, input_kernel=RBF(1.0))
    said = repr(result)
    assert f"mean={result.mean:.4g}, interval=[" in said
    assert "points=80" in said
    assert repr(evaluate_protocol(EXACT, X, Y, {"a": LAW})["a"]).startswith("CongruenceResult(mean=")


def test_an_interpretation_says_its_verdict():
    interpretation = interpret_pit(RNG.uniform(size=300), resamples=20)
    assert repr(interpretation).startswith(f"Interpretation({interpretation.verdict.label!r}")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: conditional_congruence_error(X, Y, LAW, input_kernel="rbf"), "input_kernel"),
        (lambda: conditional_congruence_error(X, Y, LAW, input_kernel=RBF(1.0), output_kernel="rbf"), "output_kernel"),
        (lambda: conditional_calibration_test(X, Y, LAW, input_kernel="rbf"), "input_kernel"),
        (lambda: calibration_test(Y, LAW, output_kernel="rbf"), "output_kernel"),
    ],
)
def test_a_kernel_by_name_is_one_sentence(call, name):
    with pytest.raises(InvalidInputError, match=f"^{name}: expected a kernel .* got 'rbf'$"):
        call()


def test_dispersion_rises_with_the_spread():
    """Of the negative binomial law; the double Poisson law's parameter falls, and is named so."""
    assert NegativeBinomial(5.0, 0.5).std() > NegativeBinomial(5.0, 0.1).std()
    wide, narrow = (DoublePoisson(mean=5.0, inverse_dispersion=value).std() for value in (0.5, 2.0))
    assert wide > narrow


@pytest.mark.parametrize("measure", [crps, negative_log_likelihood, pit_values, expected_calibration_error])
def test_targets_come_first_and_the_old_order_is_told_so(measure):
    measure(Y, LAW)
    with pytest.raises(InvalidInputError, match=r"the order is \(y, predictive\)"):
        measure(LAW, Y)


def test_distributions_and_splits_say_what_they_hold_and_no_arrays():
    assert repr(LAW) == f"Normal(rows=80, loc={X[:, 0].min():.4g} to {X[:, 0].max():.4g}, scale=1)"
    assert repr(Mixture(np.full((80, 2), 0.5), [LAW, LAW])).startswith("Mixture(rows=80, Normal(rows=80, loc=")
    said = repr(prepare(X, query=X[:3], input_kernel=RBF(1.0)))
    assert said == "Split(rows=80, features=2, query=3, input_kernel=RBF(gamma=1.0), regularization=0.1)"
