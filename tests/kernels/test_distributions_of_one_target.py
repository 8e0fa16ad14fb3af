"""Targets (n, 1) are one target, whatever the family's parameters look like; other mismatches are refused by name."""

import pickle

import numpy as np
import pytest

from congruence.kernels import RBF, conditional_congruence_error, congruence_test, scores
from congruence.kernels import distributions as families
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_calibration.estimators import squared_kernel_calibration_error
from congruence.kernels.marginal_calibration import expected_calibration_error

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=(N, 3))
Y = X[:, 0] + RNG.normal(size=N)
PAIRS = [
    (families.MultivariateNormal(X[:, :1], np.ones((N, 1))), families.Normal(X[:, 0], 1.0)),
    (families.Samples(X[:, None, :1] + np.arange(4.0)[:, None]), families.Samples(X[:, :1] + np.arange(4.0))),
    (families.Deterministic(X[:, :1]), families.Deterministic(X[:, 0])),
]
one_target = pytest.mark.parametrize(("law", "scalar"), PAIRS, ids=lambda law: type(law).__name__)


@one_target
@pytest.mark.parametrize("y", [Y, Y[:, None]], ids=["(n,)", "(n, 1)"])
def test_one_target_is_scalar(law: families.Distribution, scalar: families.Distribution, y: np.ndarray) -> None:
    assert law.dimension == 1
    kernel = RBF(0.3)
    error = conditional_congruence_error(X, y, law, input_kernel=kernel)
    np.testing.assert_allclose(error.values, conditional_congruence_error(X, Y, scalar, input_kernel=kernel).values)
    np.testing.assert_array_equal(error.values.shape, (N,))
    test = congruence_test(X, y, law, draws=19, input_kernel=kernel)
    assert test.statistic == pytest.approx(congruence_test(X, Y, scalar, draws=19, input_kernel=kernel).statistic)
    expected = scores.point_scores(scalar, Y)
    for name, values in scores.point_scores(law, y).items():
        np.testing.assert_allclose(values, expected[name], err_msg=name)
    assert expected_calibration_error(y, law) == expected_calibration_error(Y, scalar)


def test_one_target_in_the_kernel_calibration_error() -> None:
    law, scalar = PAIRS[0]
    of_vectors = squared_kernel_calibration_error(Y[:, None], law, output_kernel=RBF(0.5))
    assert of_vectors == pytest.approx(squared_kernel_calibration_error(Y, scalar, output_kernel=RBF(0.5)), rel=1e-9)


def test_vectors_come_back_from_a_pickle() -> None:
    law = pickle.loads(pickle.dumps(families.MultivariateNormal(X, np.ones((N, 3)))))
    np.testing.assert_array_equal(law[1:].loc, X[1:])


def test_rows_of_a_one_target_law() -> None:
    law = PAIRS[0][0]
    assert len(law[3]) == 1
    assert law[3].dimension == 1
    np.testing.assert_array_equal(law[np.arange(N) < 2].loc, law.loc[:2])


@pytest.mark.parametrize(
    ("law", "targets"),
    [
        (families.Normal(X[:, 0], 1.0), 2),
        (families.Poisson(np.ones(N)), 3),
        (families.MultivariateNormal(X, np.ones((N, 3))), 1),
        (families.MultivariateNormal(X, np.ones((N, 3))), 2),
        (families.Samples(RNG.normal(size=(N, 5))), 2),
    ],
    ids=str,
)
def test_another_number_of_targets_is_refused(law: families.Distribution, targets: int) -> None:
    y = RNG.normal(size=(N, targets))
    message = rf"y: has {targets} targets per row .* {type(law).__name__} predictions have {law.dimension}"
    for evaluate in (
        lambda: scores.negative_log_likelihood(y, law),
        lambda: scores.crps(y, law),
        lambda: scores.point_scores(law, y),
        lambda: conditional_congruence_error(X, y, law, input_kernel=RBF(0.3)),
        lambda: congruence_test(X, y, law, draws=19, input_kernel=RBF(0.3)),
        lambda: squared_kernel_calibration_error(y, law, output_kernel=RBF(0.5)),
    ):
        with pytest.raises(InvalidInputError, match=message):
            evaluate()


def test_a_pickle_of_a_family_names_its_public_place() -> None:
    kept = pickle.dumps(families.Normal(np.zeros(3), np.ones(3)))
    assert b"congruence.kernels.distributions.continuous" not in kept
    assert pickle.loads(kept).mean().tolist() == [0.0, 0.0, 0.0]
