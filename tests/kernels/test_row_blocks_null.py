"""Null of the congruence test by row blocks: its statistics are those of exchangeable targets, chosen one by one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from congruence.kernels import EXACT, NegativeBinomial, Normal, Samples
from congruence.kernels.engine.blocks import BlockRows, HeldRows, LocalPasses
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.null import row_draws
from congruence.kernels.engine.plan import Ask
from congruence.kernels.rng import row_choices

N, DRAWS, SEED = 150, 40, 5
PURPOSE = "targets of a true version"


def version(family, mean):
    if family == "counts":
        law = NegativeBinomial(np.exp(0.5 * mean), np.full(N, 0.3))
        return law, law.sample(1, seed=2)[:, 0]
    values = Normal(mean, np.ones(N)).sample(8, seed=2)
    return Samples(values[:, 1:]), values[:, 0]


def pools_of(family, law, y):
    """The observed target, and the 15 of a row that stand for it."""
    if family == "counts":
        drawn = row_draws(law, np.arange(N), 15, SEED, PURPOSE)
    else:
        values = np.column_stack([y, law.values])
        drawn = values[np.arange(N)[:, None], row_choices(np.arange(N), 15, values.shape[1], SEED, PURPOSE)]
    return np.column_stack([y, drawn])


@pytest.mark.parametrize("family", ["counts", "ensemble"])
def test_statistics_of_blocks_are_those_of_the_chosen_targets(family):
    """Then p is exact: pools are exchangeable if the version is the truth, and the splits are a group of exchanges."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(N, 6))
    mean = 1.0 + np.tanh(x[:, 0])
    law, y = version(family, mean)
    rows = HeldRows(x, y, {"a": law}, block_rows=40)
    solved = Driver(LocalPasses(rows), EXACT, SEED).solve(Ask(["a"], draws=DRAWS), 60, lambda *_: None)
    plan, told = solved.answers[0].version, solved.system.inputs
    found = solved.scores["a"].added["statistics"]

    pools, chosen = pools_of(family, law, y), plan.simulated.splits.choices(np.arange(N))
    assert_array_equal(chosen[:, 0], 0)
    points, _ = told.points(BlockRows(HeldRows(x, block_rows=N), 0, 0))
    vectors = np.concatenate([np.array(part) for _, _, part in told.tiles(points)])
    delta = plan.simulated.tested.against(y, law)(np.take_along_axis(pools, chosen, axis=1)).astype(np.float64)
    coefficients = np.einsum("nk,nsr->skr", vectors, delta) * told.filters[:, None]
    expected = np.linalg.norm(vectors @ coefficients, axis=2).sum(axis=1)
    assert_allclose(found, expected, rtol=1e-5)
