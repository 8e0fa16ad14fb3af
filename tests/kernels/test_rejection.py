"""Rejection curves: by hand, against a perfect criterion, and the paper's example (Young et al. 2025, appendix C.1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from congruence.kernels.distributions import Normal
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.split import prepare
from congruence.kernels.trust.judgement import rejection_curve


def test_by_hand():
    curve = rejection_curve([4.0, 1.0, 3.0, 2.0], [40.0, 10.0, 30.0, 20.0], shares=5, largest=1.0)
    assert curve.withheld.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert curve.kept_loss.tolist() == [25.0, 20.0, 15.0, 10.0]
    assert curve.threshold.tolist() == [4.0, 3.0, 2.0, 1.0]
    assert curve.random_loss == 25.0


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=60))
def test_nothing_withheld_is_the_mean_and_the_loss_itself_rejects_best(rows):
    criterion, loss = (np.array(column) for column in zip(*rows, strict=True))
    curve, best = rejection_curve(criterion, loss), rejection_curve(loss, loss)
    assert curve.kept_loss[0] == pytest.approx(loss.mean(), abs=1e-9)
    assert (best.kept_loss <= curve.kept_loss + 1e-9).all()
    assert (np.diff(curve.withheld) > 0).all()


def test_a_random_criterion_stays_in_the_band():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(50):
        curve = rejection_curve(rng.uniform(size=400), rng.exponential(size=400))
        inside.append(((curve.kept_loss >= curve.random_low) & (curve.kept_loss <= curve.random_high))[1:90].mean())
    assert 0.9 < np.mean(inside) <= 1.0


def test_the_papers_example_rejects_what_is_wrong():
    """X ~ U(0, 2 pi), Y ~ N(X cos^2 X - sqrt(X + 3), (2|2 - X| + 1)/8); the model is a straight line."""
    rng = np.random.default_rng(1)

    def draw(n):
        x = rng.uniform(0, 2 * np.pi, n)
        spread = np.sqrt((2 * np.abs(2 - x) + 1) / 8)
        return x, rng.normal(x * np.cos(x) ** 2 - np.sqrt(x + 3), spread)

    (x, y), (new_x, new_y) = draw(800), draw(800)
    line = np.polyfit(x, y, 1)
    spread = np.std(y - np.polyval(line, x))
    model = Normal(np.polyval(line, x), np.full(800, spread))
    cce = prepare(x[:, None], query=new_x[:, None], input_kernel=RBF(0.5), regularization=1e-3)
    values = cce.conditional_congruence_error(y, model).values
    new = Normal(np.polyval(line, new_x), np.full(800, spread))
    for loss in (np.abs(new_y - new.mean()), -new.log_prob(new_y)):
        curve = rejection_curve(values, loss)
        tail = (curve.withheld >= 0.3) & (curve.withheld <= 0.9)
        assert (curve.kept_loss[tail] < curve.random_low[tail]).all()
        assert curve.gain > 0.1


def test_too_few_rows_and_other_lengths():
    with pytest.raises(InvalidInputError, match="at least two"):
        rejection_curve([1.0], [1.0])
    with pytest.raises(InvalidInputError, match="match row by row"):
        rejection_curve([1.0, 2.0], [1.0])
