"""Widmann et al. (2021), section 4.3: networks on Friedman 1 lose their calibration, their ensemble later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import pandas as pd
import torch
from experiment import Array, Claim, Options, Outcome, main
from networks import repeatable
from pictures import curves
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from torch import nn

from congruence.kernels import (
    RBF,
    Distribution,
    Kernel,
    Mixture,
    Normal,
    PredictionKernel,
    calibration_test,
    negative_log_likelihood,
    squared_error,
    squared_kernel_calibration_error,
)

SOURCE = "Widmann et al. 2021, section 4.3 and the authors' script"
MEMBERS = 10
MEASURES = ("NLL", "MSE", "SKCE")


def friedman(options: Options) -> Outcome:
    """Ten networks 10-200-50-1 on 100 rows by least squares, variance of the residuals; measured on 50 test rows."""
    rng = np.random.default_rng(options.seed + 100)
    (x, y), (x_test, y_test) = friedman_rows(100, rng), friedman_rows(50, rng)
    steps = (0, 10, 100) if options.quick else (0, 10, 30, 100, 200, 300, 500, 750, 1000, 1500)
    members = options.size(MEMBERS, 2)
    histories = [
        homoscedastic_history(x, y, x_test, hidden=(200, 50), steps=steps, seed=options.seed + member)
        for member in range(members)
    ]
    rows = []
    for place, step in enumerate(steps):
        distributions = [history[place] for history in histories]
        measured = [_measures(distribution, y_test, options) for distribution in distributions]
        ensemble = _measures(Mixture(np.full(members, 1.0 / members), distributions), y_test, options)
        means = {name: float(np.mean([one[name] for one in measured])) for name in ensemble}
        rejected = float(np.mean([one["p"] < 0.05 for one in measured]))
        rows.append(
            {"step": step, **{f"members {k}": v for k, v in means.items()}, "members rejected": rejected}
            | {f"ensemble {k}": v for k, v in ensemble.items()}
        )
    table = pd.DataFrame(rows)
    last, best = table.iloc[-1], table.iloc[int(table["members NLL"].argmin())]
    least = table.iloc[int(table["members MSE"].argmin())]
    overfitted = table[table["step"] > best["step"]]
    claims = (
        Claim(
            "The networks lose likelihood and calibration while the squared error of the test rows still falls.",
            SOURCE,
            bool(best["step"] < least["step"] and best["members SKCE"] < least["members SKCE"]),
            f"the NLL is least after {best['step']:.0f} steps ({best['members NLL']:.2f}, biased SKCE "
            f"{best['members SKCE']:.4f}, MSE {best['members MSE']:.2f}), the MSE after {least['step']:.0f} "
            f"({least['members NLL']:.2f}, {least['members SKCE']:.4f}, {least['members MSE']:.2f}); after "
            f"{last['step']:.0f}: {last['members NLL']:.2f}, {last['members SKCE']:.4f}, {last['members MSE']:.2f}, "
            f"and {last['members rejected']:.0%} of the networks are rejected at 5 %",
        ),
        Claim(
            "Where the networks overfit, their ensemble has a lower NLL, MSE and SKCE than they have on average.",
            SOURCE,
            len(overfitted) > 0
            and all(
                bool((overfitted[f"ensemble {k}"] < overfitted[f"members {k}"]).all()) for k in ("NLL", "MSE", "SKCE")
            ),
            f"step {last['step']:.0f}, ensemble against members: NLL {last['ensemble NLL']:.2f} / "
            f"{last['members NLL']:.2f}, MSE {last['ensemble MSE']:.2f} / {last['members MSE']:.2f}, biased SKCE "
            f"{last['ensemble SKCE']:.4f} / {last['members SKCE']:.4f}; p of the ensemble {last['ensemble p']:.3f}",
        ),
    )
    at = np.maximum(table["step"].to_numpy(float), 1.0)
    panels = [
        (name, "training step", name, {who: (at, table[f"{who} {name}"].to_numpy()) for who in ("members", "ensemble")})
        for name in ("MSE", "NLL", "SKCE", "p")
    ]
    figures = {"friedman": curves(panels, columns=2, log="xy")}
    notes = (
        "Full-batch Adam, learning rate 1e-3, Glorot weights; the first variance is that of the untrained residuals.",
        "Section 4 of the paper is not in the text at hand: the setting is that of the authors' published script.",
    )
    return Outcome("friedman", "Friedman 1 and an ensemble", "SKCE", claims, table, figures, notes)


def _measures(distribution: Distribution, y: Array, options: Options) -> dict[str, float]:
    kernel = EnsembleWasserstein() if distribution.mixture is not None else None
    chosen = {"prediction_kernel": kernel, "output_kernel": RBF(0.5)}
    test = calibration_test(y, distribution, replicates=options.size(500, 99), seed=options.seed, **chosen)  # type: ignore[arg-type]
    return {
        "MSE": float(np.mean(squared_error(y, distribution))),
        "NLL": float(np.mean(negative_log_likelihood(y, distribution, infinite="keep"))),
        "SKCE": squared_kernel_calibration_error(y, distribution, estimator="biased", **chosen),  # type: ignore[arg-type]
        "p": test.p_value,
    }


class EnsembleWasserstein(PredictionKernel):
    """exp(-MW_2), MW_2 the lifted Wasserstein distance of ensembles of K normals of equal weight (appendix D.3).

    MW_2(p, p')^2 is the least mean of W_2(p_k, p'_l)^2 over the ways to pair the members (Delon and Desolneux 2020).
    """

    def coordinates(self, parts: Sequence[Distribution], output_kernel: Kernel) -> list[Array]:  # noqa: ARG002
        """Return location and scale of each member side by side, (n, 2K), for each of the parts."""
        return [
            np.hstack([np.column_stack([m.mean(), m.std()]) for m in cast("Mixture", part).components])
            for part in parts
        ]

    def distances(self, a: Array, b: Array) -> Array:
        """Return MW_2 of each row of a from each row of b."""
        result = np.empty((len(a), len(b)))
        for i, j in np.ndindex(*result.shape):
            costs = cdist(a[i].reshape(-1, 2), b[j].reshape(-1, 2), "sqeuclidean")
            result[i, j] = costs[linear_sum_assignment(costs)].mean()
        return np.sqrt(result)


def friedman_rows(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Friedman 1 (1991): ten inputs of which five matter, noise N(0, 1)."""
    x = rng.uniform(size=(rows, 10))
    mean = 10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2 + 10.0 * x[:, 3] + 5.0 * x[:, 4]
    return x, mean + rng.standard_normal(rows)


def homoscedastic_history(
    x: Array, y: Array, at: Array, *, hidden: Sequence[int], steps: Sequence[int], seed: int
) -> list[Normal]:
    """The predictions at ``at`` after each of ``steps`` full-batch steps of Adam, on one thread.

    The mean is a network, the variance the mean squared residual of the training rows.
    """
    with repeatable(seed):
        return _history(x, y, at, hidden, steps)


def _history(x: Array, y: Array, at: Array, hidden: Sequence[int], steps: Sequence[int]) -> list[Normal]:
    widths = [x.shape[1], *hidden, 1]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets, asked = torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(at)
    found: list[Normal] = []
    for step in range(max(steps) + 1):
        residuals = network(inputs)[:, 0] - targets
        loss = residuals.square().mean()
        if step in steps:
            with torch.no_grad():
                mean = network(asked)[:, 0].numpy()
            found.append(Normal(mean, np.full(len(at), float(loss.detach().sqrt()))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


if __name__ == "__main__":
    main(friedman)
