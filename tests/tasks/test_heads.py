"""Heads state what their losses are the likelihoods of, with the weights and detachments of their papers."""

from __future__ import annotations

from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from databases import mlflow_database
from torch import nn

from congruence.kernels.distributions import DoublePoisson
from congruence.tasks.contract import load_predictive_model, log_predictive_model
from congruence.tasks.networks.heads import BETA, HEADS, FaithfulLayer, HeadedNetwork, distribution
from congruence.tasks.reproduction.training import train

LIKELIHOODS = ("gaussian", "natural", "poisson", "negative_binomial", "mixture")


def raw_outputs(head: str, rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    raw = 0.7 * torch.randn((rows, HEADS[head].outputs), generator=generator, dtype=torch.float64)
    return raw, torch.randint(0, 9, (rows,), generator=generator).double()


def log_prob(head: str, raw: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    stated = {name: value.numpy() for name, value in HEADS[head].parameters(raw).items()}
    return distribution(HEADS[head].family, stated).log_prob(y.numpy())


@pytest.mark.parametrize("head", LIKELIHOODS)
def test_a_loss_is_the_negative_log_likelihood_of_what_is_stated(head: str) -> None:
    raw, y = raw_outputs(head)
    np.testing.assert_allclose(HEADS[head].loss(raw, y).numpy(), -log_prob(head, raw, y), rtol=1e-9)


@pytest.mark.parametrize("log_dispersion", [-30.0, -14.0, -9.5, -9.0, -2.0])
def test_the_negative_binomial_keeps_its_digits_down_to_the_poisson_law(log_dispersion: float) -> None:
    raw = torch.tensor([[2.0, log_dispersion], [3.4, log_dispersion]], requires_grad=True)
    y = torch.tensor([7.0, 31.0])
    loss = HEADS["negative_binomial"].loss(raw, y)
    loss.sum().backward()
    np.testing.assert_allclose(
        loss.detach().numpy(), -log_prob("negative_binomial", raw.detach().double(), y), rtol=1e-6
    )
    assert torch.isfinite(raw.grad).all()


def test_the_double_poisson_loss_leaves_out_the_normaliser_alone() -> None:
    raw, y = raw_outputs("double_poisson")
    difference = HEADS["double_poisson"].loss(raw, y).numpy() + log_prob("double_poisson", raw, y)
    mean, phi = (value.numpy() for value in HEADS["double_poisson"].parameters(raw).values())
    counts = np.arange(200.0)
    for row in range(5):
        again = HEADS["double_poisson"].loss(raw[row].expand(200, 2), torch.as_tensor(counts)).numpy()
        assert np.log(np.exp(-again).sum()) == pytest.approx(-difference[row], abs=1e-9)
    assert DoublePoisson(mean, phi).mu == pytest.approx(mean)
    # Efron's density at (10, 2), whose sum over all counts is published.
    at_ten = torch.tensor([[np.log(10.0), np.log(2.0)]], dtype=torch.float64).expand(200, 2)
    assert np.exp(-HEADS["double_poisson"].loss(at_ten, torch.as_tensor(counts)).numpy()).sum() == pytest.approx(
        0.9956139101, abs=1e-9
    )


def test_beta_weighs_each_term_by_a_variance_that_no_gradient_flows_through() -> None:
    raw, y = raw_outputs("beta_gaussian")
    weighed, plain = raw.clone().requires_grad_(), raw.clone().requires_grad_()
    loss = HEADS["beta_gaussian"].loss(weighed, y)
    nll = HEADS["gaussian"].loss(plain, y)
    weight = torch.exp(raw[:, 1]) ** BETA
    torch.testing.assert_close(loss, nll * weight)
    loss.sum().backward()
    nll.sum().backward()
    torch.testing.assert_close(weighed.grad, plain.grad * weight[:, None])


def test_the_faithful_mean_has_the_gradient_of_least_squares_and_the_variance_spares_the_features() -> None:
    raw, y = raw_outputs("faithful")
    raw.requires_grad_()
    HEADS["faithful"].loss(raw, y).sum().backward()
    torch.testing.assert_close(raw.grad[:, 0], (raw[:, 0] - y).detach())
    nll = raw.detach().clone().requires_grad_()
    HEADS["gaussian"].loss(nll, y).sum().backward()
    torch.testing.assert_close(raw.grad[:, 1], nll.grad[:, 1])

    features = torch.randn(5, 3, requires_grad=True)
    FaithfulLayer(3, 2)(features)[:, 1].sum().backward()
    assert features.grad is None or not features.grad.any()


@pytest.mark.parametrize("head", sorted(HEADS))
def test_training_lowers_the_loss_and_is_repeated_by_its_seed(head: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (200, 1))
    y = rng.poisson(np.exp(1.0 + x[:, 0])).astype(float)
    settings = {"hidden": (8,), "batch": 50, "learning_rate": 0.02, "seed": 1}
    loss = HEADS[head].loss
    first, last, again = (
        train(head, (x, y), (x, y), epochs=epochs, **settings)  # type: ignore[arg-type]
        for epochs in (1, 12, 12)
    )
    inputs, targets = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)
    with torch.no_grad():
        assert loss(last.raw(inputs), targets).mean() < loss(first.raw(inputs), targets).mean()
        assert torch.equal(last.raw(inputs), again.raw(inputs))
    assert np.isfinite(last.predict(x).log_prob(y)).all()


def test_a_network_is_logged_by_the_ordinary_contract(tmp_path: Path) -> None:
    mlflow.set_tracking_uri(mlflow_database(tmp_path))
    mlflow.set_experiment(
        experiment_id=mlflow.create_experiment("heads", artifact_location=(tmp_path / "artifacts").as_uri())
    )
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    network = HeadedNetwork(backbone, 4, HEADS["double_poisson"], np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    frame = pd.DataFrame({"a": [0.0, 1.0, 5.0], "b": [2.0, -1.0, 0.0]})
    info = log_predictive_model(network, name="counts", family=network.head.family, input_example=frame)
    loaded = load_predictive_model(info.model_uri).predict(frame)
    wanted = network.predict(frame.to_numpy())
    for name, values in wanted.parameters().items():
        np.testing.assert_allclose(loaded.parameters()[name], values, rtol=1e-6)
