"""What a person at a prompt reads: documented columns, results of one line, refusals of one sentence."""

from dataclasses import asdict

import numpy as np
import pytest

from congruence.kernels import (
    EXACT,
    PREPRINT,
    RBF,
    CongruenceDifference,
    InvalidInputError,
    Mixture,
    Normal,
    benjamini_hochberg,
    calibration_test,
    conditional_calibration_test,
    conditional_congruence_error,
    congruence_test,
    crps,
    evaluate_protocol,
    expected_calibration_error,
    interpret_pit,
    local_reading,
    negative_log_likelihood,
    pit_values,
    prepare,
)

N = 120
RNG = np.random.default_rng(8)
X = RNG.normal(size=(N, 2))
Y = X[:, 0] + RNG.normal(size=N)
LAW, WIDE = Normal(X[:, 0], np.ones(N)), Normal(X[:, 0], np.full(N, 2.0))
PREPARED = prepare(X, input_kernel=RBF(0.3))
RESULT = PREPARED.conditional_congruence_error(Y, WIDE)


RESULTS = {
    "CongruenceResult": lambda: RESULT,
    "CongruenceResult of repeats": lambda: evaluate_protocol(PREPRINT, X, Y, {"a": LAW})["a"],
    "CongruenceTest": lambda: congruence_test(X, Y, WIDE, input_kernel=RBF(0.3), draws=99),
    "LocalReading": lambda: local_reading(PREPARED.smoother, pit_values(Y, WIDE)),
    "ConditionalCalibrationTest": lambda: conditional_calibration_test(X, Y, WIDE),
    "CalibrationTest": lambda: calibration_test(Y, WIDE),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_column_is_documented_and_the_result_prints_on_a_line(name: str) -> None:
    result = RESULTS[name]()
    documented = " ".join(str(kind.to_frame.__doc__) for kind in type(result).__mro__ if hasattr(kind, "to_frame"))
    for column in result.to_frame().columns:
        short = column.replace("calibration", "") if name == "LocalReading" else column
        assert f"``{column}``" in documented or f"``{short}``" in documented, column
    said = repr(result)
    assert said.startswith(f"{name.split()[0]}(")
    assert "\n" not in said
    assert len(said) < 330


def test_points() -> None:
    frame = RESULT.to_frame()
    assert np.array_equal(frame["cce"], RESULT.values)
    assert frame["cce"].mean() == pytest.approx(RESULT.mean)
    assert np.allclose(frame["cce_excess"] ** 2, np.maximum(frame["cce"] ** 2 - RESULT.expected_values**2, 0.0))
    assert np.mean(RESULT.expected_values) == pytest.approx(RESULT.expected)
    assert RESULT.excess == pytest.approx(np.sqrt(RESULT.mean**2 - RESULT.expected**2))
    said = repr(RESULT)
    assert said.startswith(f"CongruenceResult(mean={RESULT.mean:.4g}, interval=[")
    assert f"points={N}" in said


def test_repeats_have_the_spread_of_each_point() -> None:
    repeated = RESULTS["CongruenceResult of repeats"]()
    frame = repeated.to_frame()
    count = len(repeated.means)
    assert f"std={repeated.std:.4g}, repeats={count}" in repr(repeated)
    assert np.allclose(frame["cce_std"] ** 2 * (count - 1) / count, repeated.mean_squares - repeated.values**2)
    once = evaluate_protocol(EXACT, X, Y, {"a": LAW})["a"]
    assert "cce_std" not in once.to_frame()
    assert "repeats" not in repr(once)


def test_a_test_says_what_is_expected_of_a_true_version() -> None:
    test = RESULTS["CongruenceTest"]()
    low, high = test.band
    assert f"expected={test.expected:.4g}, band=[{low:.4g}, {high:.4g}], p_value={test.p_value:.4g}" in repr(test)
    assert np.array_equal(test.to_frame()["q_value"], benjamini_hochberg(test.point_p_values))


def test_orders_by_effect_and_p_value() -> None:
    test = RESULTS["ConditionalCalibrationTest"]()
    frame = test.to_frame()
    assert list(frame.index) == ["bias", "spread", "skew", "tails"]
    assert frame["effect"].idxmax() == "spread"
    assert frame.loc["spread", "effect_high"] == test.effects["spread"].high
    assert frame.loc["bias", "p_value"] == test.by_order["bias"]
    assert f"p_value={test.p_value:.4g}, bias_p_value={test.by_order['bias']:.4g}" in repr(test)
    assert f"largest_effect='spread {test.effects['spread'].estimate:.3g}" in repr(test)


def test_a_difference_is_a_row() -> None:
    found = prepare(X, input_kernel=RBF(0.3)).compare(Y, WIDE, LAW)
    assert isinstance(found, CongruenceDifference)
    assert found.to_frame().to_dict("records") == [asdict(found)]
    assert f"interval=[{found.low:.4g}, {found.high:.4g}], p_value={found.p_value:.4g}" in repr(found)


def test_a_reading_counts_what_is_wrong_and_says_0_where_no_labelled_row_is_near() -> None:
    far = prepare(X, query=np.array([[0.0, 0.0], [90.0, 90.0]]), input_kernel=RBF(0.3))
    reading = local_reading(far.smoother, pit_values(Y, WIDE))
    frame = reading.to_frame()
    assert frame.filter(like="calibration_").select_dtypes("number").notna().all(axis=None)
    assert not frame.loc[1, ["calibration_bias", "calibration_spread"]].any()
    everywhere = RESULTS["LocalReading"]()
    wrong = everywhere.to_frame()["calibration_fault"]
    assert f"points={N}, found_wrong={(wrong != '').sum()}" in repr(everywhere)
    assert f"spread={(wrong == 'spread').sum()}" in repr(everywhere)


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


@pytest.mark.parametrize("measure", [crps, negative_log_likelihood, pit_values, expected_calibration_error])
def test_targets_come_first_and_the_old_order_is_told_so(measure):
    measure(Y, LAW)
    with pytest.raises(InvalidInputError, match=r"the order is \(y, predictive\)"):
        measure(LAW, Y)


def test_distributions_and_splits_say_what_they_hold_and_no_arrays():
    assert repr(LAW) == f"Normal(rows={N}, loc={X[:, 0].min():.4g} to {X[:, 0].max():.4g}, scale=1)"
    assert repr(Mixture(np.full((N, 2), 0.5), [LAW, LAW])).startswith(f"Mixture(rows={N}, Normal(rows={N}, loc=")
    said = repr(prepare(X, query=X[:3], input_kernel=RBF(1.0)))
    assert said == f"Split(rows={N}, features=2, query=3, input_kernel=RBF(gamma=1.0), regularization=0.1)"
