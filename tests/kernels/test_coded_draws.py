"""Draws that share a linear code: sums of all at once are those of each by its definition, by row blocks too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from congruence.kernels import EXACT, RBF, NegativeBinomial, Normal, Samples, prepare
from congruence.kernels.engine.blocks import BlockRows, BlockSums, HeldRows, LocalPasses
from congruence.kernels.engine.congruence_test import ENTRY_BITS, POOL_BITS, SimulatedSplits, simulated_errors
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.null import (
    SIGN_BITS,
    SPLITS,
    coefficients_of_split,
    drawn_targets,
    features_of_split,
    row_draws,
    true_coefficients,
)
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.uncertainty import kept_under_signs
from congruence.kernels.rng import row_choices, row_codes, sums_by_code, walsh_hadamard


def signs_of(codes, draws):
    """-1 or 1 for each row and draw g, (n, draws): the definition of the signs."""
    return (1.0 - 2.0 * (np.bitwise_count(codes[:, None] & draws) & 1)).astype(np.float32)


def choices_of(simulated, positions):
    """Which value of its pool a row gives to each simulated split, (n, 1 + draws): the definition, bit by bit."""
    chosen = np.zeros((len(simulated.book), 1 + simulated.draws), dtype=np.intp)
    for bit in range(simulated.pool_bits):
        ones = np.bitwise_count(simulated.book[:, 1 << bit, None] & simulated.splits) & 1
        chosen |= ones.astype(np.intp) << bit
    return chosen[row_codes(positions, simulated.entry_bits, simulated.seed, "pools of null draws")]


def smoother_of(n, seed=0):
    return prepare(np.random.default_rng(seed).normal(size=(n, 4)), input_kernel=EXACT.input_kernel).smoother


def test_the_transform_is_its_definition():
    values = np.random.default_rng(0).normal(size=(16, 3, 2))
    signs = signs_of(np.arange(16), np.arange(16))
    assert_allclose(walsh_hadamard(values), np.einsum("ga,akr->gkr", signs, values), atol=1e-12)


@pytest.mark.parametrize(("n", "columns"), [(5, 1), (300, 7), (3000, 2)])
def test_signs_of_all_draws_at_once_are_the_signs_one_by_one(n, columns):
    smoother = smoother_of(n)
    noise = np.random.default_rng(1).normal(size=(n, columns)).astype(np.float32)
    codes = row_codes(np.arange(n), 5, 3, "a purpose")
    together = kept_under_signs(sums_by_code(smoother.analysis, noise, codes, 5), smoother.filters, 21)
    signs = signs_of(codes, np.arange(1, 22))
    one_by_one = [smoother.coefficients(signs[:, [draw]] * noise) for draw in range(21)]
    assert_allclose(together, one_by_one, atol=1e-5 * np.abs(one_by_one).max())


def test_drawn_splits_under_signs_are_what_they_say():
    n, rank = 400, 3
    smoother = smoother_of(n)
    drawn = np.random.default_rng(1).normal(size=(n, SPLITS, rank)).astype(np.float32)
    codes = row_codes(np.arange(n), SIGN_BITS, 0, "a purpose")
    sums = sums_by_code(smoother.analysis, drawn.reshape(n, -1), codes, SIGN_BITS)
    signs = signs_of(codes, np.arange(2**SIGN_BITS))
    expected = [smoother.coefficients(signs[:, [g]] * drawn[:, s]) for s in range(SPLITS) for g in range(2**SIGN_BITS)]
    assert_allclose(
        true_coefficients(BlockSums({"expected": sums}), smoother.filters), expected, atol=1e-5 * np.abs(expected).max()
    )


def test_any_two_draws_of_signs_are_independent_over_rows_with_all_codes():
    signs = signs_of(np.arange(64), np.arange(64))
    assert_array_equal(signs.T @ signs, 64 * np.eye(64))


@pytest.mark.parametrize(("draws", "pool_bits", "entry_bits"), [(1, 5, 8), (99, 4, 5), (999, 5, 8), (300, 1, 0)])
def test_simulated_splits_are_a_set_of_a_group_of_choices(draws, pool_bits, entry_bits):
    simulated = SimulatedSplits(draws, pool_bits, entry_bits, seed=4)
    positions = np.arange(500)
    splits, choices = simulated.splits, choices_of(simulated, positions)
    assert splits[0] == 0
    assert len(np.unique(splits)) == 1 + draws
    assert_array_equal(choices[:, 0], 0)  # the observed split is the identity
    # g -> choices is linear over two elements: any two draws, combined, are again an element's choices.
    places = {int(split): place for place, split in enumerate(splits)}
    pairs = [(a, b) for a in splits[1:12] for b in splits[1:12] if int(a ^ b) in places]
    for a, b in pairs:
        both = choices[:, places[int(a)]] ^ choices[:, places[int(b)]]
        assert_array_equal(choices[:, places[int(a ^ b)]], both)
    if draws >= 99 and entry_bits:
        shares = np.bincount(choices[:, 1:].ravel(), minlength=2**pool_bits) / choices[:, 1:].size
        assert_allclose(shares, 2.0**-pool_bits, rtol=0.2)


@pytest.mark.parametrize("law", ["normal", "ensemble"])
def test_statistics_of_the_test_are_those_of_the_chosen_targets(law):
    rng = np.random.default_rng(0)
    n = 700
    smoother, y = smoother_of(n), rng.normal(size=n)
    model = Normal(np.full(n, 0.2), np.ones(n)) if law == "normal" else Samples(rng.normal(size=(n, 6)))
    features = features_of_split(y, model, RBF(0.5))
    kept = coefficients_of_split(smoother, y, model, features, draws=50, seed=7)
    delta, drawn = features.against(y, model), drawn_targets(y, model, np.arange(n), 2**POOL_BITS - 1, 7)
    pool = np.concatenate([delta(y[:, None]), delta(drawn)], axis=1)
    chosen = choices_of(SimulatedSplits(50, POOL_BITS, ENTRY_BITS, 7), np.arange(n))
    rhs = np.take_along_axis(pool, chosen[:, :, None], axis=1)
    errors = np.array([np.linalg.norm(smoother(rhs[:, split]), axis=1) for split in range(51)]).T
    found = simulated_errors(smoother.synthesis, kept)
    assert_allclose(found.observed, errors[:, 0], rtol=1e-4)
    assert_allclose(found.totals, errors.sum(axis=0), rtol=1e-5)
    assert np.abs(found.reached - np.sum(errors[:, 1:] >= errors[:, :1] * (1 - 1e-5), axis=1)).max() <= 1


@pytest.mark.parametrize("kind", ["heavy tails", "counts"])
def test_the_level_of_simulated_splits_holds(kind):
    """p-values of pools that are exchangeable, by the smallest code that any test uses: 500 splits of 40 rows."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(40, 3)).astype(np.float32)
    p_values = []
    for split in range(500):
        pool = (
            rng.standard_t(3, size=(40, 16, 1)) if kind == "heavy tails" else rng.poisson(0.7, size=(40, 16, 1)) - 0.7
        )
        simulated = SimulatedSplits(19, 4, 3, seed=split)
        sums = np.zeros((2**simulated.bits, 3, 1), dtype=np.float32)
        simulated.add(sums, vectors, pool.astype(np.float32), np.arange(40))
        errors = np.linalg.norm(simulated.coefficients(sums), axis=(1, 2))
        p_values.append(np.mean(errors >= errors[0] * (1.0 - 1e-5)))
    p = np.array(p_values)
    assert np.mean(p <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(p <= 0.1) == pytest.approx(0.1, abs=0.04)
    assert np.mean(p) == pytest.approx(0.525, abs=0.04)


ROWS, DRAWS, SEED = 150, 40, 5
PURPOSE = "targets of a true version"


def version(family, mean):
    if family == "counts":
        law = NegativeBinomial(np.exp(0.5 * mean), np.full(ROWS, 0.3))
        return law, law.sample(1, seed=2)[:, 0]
    values = Normal(mean, np.ones(ROWS)).sample(8, seed=2)
    return Samples(values[:, 1:]), values[:, 0]


def pools_of(family, law, y):
    """The observed target, and the 15 of a row that stand for it."""
    if family == "counts":
        drawn = row_draws(law, np.arange(ROWS), 15, SEED, PURPOSE)
    else:
        values = np.column_stack([y, law.values])
        drawn = values[np.arange(ROWS)[:, None], row_choices(np.arange(ROWS), 15, values.shape[1], SEED, PURPOSE)]
    return np.column_stack([y, drawn])


@pytest.mark.parametrize("family", ["counts", "ensemble"])
def test_statistics_of_blocks_are_those_of_the_chosen_targets(family):
    """Then p is exact: pools are exchangeable if the version is the truth, and the splits are a group of exchanges."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(ROWS, 6))
    mean = 1.0 + np.tanh(x[:, 0])
    law, y = version(family, mean)
    rows = HeldRows(x, y, {"a": law}, block_rows=40)
    solved = Driver(LocalPasses(rows), EXACT, SEED).solve(Ask(["a"], draws=DRAWS), 60, lambda *_: None)
    plan, told = solved.answers[0].version, solved.system.inputs
    found = solved.scores["a"].added["statistics"]

    pools, chosen = pools_of(family, law, y), choices_of(plan.simulated.splits, np.arange(ROWS))
    assert_array_equal(chosen[:, 0], 0)
    points, _ = told.points(BlockRows(HeldRows(x, block_rows=ROWS), 0, 0))
    vectors = np.concatenate([np.array(part) for _, _, part in told.tiles(points)])
    delta = plan.simulated.tested.against(y, law)(np.take_along_axis(pools, chosen, axis=1)).astype(np.float64)
    coefficients = np.einsum("nk,nsr->skr", vectors, delta) * told.filters[:, None]
    expected = np.linalg.norm(vectors @ coefficients, axis=2).sum(axis=1)
    assert_allclose(found, expected, rtol=1e-5)
