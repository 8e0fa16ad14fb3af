"""What cannot be evaluated is refused by name, masked entries too; what looks odd gives the stated result."""

from collections.abc import Callable

import numpy as np
import pytest

from congruence.kernels import (
    RBF,
    Normal,
    Poisson,
    Polynomial,
    conditional_congruence_error,
    congruence_test,
    maximum_conditional_mean_discrepancy,
    pit_values,
    prepare,
    scores,
)
from congruence.kernels import distributions as families
from congruence.kernels.arrays import require_matrix, require_targets
from congruence.kernels.errors import BudgetError, InvalidInputError

KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)
N = 30


def inputs(n=N, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, 4))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def targets(n=N):
    return np.random.default_rng(1).normal(size=n)


def standard(n=N):
    return Normal(np.zeros(n), np.ones(n))


def changed(array, index, value):
    copy = array.copy()
    copy[index] = value
    return copy


EVALUATIONS = {
    "error": lambda x, y, model, **keywords: conditional_congruence_error(x, y, model, input_kernel=KERNEL, **keywords),
    "test": lambda x, y, model, **keywords: congruence_test(x, y, model, input_kernel=KERNEL, draws=19, **keywords),
}
REFUSED = {
    "NaN embedding": (lambda: (changed(inputs(), (7, 2), np.nan), targets(), standard()), {}, "x: .* row 7, column 2"),
    "infinite embedding": (lambda: (changed(inputs(), (3, 0), np.inf), targets(), standard()), {}, "row 3, column 0"),
    "NaN target": (lambda: (inputs(), changed(targets(), 5, np.nan), standard()), {}, "y: .* row 5"),
    "infinite target": (lambda: (inputs(), changed(targets(), 5, -np.inf), standard()), {}, "y: .* row 5"),
    "one point": (lambda: (inputs(1), targets(1), standard(1)), {}, "at least two rows"),
    "no points": (lambda: (inputs(1)[:0], targets(0), standard(1)), {}, "holds no values"),
    "other length": (lambda: (inputs(), targets(29), standard()), {}, "y: 29 rows, but the inputs have 30"),
    "fewer predictions": (lambda: (inputs(), targets(), standard(29)), {}, "29 distributions for 30 reference rows"),
    "text": (lambda: (inputs(), np.array(["a"] * N), standard()), {}, "y: holds"),
    "other dimension": (
        lambda: (inputs(), targets(), standard()),
        {"query": np.ones((3, 5))},
        "query: 5 features, but the reference inputs have 4",
    ),
    "NaN query": (lambda: (inputs(), targets(), standard()), {"query": np.full((3, 4), np.nan)}, "query: .* row 0"),
    "lambda 0": (lambda: (inputs(), targets(), standard()), {"regularization": 0.0}, "lambda is 0.0"),
    "negative lambda": (lambda: (inputs(), targets(), standard()), {"regularization": -0.1}, "lambda is -0.1"),
    "NaN lambda": (lambda: (inputs(), targets(), standard()), {"regularization": np.nan}, "lambda is nan"),
}


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_before_any_work(case, evaluation):
    make, keywords, message = REFUSED[case]
    with pytest.raises(InvalidInputError, match=message):
        EVALUATIONS[evaluation](*make(), **keywords)


def test_constant_targets_have_no_marginal_bandwidth():
    with pytest.raises(InvalidInputError, match="give an explicit output kernel"):
        conditional_congruence_error(inputs(), np.full(N, 3.0), standard(), input_kernel=KERNEL)
    with pytest.raises(InvalidInputError, match="explicit output kernel"):
        maximum_conditional_mean_discrepancy(
            inputs(), np.full(N, 3.0), inputs(seed=1), np.full(N, 3.0), inputs(5), input_kernel=KERNEL
        )
    result = conditional_congruence_error(
        inputs(), np.full(N, 3.0), standard(), input_kernel=KERNEL, output_kernel=RBF(0.5)
    )
    assert np.all(np.isfinite(result.values))


def test_a_test_of_constant_targets_takes_its_bandwidth_from_the_model():
    assert congruence_test(inputs(), np.full(N, 3.0), standard(), input_kernel=KERNEL, draws=19).p_value == 0.05


@pytest.mark.parametrize("landmarks", [None, 40], ids=["exact", "landmarks"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicate_points_are_evidence_counted_twice_not_a_singular_system(landmarks, dtype):
    x, y = np.repeat(inputs(), 3, axis=0).astype(dtype), np.repeat(targets(), 3)
    model = Normal(np.zeros(len(y)), np.ones(len(y)))
    result = conditional_congruence_error(x, y, model, input_kernel=KERNEL, landmarks=landmarks)
    single = conditional_congruence_error(
        inputs(), targets(), standard(), input_kernel=KERNEL, output_kernel=RBF(1.0 / (2.0 * np.var(y, ddof=1)))
    )
    np.testing.assert_allclose(result.values[::3], single.values, rtol=1e-5)


def test_targets_too_far_apart_for_the_output_kernel_are_a_budget_error_and_not_a_late_crash():
    y = np.append(targets()[:-1], 1e9)
    model = Poisson(np.full(N, 3.0))
    with pytest.raises(BudgetError, match="check the targets for outliers"):
        conditional_congruence_error(inputs(), y, model, input_kernel=KERNEL, output_kernel=RBF(0.5))


def test_lists_and_integers_are_numbers_too():
    x, y = inputs(), np.random.default_rng(0).integers(0, 5, N)
    as_lists = conditional_congruence_error(x.tolist(), y.tolist(), Poisson(np.full(N, 2.0)), input_kernel=KERNEL)
    as_arrays = conditional_congruence_error(x, y, Poisson(np.full(N, 2.0)), input_kernel=KERNEL)
    np.testing.assert_array_equal(as_lists.values, as_arrays.values)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_targets_of_any_unit_give_finite_numbers(scale):
    y = scale * targets()
    result = prepare(inputs(), input_kernel=KERNEL).conditional_congruence_error(
        y, Normal(np.zeros(N), np.full(N, scale))
    )
    assert np.all(np.isfinite(result.values))
    assert 0.0 < result.mean < 1.0


@pytest.mark.parametrize("at", ["x", "query"])
def test_a_kernel_that_overflows_names_kernel_value_and_remedy(at):
    x = np.ones((20, 3), dtype=np.float32) * np.linspace(1.0, 2.0, 20, dtype=np.float32)[:, None]
    far = x.astype(np.float64)
    far[7] = 1e60
    with pytest.raises(InvalidInputError, match=r"k\(x, x\) reaches inf under Polynomial.*float64.*scale the"):
        prepare(far if at == "x" else x, query=far if at == "query" else None, input_kernel=Polynomial())
    far[7] = 1e15
    prepare(far, input_kernel=Polynomial())


def test_samples_of_different_targets_are_refused():
    x = np.arange(10.0)
    with pytest.raises(InvalidInputError, match=r"y_prime: targets of shape \(10, 2\), but y has \(10,\)"):
        maximum_conditional_mean_discrepancy(x, x, x, np.ones((10, 2)), x, input_kernel=RBF(1.0))


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 2)), RNG.normal(size=N)
LAW = families.Normal(np.zeros(N), 1.0)


def masked(values: np.ndarray, *index: int) -> np.ma.MaskedArray:
    mask = np.zeros(values.shape, dtype=bool)
    mask[index] = True
    return np.ma.array(values, mask=mask)


ROWS = masked(np.full(N, 0.5), 7)
ENTRIES = masked(np.sort(RNG.normal(size=(N, 3)), axis=1), 7, 1)


@pytest.mark.parametrize(
    ("evaluate", "name"),
    [
        (lambda: conditional_congruence_error(masked(X, 7, 1), Y, LAW, input_kernel=KERNEL), "x"),
        (lambda: conditional_congruence_error(X, masked(Y, 7), LAW, input_kernel=KERNEL), "y"),
        (lambda: conditional_congruence_error(X, Y, LAW, query=masked(X, 7, 0), input_kernel=KERNEL), "query"),
        (lambda: congruence_test(X, masked(Y, 7), LAW, draws=9, input_kernel=KERNEL), "y"),
        (lambda: scores.crps(masked(Y, 7), LAW), "y"),
        (lambda: pit_values(masked(Y, 7), LAW), "y"),
        (lambda: LAW.cdf(masked(Y, 7)), "y"),
        (lambda: LAW.quantile(ROWS), "q"),
        (lambda: families.Normal(ROWS, 1.0), "Normal.loc"),
        (lambda: families.Hurdle(families.Poisson(1.0), ROWS), "Hurdle.zero_probability"),
        (lambda: families.NegativeBinomial(ROWS, 0.1), "NegativeBinomial.mean"),
        (lambda: families.TruncatedNormal(0.0, 1.0, ROWS, 3.0), "TruncatedNormal.lower"),
        (lambda: families.Samples(ENTRIES), "Samples.values"),
        (lambda: families.Quantiles([0.1, 0.5, 0.9], ENTRIES), "Quantiles.values"),
        (lambda: families.MultivariateNormal(ENTRIES, np.ones((N, 3))), "MultivariateNormal.loc"),
        (lambda: families.MultivariateNormal(np.ones((N, 3)), np.ones((N, 3))).log_prob(ENTRIES), "y"),
        (lambda: families.Deterministic(ROWS), "Deterministic.value"),
        (lambda: families.Mixture(masked(np.full((N, 2), 0.5), 7, 0), [LAW, LAW]), "Mixture.weights"),
        (lambda: require_matrix([masked(row, 0) if i == 7 else row for i, row in enumerate(X)], "rows"), "rows"),
    ],
)
def test_masked_entries_are_refused_by_row(evaluate: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"{name}: 1 of \d+ values are masked, the first at row 7"):
        evaluate()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # What is wrong is counted among rows, and not in a row by itself.
        (
            lambda: families.Normal([0.0] * 2, [1.0, -1.0]),
            r"Normal.scale: row 1 is -1, .* \(1 of 2 rows are not\); check",
        ),
        (lambda: families.Normal(0.0, -1.0), "row 0 is -1, expected a positive standard deviation; check"),
        (lambda: families.Normal([0.0, np.nan], 1.0), "row 1"),
        (
            lambda: families.Normal([0.0, np.inf], 1.0),
            r"1 of 2 values are not finite, the first at row 1 \(inf\); drop",
        ),
        (lambda: families.Normal([np.inf], [1.0]), r"Normal.loc: is not finite at row 0 \(inf\); drop"),
        (lambda: families.Normal([0.0, 0.0], [1.0, 1.0, 1.0]), "different lengths"),
        (lambda: families.Normal(["a"], [1.0]), "expected numbers"),
        (lambda: families.NegativeBinomial([1.0, -2.0], 0.5), "NegativeBinomial.mean: row 1 is -2"),
        (lambda: families.NegativeBinomial(1.0, -1e-9), "NegativeBinomial.dispersion: row 0 is -1e-09"),
        (lambda: families.DoublePoisson(1.0, 0.0), "DoublePoisson.inverse_dispersion: row 0"),
        (lambda: families.DoublePoisson(3.0, 1e-9), "row 0 is 1e-09, expected a spread"),
        (lambda: families.Binomial(2.5, 0.5), "whole number"),
        (lambda: families.Binomial([5, 5], [0.5, 1.2]), r"Binomial.p: row 1 is 1.2"),
        (lambda: families.Binomial(1e17, 0.5), "Binomial.n: row 0 is 1e.17, expected a whole number of trials"),
        (lambda: families.TruncatedNormal(0.0, 1.0, 2.0, 1.0), "bound below upper"),
        (lambda: families.ZeroInflated(families.Poisson(1.0), -0.5), "ZeroInflated.inflation: row 0"),
        (lambda: families.Hurdle(families.Poisson(1.0), 1.1), r"zero_probability: row 0 is 1\.1"),
        (
            lambda: families.Hurdle(families.Binomial([3, 0], 0.5), 0.1),
            "Hurdle.base: row 1 is 0, expected a distribution that",
        ),
        (lambda: families.Quantiles([0.1, 0.9], [[0.0, 1.0], [2.0, 1.0]]), "row 1 falls from 2 at level 0.1"),
        (lambda: families.Quantiles([0.9, 0.1], [[0.0, 1.0]]), "increase strictly"),
        (
            lambda: families.Quantiles([0.1, 0.9, 0.9 + 1.2e-16], [[0.0, 1.0, 2.0]]),
            r"0\.9 and 0\.9000000000000001 are one level up to rounding",
        ),
        (lambda: families.Mixture([0.5, 0.6], [families.Normal(0.0, 1.0)] * 2), "sum to 1"),
        (lambda: families.Mixture([0.5, 0.5], [families.Normal(0.0, 1.0), families.Normal([0.0] * 2, 1.0)]), "rows"),
        (lambda: families.Samples([1.0, 2.0]), "expected numbers of shape"),
        (lambda: families.Samples([[0.0, np.inf]]), r"Samples.values: .* row 0, column 1"),
        (lambda: families.Samples(np.ones((2, 3))).log_prob(1.0), "row 0 has all its mass on 1"),
        (lambda: families.Histogram([0.0, 1.0, 1.0], [[0.5, 0.5]]), "border 2 is not above border 1"),
        (lambda: families.Histogram([0.0, 1.0], [[0.5, 0.5]]), "one more border than bins"),
        (lambda: families.Histogram([0.0, 1.0, 2.0], [[0.5, 0.5], [1.5, -0.5]]), "probabilities: row 1 is -0.5"),
        (lambda: families.Histogram([0.0, 1.0, 2.0], [[2.0, 3.0]]), "sum to 1; apply a softmax"),
        (lambda: families.Histogram([0.0, 1.0], [[1.0]], 0.5), "tail_share: is 0.5 with 1 bins"),
        (lambda: families.WeightedSamples([0.0, 1.0, 2.0], [[0.5, 0.5]]), "does not fit weights"),
        (lambda: families.WeightedSamples([0.0, 1.0], [[0.5, 0.5], [0, 1]]).log_prob(1.0), "row 1 has all its mass"),
        (lambda: families.Deterministic([1.0]).log_prob(1.0), "no density"),
        (lambda: families.StudentT([2.0, 0.9], 0.0, 1.0).crps(0.0), "row 1 has df 0.9; .* infinite for df <= 1"),
    ],
)
def test_parameters_of_distributions_are_refused_with_their_row(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    y = np.ma.array(Y, mask=False)
    np.testing.assert_array_equal(require_targets(y, "y"), Y)
    assert type(require_targets(y, "y")) is np.ndarray
    np.testing.assert_array_equal(scores.crps(y, LAW), scores.crps(Y, LAW))
    assert type(families.Normal(y, 1.0).loc) is np.ndarray
