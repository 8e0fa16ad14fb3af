"""One seed gives every purpose a stream of its own, and no caller's generator is one of them."""

import itertools

import numpy as np
import pytest

from congruence.kernels.distributions import Normal, Poisson, Samples
from congruence.kernels.engine.null import drawn_targets, features_of_split
from congruence.kernels.engine.plan import model_output_kernel
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.pit import pit_values
from congruence.kernels.resampling import ScoreStatistics
from congruence.kernels.rng import stream


def test_every_purpose_seed_and_index_has_its_own_numbers() -> None:
    ours = {
        (seed, purpose, index): stream(seed, purpose, *index).integers(2**63)
        for seed, purpose, index in itertools.product(
            range(5), ("null draws", "landmarks", "samples"), ((), (0,), (1,), (0, 0), (64,))
        )
    }
    callers = {
        tuple(key): np.random.default_rng(key).integers(2**63)
        for length in (1, 2, 3)
        for key in itertools.product(range(5), repeat=length)
    }
    assert len(set(ours.values())) == len(ours)
    assert not set(ours.values()) & set(callers.values())
    assert stream(3, "landmarks", 1).integers(2**63) == ours[3, "landmarks", (1,)]
    assert stream(np.int64(3), "landmarks", np.int32(1)).integers(2**63) == ours[3, "landmarks", (1,)]


def test_a_generator_passes_through_and_another_seed_is_refused() -> None:
    rng = np.random.default_rng(0)
    assert stream(rng, "samples") is rng
    for seed in (1.5, None, "0"):
        with pytest.raises(InvalidInputError, match="whole number"):
            stream(seed, "samples")


def test_draws_by_seed_are_not_those_of_the_callers_generator() -> None:
    model = Normal(np.zeros(50), 1.0)
    assert np.max(np.abs(model.sample(1, seed=0)[:, 0] - np.random.default_rng(0).normal(size=50))) > 0.1
    members = Samples(np.arange(1000.0)[None, :].repeat(50, axis=0))
    assert np.any(members.sample(1, seed=0)[:, 0] != np.random.default_rng(0).integers(1000, size=50))


def test_no_simulated_target_repeats_targets_drawn_with_the_same_seed() -> None:
    model = Normal(np.linspace(-1.0, 1.0, 300), 1.0)
    for y in (model.sample(1, seed=np.random.default_rng(0))[:, 0], model.sample(1, seed=0)[:, 0]):
        delta = features_of_split(y, model, model_output_kernel(y, model)).against(y, model)
        simulated = delta(drawn_targets(y, model, np.arange(300), 1, 0))[:, 0]
        assert abs(np.corrcoef(delta(y[:, None])[:, 0, 0], simulated[:, 0])[0, 1]) < 0.3


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_buckets_of_the_bootstrap_do_not_follow_the_randomised_pit(seed: int) -> None:
    """With the same keyed numbers for both, the rows of a bucket had nearly the same PIT: four times too wide."""
    n = 50_000
    y = np.random.default_rng(5).poisson(0.5, n).astype(float)
    pit = pit_values(y, Poisson(np.full(n, 0.5)), seed=seed)
    mean = ScoreStatistics.of({"u": pit, "below": pit <= 0.3}).estimates()
    assert mean["u"].high - mean["u"].low == pytest.approx(2 * 1.96 * np.sqrt(1 / 12 / n), rel=0.12)
    assert mean["below"].high - mean["below"].low == pytest.approx(2 * 1.96 * np.sqrt(0.21 / n), rel=0.12)
