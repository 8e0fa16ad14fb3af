"""What lies under a mask is never read: masked entries are refused by row, in every array that enters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from congruence.kernels import RBF, conditional_congruence_error, congruence_test, pit_values, scores
from congruence.kernels import distributions as families
from congruence.kernels.arrays import require_matrix, require_targets
from congruence.kernels.errors import InvalidInputError

RNG = np.random.default_rng(0)
N = 30
X, Y = RNG.normal(size=(N, 2)), RNG.normal(size=N)
LAW, KERNEL = families.Normal(np.zeros(N), 1.0), RBF(0.3)


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
