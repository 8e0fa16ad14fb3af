"""Protocols with repeats: several draws of the model's samples, several bootstraps of the reference split.

The papers report mean and standard deviation over repeats: ``preprint`` draws l = 1 sample per point five times;
``ecai`` does so for each of ten bootstraps of the validation split, which adds the reference's own sampling error.
Draws are more right-hand sides on one preparation; a bootstrap is a preparation of the distinct rows with their counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_matrix, require_targets
from congruence.kernels.congruence import prepare
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.feature_maps import output_features
from congruence.kernels.functions import Kernel
from congruence.kernels.output_scales import output_kernel
from congruence.kernels.protocols import Protocol
from congruence.kernels.solvers import Solver
from congruence.kernels.target_errors import target_errors
from congruence.kernels.weighting import Reference, weighted_reference

PROBES = 8  # per repeat, for the noise floor: repeats average them further


@dataclass(frozen=True)
class RepeatedResult:
    """CCE over repeats of a protocol.

    Attributes:
        means: mean CCE over the points in each repeat, (repeats,).
        values: CCE of each point, averaged over the repeats, (m,).
        noise_floor: what the mean CCE of the true law would be near, with the samples' noise.
    """

    means: Array
    values: Array = field(repr=False)
    noise_floor: float

    @property
    def mean(self) -> float:
        """Mean over the repeats of the mean CCE."""
        return float(np.mean(self.means))

    @property
    def std(self) -> float:
        """Standard deviation over the repeats (ddof 1); 0 for one repeat."""
        return float(np.std(self.means, ddof=1)) if len(self.means) > 1 else 0.0


def evaluate_protocol(
    protocol: Protocol,
    x_reference: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    query: Any | None = None,
    seed: int = 0,
    solver: Solver | None = None,
) -> dict[str, RepeatedResult]:
    """CCE of every version under a protocol, with its draws and bootstraps.

    Args:
        protocol: kernels, lambda, samples, draws and bootstraps; embeddings are brought to unit norm where it says so.
        x_reference: embeddings of the reference split, (n, d).
        y: its targets, (n,) or (n, q), which fix the output kernel for all bootstraps.
        versions: predictive distributions at the reference inputs, n rows each.
        query: embeddings (m, d) of the points to evaluate; by default the reference split.
        seed: of draws, bootstraps and probes.
        solver: chosen by size if not given.

    Raises:
        InvalidInputError: an input that cannot be evaluated.
        ProtocolError: a zero embedding under unit norm.
    """
    x = protocol.apply(require_matrix(x_reference, "x_reference"))
    points = x if query is None else protocol.apply(require_matrix(query, "query"))
    targets = require_targets(y, "y", len(x))
    prepared = None
    if protocol.bootstraps == 0 or protocol.output_scale == "residual":
        prepared = prepare(
            x,
            query=None if query is None else points,
            input_kernel=protocol.input_kernel,
            regularization=protocol.regularization,
            solver=solver,
        )
    kernel = output_kernel(protocol, targets, prepared)

    def references() -> Iterator[Reference]:
        if protocol.bootstraps == 0 and prepared is not None:
            yield Reference(prepared, np.arange(len(x)), np.ones(len(x)))
        for bootstrap in range(protocol.bootstraps):
            drawn = np.random.default_rng([seed, 0, bootstrap]).integers(len(x), size=len(x))
            rows, counts = np.unique(drawn, return_counts=True)
            yield weighted_reference(
                x,
                rows,
                query=points,
                input_kernel=protocol.input_kernel,
                regularization=protocol.regularization,
                weights=counts,
                solver=solver,
            )

    draws = protocol.draws if protocol.samples is not None else 1
    return repeated_evaluation(
        references(), targets, versions, kernel, samples=protocol.samples, draws=draws, seed=seed
    )


def repeated_evaluation(
    references: Iterable[Reference],
    y: Array,
    versions: Mapping[str, Distribution],
    kernel: Kernel,
    *,
    samples: int | None = None,
    draws: int = 1,
    seed: int = 0,
) -> dict[str, RepeatedResult]:
    """CCE of every version on each reference sample: ``draws`` times with ``samples`` draws, or with exact means."""
    features = {name: output_features(kernel, y, model) for name, model in versions.items()}
    repeats: dict[str, _Repeats] = {name: _Repeats() for name in versions}
    for number, reference in enumerate(references):
        for name, model in versions.items():
            rng = np.random.default_rng([seed, 1, number])
            errors = [
                target_errors(y, _drawn(model, samples, rng), kernel, features=features[name]) for _ in range(draws)
            ]
            signs = rng.choice((-1.0, 1.0), size=(len(errors), len(y), PROBES))
            blocks = [
                np.hstack([error.delta, np.sqrt(error.variance)[:, None] * sign])
                for error, sign in zip(errors, signs, strict=True)
            ]
            smoothed = reference.smooth(np.hstack(blocks))
            repeats[name].add(smoothed.reshape(len(smoothed), len(errors), -1))
    return {name: repeated.result() for name, repeated in repeats.items()}


def _drawn(model: Distribution, samples: int | None, rng: np.random.Generator) -> Distribution:
    return model if samples is None else Samples(model.sample(samples, seed=rng))


@dataclass
class _Repeats:
    """The running sums of one version over its repeats."""

    means: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    total: Array | float = 0.0

    def add(self, smoothed: Array) -> None:
        """Add repeats: (m, repeats, r + PROBES) smoothed features and probes."""
        values = np.linalg.norm(smoothed[:, :, :-PROBES], axis=2)
        self.means += np.mean(values, axis=0).tolist()
        self.floors += np.mean(smoothed[:, :, -PROBES:] ** 2, axis=(0, 2)).tolist()
        self.total = self.total + np.sum(values, axis=1)

    def result(self) -> RepeatedResult:
        """The averages."""
        if not self.means:
            raise InvalidInputError("repeats: there are none; give at least one reference sample and one draw")
        return RepeatedResult(
            np.array(self.means), np.asarray(self.total / len(self.means)), float(np.sqrt(np.mean(self.floors)))
        )
