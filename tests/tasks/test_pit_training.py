"""Training of the interpreter: the shipped weights beat the paper's network, and both frameworks agree."""

import numpy as np
import pytest
import torch
from pit_networks import interpreter_distances, train_paper_network
from train_pit_interpreter import InterpreterNetwork, TrainingSettings, draw, train_interpreter

from congruence.kernels.pit_interpreter.shape import SUPPORT, decompose, wasserstein


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_numpy_evaluates_what_torch_trains() -> None:
    torch.manual_seed(0)
    network = InterpreterNetwork()
    counts = draw(np.random.default_rng(0), 20).counts
    with torch.no_grad():
        output = network(counts)
    estimate = decompose(counts, {name: value.numpy() for name, value in network.state_dict().items()})
    np.testing.assert_allclose(estimate.weights, output.weights, atol=1e-5)
    np.testing.assert_allclose(estimate.means, output.means, atol=1e-5)
    np.testing.assert_allclose(estimate.scales, output.scales, rtol=1e-5)
    np.testing.assert_allclose(estimate.faults, torch.sigmoid(output.faults)[:, :-1], atol=1e-5)


def test_training_repeats_and_improves() -> None:
    settings = TrainingSettings(steps=40, batch_size=128)
    first, second = (train_interpreter(settings, report=lambda _: None) for _ in range(2))
    held_out = draw(np.random.default_rng(1), 300)
    parameters = [{k: v.numpy() for k, v in network.state_dict().items()} for network in (first, second)]
    for name, value in parameters[0].items():
        np.testing.assert_array_equal(value, parameters[1][name])
    torch.manual_seed(settings.seed)
    untrained = {name: value.numpy() for name, value in InterpreterNetwork().state_dict().items()}
    errors = [interpreter_distances(held_out, p, refined=False).mean() for p in (untrained, parameters[0])]
    assert errors[1] < 0.7 * errors[0]


def test_shipped_weights_keep_the_recorded_distance() -> None:
    """Mean 1-Wasserstein distance on 1,000 held-out histograms of the paper: its recipe reaches 0.020."""
    held_out = draw(np.random.default_rng(2), 1000, prior="paper")
    assert interpreter_distances(held_out).mean() < 0.017


def test_the_paper_s_recipe_trains() -> None:
    network = train_paper_network(seconds=1.0)
    drawn = draw(np.random.default_rng(3), 200, prior="paper")
    with torch.no_grad():
        cdf = network(drawn.counts).cdf(torch.from_numpy(SUPPORT.astype(np.float32)))
    assert wasserstein(cdf.numpy(), drawn.cdf).mean() < 0.3
