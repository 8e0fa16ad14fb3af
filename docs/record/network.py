"""Small networks whose outputs are the parameters of a distribution, trained by its likelihood."""

from __future__ import annotations

import torch
from table import Table

STEPS = 300


class DistributionNetwork(torch.nn.Module):
    """A mixture of normal distributions; of one part a normal distribution.

    Args:
        inputs: how many.
        parts: of the mixture.
        center, spread: of the targets.
        hidden: units; 0 for a model that is linear in its inputs.
    """

    def __init__(self, inputs: int, parts: int, center: float, spread: float, hidden: int = 48) -> None:
        super().__init__()
        self.center, self.spread = center, spread
        first = [torch.nn.Linear(inputs, hidden), torch.nn.Tanh()] if hidden else []
        self.layers = torch.nn.Sequential(*first, torch.nn.Linear(hidden or inputs, 3 * parts))

    def forward(self, rows: torch.Tensor) -> torch.distributions.Distribution:
        """The distributions of some rows, (rows,)."""
        weights, means, scales = self.layers(rows).double().chunk(3, dim=1)
        scales = self.spread * (torch.nn.functional.softplus(scales) + 1e-2)
        if weights.shape[1] == 1:
            return torch.distributions.Normal((self.center + self.spread * means)[:, 0], scales[:, 0])
        parts = torch.distributions.Normal(self.center + self.spread * means, scales)
        return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), parts)


def trained(table: Table, parts: int, *, hidden: int = 48, seed: int = 0) -> DistributionNetwork:
    """Returns a network after ``STEPS`` steps on all rows."""
    x, y = table.fitted
    torch.manual_seed(seed)
    network = DistributionNetwork(x.shape[1], parts, float(y.mean()), float(y.std()), hidden)
    inputs, targets = torch.tensor(x.to_numpy()).float(), torch.tensor(y.to_numpy())
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss: torch.Tensor = -network(inputs).log_prob(targets).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network
