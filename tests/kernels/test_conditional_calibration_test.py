"""The test of conditional calibration is its definition, exact for every family, and finds what the others miss."""

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from unit_splits import CUBIC, unit_rows

from congruence.kernels import RBF, Beta, Normal, Poisson, Samples, pit_values, prepare
from congruence.kernels.conditional_calibration.bases import own_quantiles, typical_gamma
from congruence.kernels.conditional_calibration.null import (
    SCORES_OF_MONOMIALS,
    CalibrationSettings,
    log_gamma_tail,
    monomials_in_place,
    null_pit_values,
)
from congruence.kernels.conditional_calibration.prepared import conditional_calibration_test, prepare_calibration
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import ORDERS, pit_scores

FEW = CalibrationSettings(draws=199)


@pytest.fixture(scope="module")
def uneven() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, means and spreads of 600 rows; the spread follows one input and the mean another."""
    x = unit_rows(600, 4)
    return x, 3.0 * x[:, 0], np.exp(1.2 * x[:, 1])


def spectra_by_definition(x: np.ndarray, quantiles: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """e / n and U of every K by eigh, in double precision."""
    gamma = typical_gamma(x, seed)
    grams = [np.ones((len(x), len(x))), CUBIC(x), *(RBF(gamma / share**2)(x) for share in (0.5, 1.0, 2.0))]
    grams.append(RBF(typical_gamma(quantiles, seed))(quantiles))
    found = []
    for gram, most in zip(grams, [1, 100, 100, 100, 100, 40], strict=True):
        values, axes = np.linalg.eigh(gram)
        found.append((np.maximum(values[::-1][:most], 0.0) / len(x), axes[:, ::-1][:, :most]))
    return found


def evidence_by_definition(spectra: list[tuple[np.ndarray, np.ndarray]], scores: np.ndarray) -> np.ndarray:
    """s + log prior of the maximum over the hypotheses of every basis, (bases, 5), in double precision."""
    found = np.full((len(spectra), 5), -np.inf)
    for b, (e, U) in enumerate(spectra):
        choices = [e / (e + ridge) for ridge in (1e-1, 1e-2, 1e-3)] + [e] if b else [np.ones(1)]
        for w in choices:
            forms = w @ (U.T @ scores) ** 2
            for j, (form, count) in enumerate([*((form, 1) for form in forms), (forms.sum(), 4)]):
                mean, variance = count * w.sum(), 2.0 * count * np.sum(w**2)
                tail = scipy.stats.gamma.logsf(form, mean**2 / variance, scale=variance / mean)
                prior = (1 / 3 if j == 4 else 1 / 6) / len(choices)
                found[b, j] = max(found[b, j], -tail + np.log(prior))
    return found


def test_statistic_and_null_are_the_definition(uneven) -> None:
    x, mean, spread = (values[:90] for values in uneven)
    y = np.random.default_rng(1).normal(mean, spread)
    model = Normal(mean, np.ones(90))
    prepared = prepare_calibration(x, input_kernel=CUBIC, settings=CalibrationSettings(draws=29), seed=3)
    test = prepared.test_version(y, model)
    quantiles = model.quantile(np.array([[0.1, 0.5, 0.9]]))
    spectra = spectra_by_definition(x, quantiles, 3)
    direct = evidence_by_definition(spectra, pit_scores(pit_values(y, model)))
    assert test.statistic == pytest.approx(direct.max(), rel=1e-4)
    drawn = null_pit_values(0, 90, 0, 3)[:, :29].astype(np.float64)
    null = np.stack([evidence_by_definition(spectra, pit_scores(column)) for column in drawn.T], axis=2)
    np.testing.assert_allclose(test.null_statistics, null.max(axis=(0, 1)), rtol=1e-3, atol=1e-3)

    def p_value(observed: float, draws: np.ndarray) -> float:
        return (1 + np.count_nonzero(draws >= observed)) / 30

    assert test.p_value == p_value(direct.max(), null.max(axis=(0, 1)))
    for j, name in enumerate(ORDERS):
        assert test.by_order[name] == p_value(direct[:, j].max(), null[:, j].max(axis=0))
    assert list(test.by_basis.values()) == [p_value(direct[b].max(), null[b].max(axis=0)) for b in range(6)]


def test_scores_of_draws_are_those_of_observations() -> None:
    u = np.random.default_rng(0).uniform(size=(50, 3))
    direct = np.stack([pit_scores(column) for column in u.T], axis=2)
    for precision, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        scores = np.einsum("js,rsd->rjd", SCORES_OF_MONOMIALS, monomials_in_place(u.astype(precision)))
        np.testing.assert_allclose(scores, direct, atol=tolerance)


@pytest.mark.parametrize("shape", [0.5, 0.55, 0.8, 0.99, 2.3, 60.0])
def test_log_tails_of_the_gamma_law(shape: float) -> None:
    z = shape * np.array([1e-3, 0.5, 1.0, 3.0, 30.0]) + np.array([0.0, 0.0, 1.0, 500.0, 1e5])
    z = np.append(z, [0.0, 1e-9, 0.6, 1.0999, 1.1])
    direct = [float(mpmath.log(mpmath.gammainc(shape, a=value, regularized=True))) for value in z]
    np.testing.assert_allclose(log_gamma_tail(shape, z), direct, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(log_gamma_tail(np.full_like(z, shape), z), direct, rtol=1e-10, atol=1e-15)


def test_level_of_uniform_values_and_of_counts_by_order_too() -> None:
    x = unit_rows(60, 4)
    rate = np.exp(x[:, 0])
    prepared = prepare_calibration(x, settings=CalibrationSettings(draws=1999))
    rng = np.random.default_rng(2)
    tests = [prepared.test_version(rng.uniform(size=60), Beta(np.ones(60), np.ones(60))) for _ in range(80)]
    tests += [prepared.test_version(rng.poisson(rate), Poisson(rate), seed=split) for split in range(20)]
    p = np.array([[test.p_value, *test.by_order.values()] for test in tests])
    assert np.all(np.abs(np.mean(p <= 0.05, axis=0) - 0.05) <= 0.065)
    assert np.all([scipy.stats.kstest(column, "uniform").pvalue > 1e-3 for column in p.T])


def test_level_of_ensembles() -> None:
    """Quantiles of the draws alone tell where the target lies among them: 100 of 100 true ensembles were rejected."""
    x = unit_rows(800, 4)
    prepared = prepare_calibration(x, settings=FEW)
    rejected = 0
    for split in range(20):
        values = Normal(x[:, 0], np.ones(800)).sample(11, seed=split)
        rejected += prepared.test_version(values[:, 0], Samples(values[:, 1:]), seed=split).p_value <= 0.05
    assert rejected <= 4


def test_the_own_basis_of_an_ensemble_treats_target_and_draws_alike() -> None:
    values = np.random.default_rng(0).standard_normal((30, 8))
    first = own_quantiles(values[:, 0], Samples(values[:, 1:]), (0.1, 0.5, 0.9))
    other = own_quantiles(values[:, 5], Samples(np.delete(values, 5, axis=1)), (0.1, 0.5, 0.9))
    np.testing.assert_array_equal(first, other)


def test_a_homoscedastic_model_is_found_named_and_measured(uneven) -> None:
    x, mean, spread = uneven
    y = np.random.default_rng(4).normal(mean, spread)
    model = Normal(mean, np.full(600, np.sqrt(np.mean(spread**2))))
    split = prepare(x, input_kernel=CUBIC)
    test = split.calibration_test(y, model, draws=999)
    assert test.p_value == 0.001
    assert test.by_order["spread"] == 0.001
    assert test.by_order["bias"] > 0.01
    assert max(test.effects, key=lambda name: test.effects[name].low) == "spread"


def test_what_is_wrong_on_average_is_seen_by_the_constant(uneven) -> None:
    x, mean, spread = uneven
    y = np.random.default_rng(5).normal(mean, spread)
    test = conditional_calibration_test(x, y, Normal(mean - 0.4 * spread, spread), settings=FEW)
    assert test.by_basis["constant"] == test.by_order["bias"] == test.p_value == 1 / 200
    assert test.means["bias"] > 0.2


def test_units_of_the_target_do_not_matter(uneven) -> None:
    x, mean, spread = uneven
    y = np.random.default_rng(6).normal(mean, spread)
    prepared = prepare_calibration(x, settings=FEW)
    one = prepared.test_version(y, Normal(mean, 1.2 * spread))
    other = prepared.test_version(7.0 + 40.0 * y, Normal(7.0 + 40.0 * mean, 48.0 * spread))
    assert other.statistic == pytest.approx(one.statistic, rel=1e-4)
    assert other.p_value == one.p_value
    assert other.by_basis == one.by_basis


def test_the_order_of_the_rows_does_not_matter() -> None:
    x, keys = unit_rows(150, 4), np.arange(150)
    rate = np.exp(x[:, 0])
    y = np.random.default_rng(7).poisson(1.5 * rate)
    shuffled = np.random.default_rng(8).permutation(150)
    one = conditional_calibration_test(x, y, Poisson(rate), keys=keys, settings=CalibrationSettings(levels=()))
    mixed = conditional_calibration_test(
        x[shuffled], y[shuffled], Poisson(rate[shuffled]), keys=keys[shuffled], settings=CalibrationSettings(levels=())
    )
    assert mixed.means == pytest.approx(one.means)
    assert mixed.statistic == pytest.approx(one.statistic, rel=0.1)  # other pairs give the median distance
    assert mixed.p_value == pytest.approx(one.p_value, abs=0.02)


def test_draws_are_the_same_on_every_number_of_threads(uneven, monkeypatch) -> None:
    x, mean, spread = uneven
    y = np.random.default_rng(9).normal(mean, spread)
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        prepared = prepare_calibration(x, settings=CalibrationSettings(draws=600))
        results.append(prepared.test_version(y, Normal(mean, spread)).null_statistics)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


@given(hnp.arrays(np.float64, 12, elements=st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0.0, 1.0)))
@settings(max_examples=25, deadline=None)
def test_any_probabilities_have_p_values(pit: np.ndarray) -> None:
    test = _SMALL.test_version(pit, Beta(np.ones(12), np.ones(12)))  # whose cdf at a target is the target
    values = [test.p_value, *test.by_order.values(), *test.by_basis.values()]
    assert all(1 / 100 <= p <= 1.0 for p in values)
    assert np.isfinite(test.statistic)
    assert all(0.0 <= e.low <= e.high and np.isfinite([e.estimate, e.high]).all() for e in test.effects.values())


_SMALL = prepare_calibration(unit_rows(12, 4), settings=CalibrationSettings(draws=99))


def test_inputs_and_predictions_that_say_nothing_leave_the_constant() -> None:
    y = np.random.default_rng(0).normal(0.5, 1.0, 100)
    test = conditional_calibration_test(np.ones((100, 3)), y, Normal(np.zeros(100), 1.0), settings=FEW)
    assert list(test.by_basis) == ["constant"]
    assert test.p_value == 1 / 200


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.test_version(np.r_[np.zeros(11), np.nan], Normal(np.zeros(12), 1.0)), "row 11"),
        (lambda c: c.test_version(np.zeros(12), Normal(np.zeros(7), np.ones(7))), "7"),
        (lambda c: prepare_calibration(np.zeros((1, 2))), "one row"),
        (lambda c: prepare_calibration(np.full((5, 2), np.nan)), "row 0"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(_SMALL)


@pytest.mark.parametrize(("field", "value"), [("levels", (0.0, 0.5)), ("directions", 0), ("draws", 0)])
def test_settings_that_define_no_test_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=f"{field}: "):
        CalibrationSettings(**{field: value})


def test_settings_say_how_many_draws() -> None:
    assert [CalibrationSettings().draws_for(n) for n in (100, 4_000, 20_000, 10**6)] == [9999, 9999, 1999, 255]
    assert CalibrationSettings(draws=7).draws_for(10**6) == 7
