"""Drawn signs of the residuals go through the smoother several at a time, with the numbers of one at a time."""

import numpy as np
import pytest

from congruence.kernels import EXACT, prepare
from congruence.kernels.congruence.influence import COLUMNS_AT_ONCE, coefficients_under_signs, random_signs


@pytest.mark.parametrize("columns", [1, 7, COLUMNS_AT_ONCE + 1])
def test_draws_together_are_the_draws_one_by_one(columns: int) -> None:
    rng = np.random.default_rng(0)
    smoother = prepare(rng.normal(size=(300, 4)), input_kernel=EXACT.input_kernel).smoother
    noise = rng.normal(size=(300, columns)).astype(np.float32)
    together = coefficients_under_signs(smoother, noise, 21, np.random.default_rng(1))
    again = np.random.default_rng(1)
    one_by_one = [smoother.coefficients(random_signs(again, 300) * noise) for _ in range(21)]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-5, atol=1e-5 * np.abs(one_by_one).max())
