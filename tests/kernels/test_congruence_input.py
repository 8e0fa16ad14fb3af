"""What cannot be evaluated is refused by name, and what looks odd but can be evaluated gives the stated result."""

import numpy as np
import pytest

from congruence.kernels import (
    RBF,
    Binomial,
    Normal,
    Poisson,
    Polynomial,
    Samples,
    conditional_congruence_error,
    maximum_conditional_mean_discrepancy,
    prepare,
)
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.measures import congruence_test

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(np.zeros(3), np.array([1.0, 1.0, -0.5])), r"Normal.scale: row 2 is -0.5"),
        (lambda: Normal(np.zeros(3), np.array([1.0, 0.0, 1.0])), r"Normal.scale: row 1 is 0"),
        (lambda: Poisson(np.array([1.0, -2.0])), r"row 1 is -2"),
        (lambda: Binomial(np.array([5, 5]), np.array([0.5, 1.2])), r"Binomial.p: row 1 is 1.2"),
        (lambda: Normal(np.array([0.0, np.nan]), np.ones(2)), r"Normal.loc: .* row 1"),
        (lambda: Samples(np.array([[0.0, np.inf]])), r"Samples.values: .* row 0, column 1"),
    ],
)
def test_impossible_parameters_name_their_row_and_field(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


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
