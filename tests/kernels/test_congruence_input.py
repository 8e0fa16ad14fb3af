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


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    y = np.ma.array(Y, mask=False)
    np.testing.assert_array_equal(require_targets(y, "y"), Y)
    assert type(require_targets(y, "y")) is np.ndarray
    np.testing.assert_array_equal(scores.crps(y, LAW), scores.crps(Y, LAW))
    assert type(families.Normal(y, 1.0).loc) is np.ndarray
