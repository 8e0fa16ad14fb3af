"""Training of the interpreter: the shipped weights beat the paper's network, and both frameworks agree."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pit_networks import (
    DensityNetwork,
    DensityNetworkSettings,
    interpreter_distances,
    train_paper_network,
)

from congruence.kernels.pit_interpreter import interpret_pit, mixtures
from congruence.kernels.pit_interpreter.network import decompose
from congruence.kernels.pit_interpreter.synthetic import draw
from congruence.kernels.plots import pit_interpretation
from congruence.tasks.pit_training.networks import InterpreterNetwork
from congruence.tasks.pit_training.training import TrainingSettings, train_interpreter
from congruence.tasks.reproduction.laws import inverse_problem

PROTEIN = Path(__file__).resolve().parents[3] / "shared" / "data" / "protein"


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
        cdf = network(drawn.counts).cdf(torch.from_numpy(mixtures.SUPPORT.astype(np.float32)))
    assert mixtures.wasserstein(cdf.numpy(), drawn.cdf).mean() < 0.3


def test_a_density_network_lacks_a_mode_on_the_inverse_problem() -> None:
    network = DensityNetwork(*inverse_problem(5000), DensityNetworkSettings(width=32, epochs=60, batch_size=256))
    x, y = inverse_problem(5000, seed=1)
    interpretation = interpret_pit(network.predict(x).cdf(y))
    assert interpretation.verdict.label == "more modes"
    figure = pit_interpretation(interpretation)
    assert "lacks a mode" in figure.get_suptitle()
    assert [axes.get_xlabel() for axes in figure.axes] == ["PIT value", "predictive standard deviations"]


@pytest.mark.skipif(not PROTEIN.exists(), reason="the protein data is not beside the repository")
def test_a_density_network_is_skewed_on_protein() -> None:
    """Section 4.2: the outcomes are skewed to the right of a normal; scores near the paper's 2.81 and 2.34."""
    data = np.loadtxt(PROTEIN / "data.csv.gz", delimiter=",")
    test = np.loadtxt(PROTEIN / "test_mask.csv.gz", delimiter=",", usecols=0) == 1.0
    inputs, targets = data[:, :-1], 7.7485 + 6.1183 * data[:, -1]
    predictive = DensityNetwork(inputs[~test], targets[~test]).predict(inputs[test])
    assert -predictive.log_prob(targets[test]).mean() == pytest.approx(2.81, abs=0.1)
    assert predictive.crps(targets[test]).mean() == pytest.approx(2.34, abs=0.1)
    verdict = interpret_pit(predictive.cdf(targets[test])).verdict
    assert "skewed right" in [finding.kind for finding in verdict.findings]
