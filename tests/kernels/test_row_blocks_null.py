"""Null of the congruence test by row blocks: its statistics are those of exchangeable targets, chosen one by one."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from congruence.kernels import EXACT, NegativeBinomial, Normal, Samples
from congruence.kernels.block_sums import BlockSums
from congruence.kernels.resampling.keyed import row_choices, row_draws
from congruence.kernels.row_blocks.inputs import RowSample, input_sums, protocol_inputs
from congruence.kernels.row_blocks.right_hand_sides import right_hand_side_sums
from congruence.kernels.row_blocks.scores import score_sums, version_answer
from congruence.kernels.row_blocks.system import chosen_inputs, solved_system
from congruence.kernels.row_blocks.versions import (
    FIRST_TAILS,
    planned_version,
    prediction_sums,
    resolved_kernel,
    target_sums,
)

N, DRAWS, SEED = 150, 40, 5
BLOCKS = [slice(0, 30), slice(30, 70), slice(70, N)]
PURPOSE = "targets of a true version"


def over_blocks(sums_of):
    total = BlockSums()
    for rows in BLOCKS:
        total.merge(sums_of(rows))
    return total


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
    sample = RowSample.draw(N, 60, 0)
    rows = protocol_inputs(EXACT, x, 0, np.float64)[sample.positions]
    inputs, checked = chosen_inputs(EXACT, sample, rows, N, 60, 0)
    sums = over_blocks(lambda rows: input_sums(inputs, x[rows], y[rows], rows.start))
    system = solved_system(inputs, sums, checked, sample.checked)
    targets = over_blocks(lambda rows: target_sums(y[rows], rows.start, N))
    plan = planned_version(
        "a",
        targets,
        over_blocks(lambda rows: prediction_sums(y[rows], law[rows], rows.start, N, FIRST_TAILS)),
        resolved_kernel(EXACT, targets, system),
        n=N,
        filters=system.inputs.filters,
        scale=EXACT.output_scale,
        fixed_kernel=None,
        tested=True,
        draws=DRAWS,
        seed=SEED,
    )
    told, residual = system.inputs, sample.residual
    added = over_blocks(
        lambda rows: right_hand_side_sums(told, x[rows], y[rows], {"a": law[rows]}, [plan], rows.start, residual)["a"]
    )
    answer = version_answer(system, plan, added)
    scored = over_blocks(
        lambda rows: score_sums(told, x[rows], y[rows], {"a": law[rows]}, [answer], rows.start, None)[0]["a"]
    )
    found = np.concatenate([[scored.added["statistic"]], scored.added["null statistics"]])

    pools, chosen = pools_of(family, law, y), plan.simulated.splits.choices(np.arange(N))
    assert_array_equal(chosen[:, 0], 0)
    points, _ = told.points(x, 0)
    vectors = np.concatenate([np.array(part) for _, _, part in told.tiles(points)])
    delta = plan.simulated.tested.draws(y, law).of_values(np.take_along_axis(pools, chosen, axis=1)).astype(np.float64)
    coefficients = np.einsum("nk,nsr->skr", vectors, delta) * told.filters[:, None]
    expected = np.linalg.norm(vectors @ coefficients, axis=2).sum(axis=1)
    assert_allclose(found, expected, rtol=1e-5)
