r"""Networks of probabilistic regression: their heads (what a last layer says, the loss that trains it), and training.

A head turns features (n, d) into raw outputs (n, p), raw outputs into the parameters of a family, and raw outputs with
targets into a loss per row. The losses are the negative log-likelihoods of the stated distributions, changed as their
papers change them:

- ``gaussian``: (mu, log variance), Nix and Weigend (1994).
- ``beta_gaussian``: each term times variance^beta, through which no gradient flows, beta = 1/2 (Seitzer et al. 2022).
- ``faithful``: (y - mu)^2 / 2 - log N(y; mu, variance), the mean detached in the second term and the features detached
  before the variance's layer: the mean is what least squares gives (Stirn et al. 2023).
- ``natural``: eta_1 = r_0, eta_2 = -softplus(r_1) / 2 with mu = -eta_1 / (2 eta_2) and variance -1 / (2 eta_2) (Immer
  et al. 2023).
- ``poisson``: log rate. ``negative_binomial``: log mean and log dispersion alpha, variance mu + alpha mu^2.
- ``double_poisson``: log mu and log phi, by Efron's approximate density, whose normaliser the loss leaves out (Young
  et al. 2024); predictions are normalised.
- ``mixture``: K normals by logits, means and log scales (Bishop 1994).

A ``HeadedNetwork`` is a torch module: ``log_predictive_model(network, family=network.head.family, ...)`` logs it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from experiment import Array
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, poisson_nll_loss, softplus

from congruence.kernels import Distribution, DoublePoisson, Mixture, NegativeBinomial, Normal, Poisson

Rows: TypeAlias = tuple[Array, Array]
"""Inputs (n, d) and targets (n,)."""

BETA = 0.5
COMPONENTS = 5
_LARGEST_EXPONENT = 20.0  # exp of it fits every arithmetic; only the first steps of a training meet it
_LEAST_LOG_SCALE = -7.0
_MANY_TRIALS = 1e4  # from which on the series left out is below 1e-14

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Head:
    """One way to end a network.

    Attributes:
        name: its name here.
        family: of the stated distributions, as `log_predictive_model` knows it.
        outputs: length p of the raw outputs.
        parameters: raw outputs (n, p) to the family's parameters by name, (n,) each, or (n, K) of a mixture.
        loss: raw outputs and targets (n,) to the loss of each row, (n,).
        layer: makes the layer from d features to the p raw outputs.
    """

    name: str
    family: str
    outputs: int
    parameters: Callable[[Tensor], Parameters]
    loss: Callable[[Tensor, Tensor], Tensor]
    layer: Callable[[int, int], nn.Module] = nn.Linear


class FaithfulLayer(nn.Module):
    """A linear layer each for mean and log variance; the variance's gradients end before the features."""

    def __init__(self, features: int, outputs: int) -> None:  # noqa: ARG002
        super().__init__()
        self.mean = nn.Linear(features, 1)
        self.log_variance = nn.Linear(features, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Raw outputs (n, 2)."""
        return torch.cat([self.mean(features), self.log_variance(features.detach())], dim=1)


class HeadedNetwork(nn.Module):
    """A backbone and a head: inputs (n, d), scaled inside, to the parameters of the predictive distributions."""

    def __init__(self, backbone: nn.Module, width: int, head: Head, center: Array, scale: Array) -> None:
        super().__init__()
        self.backbone = backbone
        self.last = head.layer(width, head.outputs)
        self.head_name = head.name
        self.center: Tensor
        self.scale: Tensor
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32))

    @property
    def head(self) -> Head:
        """The head, by its name: functions do not travel with a logged model."""
        return HEADS[self.head_name]

    def raw(self, x: Tensor) -> Tensor:
        """Raw outputs (n, p)."""
        output: Tensor = self.last(self.backbone((x - self.center) / self.scale))
        return output

    def forward(self, x: Tensor) -> Parameters:
        """The parameters by name, in double precision: exp of a float32 would round what log_prob resolves."""
        return self.head.parameters(self.raw(x).double())

    def predict(self, x: Array) -> Distribution:
        """The predictive distributions of inputs (n, d)."""
        with torch.inference_mode():
            parameters = self.eval()(torch.from_numpy(np.array(x, dtype=np.float32)))
        return distribution(self.head.family, {name: value.numpy() for name, value in parameters.items()})


def distribution(family: str, parameters: Mapping[str, Array]) -> Distribution:
    """The distributions of a head's family from its parameters, in the constructor's order."""
    if family == "mixture":
        weights, loc, scale = parameters.values()
        return Mixture(weights, [Normal(m, s) for m, s in zip(loc.T, scale.T, strict=True)])
    return _FAMILIES[family](*parameters.values())


_FAMILIES: dict[str, Callable[..., Distribution]] = {
    "normal": Normal,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "double_poisson": DoublePoisson,
}


def _exp(value: Tensor) -> Tensor:
    return value.clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT).exp()


def _normal(raw: Tensor) -> Parameters:
    return {"loc": raw[:, 0], "scale": _exp(0.5 * raw[:, 1])}


def _gaussian_terms(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    return gaussian_nll_loss(mean, y, variance, full=True, eps=0.0, reduction="none")


def _gaussian_loss(raw: Tensor, y: Tensor) -> Tensor:
    return _gaussian_terms(raw[:, 0], _exp(raw[:, 1]), y)


def _beta_loss(raw: Tensor, y: Tensor) -> Tensor:
    variance = _exp(raw[:, 1])
    return _gaussian_terms(raw[:, 0], variance, y) * variance.detach() ** BETA


def _faithful_loss(raw: Tensor, y: Tensor) -> Tensor:
    mean = raw[:, 0]
    return 0.5 * (y - mean).square() + _gaussian_terms(mean.detach(), _exp(raw[:, 1]), y)


def _natural_precision(raw: Tensor) -> Tensor:
    return softplus(raw[:, 1]).clamp_min(math.exp(-_LARGEST_EXPONENT))  # -2 eta_2


def _natural(raw: Tensor) -> Parameters:
    precision = _natural_precision(raw)
    return {"loc": raw[:, 0] / precision, "scale": precision.rsqrt()}


def _natural_loss(raw: Tensor, y: Tensor) -> Tensor:
    first, precision = raw[:, 0], _natural_precision(raw)
    fit = first * y - 0.5 * precision * y.square() - 0.5 * first.square() / precision
    return -(fit + 0.5 * precision.log() - 0.5 * math.log(2.0 * math.pi))


def _poisson(raw: Tensor) -> Parameters:
    return {"rate": _exp(raw[:, 0])}


def _poisson_loss(raw: Tensor, y: Tensor) -> Tensor:
    return poisson_nll_loss(raw[:, 0].clamp_max(_LARGEST_EXPONENT), y, log_input=True, reduction="none") + torch.lgamma(
        y + 1.0
    )


def _negative_binomial(raw: Tensor) -> Parameters:
    return {"mean": _exp(raw[:, 0]), "dispersion": _exp(raw[:, 1])}


def _negative_binomial_loss(raw: Tensor, y: Tensor) -> Tensor:
    # In double precision: dispersion falls to nothing on underdispersed counts, and lgamma's differences cancel.
    mean, dispersion = _negative_binomial(raw.double()).values()
    trials = 1.0 / dispersion
    counted = _log_rising_ratio(y.double(), trials) - torch.lgamma(y.double() + 1.0)
    loss = -(counted + torch.xlogy(y.double(), mean) - (y + trials) * torch.log1p(mean / trials))
    return loss.to(raw.dtype)


def _log_rising_ratio(y: Tensor, trials: Tensor) -> Tensor:
    """log Gamma(y + r) - log Gamma(r) - y log r, by Stirling's series where r is large."""
    direct = torch.lgamma(y + trials) - torch.lgamma(trials) - y * torch.log(trials)
    series = (y + trials - 0.5) * torch.log1p(y / trials) - y + (1.0 / (trials + y) - 1.0 / trials) / 12.0
    return torch.where(trials > _MANY_TRIALS, series, direct)


def _double_poisson(raw: Tensor) -> Parameters:
    return {"mean": _exp(raw[:, 0]), "inverse_dispersion": _exp(raw[:, 1])}


def _double_poisson_loss(raw: Tensor, y: Tensor) -> Tensor:
    mean, phi = _double_poisson(raw).values()
    y_log_y = torch.xlogy(y, y)
    base = 0.5 * torch.log(phi) - phi * mean - y + y_log_y - torch.lgamma(y + 1.0)
    return -(base + phi * (y + torch.xlogy(y, mean) - y_log_y))


def _mixture(raw: Tensor) -> Parameters:
    logits, loc, log_scale = raw.chunk(3, dim=1)
    scale = log_scale.clamp(_LEAST_LOG_SCALE, _LARGEST_EXPONENT).exp()
    return {"weights": torch.softmax(logits, dim=1), "loc": loc, "scale": scale}


def _mixture_loss(raw: Tensor, y: Tensor) -> Tensor:
    logits, loc, log_scale = raw.chunk(3, dim=1)
    scale = log_scale.clamp(_LEAST_LOG_SCALE, _LARGEST_EXPONENT)
    parts = -scale - 0.5 * ((y[:, None] - loc) * torch.exp(-scale)).square() - 0.5 * math.log(2.0 * math.pi)
    return -torch.logsumexp(torch.log_softmax(logits, dim=1) + parts, dim=1)


HEADS: dict[str, Head] = {
    head.name: head
    for head in (
        Head("gaussian", "normal", 2, _normal, _gaussian_loss),
        Head("beta_gaussian", "normal", 2, _normal, _beta_loss),
        Head("faithful", "normal", 2, _normal, _faithful_loss, FaithfulLayer),
        Head("natural", "normal", 2, _natural, _natural_loss),
        Head("poisson", "poisson", 1, _poisson, _poisson_loss),
        Head("negative_binomial", "negative_binomial", 2, _negative_binomial, _negative_binomial_loss),
        Head("double_poisson", "double_poisson", 2, _double_poisson, _double_poisson_loss),
        Head("mixture", "mixture", 3 * COMPONENTS, _mixture, _mixture_loss),
    )
}
"""The heads by name."""


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Inside, torch draws from ``seed`` and computes on one thread; afterwards both are as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def train(
    head: str,
    rows: Rows,
    validation: Rows,
    *,
    hidden: Sequence[int] = (128, 128, 128, 64),
    epochs: int = 200,
    batch: int = 32,
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-5,
    standardise: bool = False,
    seed: int = 0,
) -> HeadedNetwork:
    """A multilayer perceptron with ``head``: ReLU, AdamW, cosine to 0, the epoch of the best validation loss.

    The defaults are those of Young et al. (2024, appendix B) for the discrete wave.
    """
    with repeatable(seed):
        network = _untrained(head, rows[0], hidden, standardise)
        _fit(network, rows, validation, epochs, batch, learning_rate, weight_decay)
    return network.eval()


def _untrained(head: str, x: Array, hidden: Sequence[int], standardise: bool) -> HeadedNetwork:
    widths = [x.shape[1], *hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    center = x.mean(axis=0) if standardise else np.zeros(x.shape[1])
    scale = np.maximum(x.std(axis=0), 1e-8) if standardise else np.ones(x.shape[1])
    return HeadedNetwork(nn.Sequential(*layers), widths[-1], HEADS[head], center, scale)


def _fit(
    network: HeadedNetwork,
    rows: Rows,
    validation: Rows,
    epochs: int,
    batch: int,
    learning_rate: float,
    weight_decay: float,
) -> None:
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in rows)
    held, wanted = (torch.as_tensor(part, dtype=torch.float32) for part in validation)
    loss = network.head.loss
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best, kept = float("inf"), copy.deepcopy(network.state_dict())
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(x)), batch):
            optimizer.zero_grad()
            loss(network.raw(x[chosen]), y[chosen]).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            reached = float(loss(network.raw(held), wanted).mean())
        if reached < best:
            best, kept = reached, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
