"""CCE over repeats: several draws of a model's samples, several choices of the reference points.

The papers report mean and standard deviation over repeats. Draws are more right-hand sides on one preparation; every
choice of the reference points (a bootstrap, a downsample) is a preparation of its own, see ``weighting``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence import CongruenceResult
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.feature_maps import output_features
from congruence.kernels.functions import Kernel
from congruence.kernels.target_errors import target_errors
from congruence.kernels.weighting import Reference

PROBES = 64  # of the noise floor, over all repeats
MIN_PROBES = 8  # per repeat


@dataclass(frozen=True)
class RepeatedResult(CongruenceResult):
    """CCE averaged point by point over repeats of a protocol; its bounds hold in every repeat and in their mean.

    Attributes:
        means: mean CCE over the points in each repeat, (repeats,).
    """

    means: Array

    @property
    def std(self) -> float:
        """Standard deviation of the mean CCE over the repeats (ddof 1); 0 for one repeat."""
        return float(np.std(self.means, ddof=1)) if len(self.means) > 1 else 0.0


def repeated_evaluation(
    references: Iterable[Reference],
    y: Array,
    versions: Mapping[str, Distribution],
    kernel: Kernel,
    *,
    samples: int | None = None,
    draws: int = 1,
    repeats: int = 1,
    seed: int = 0,
) -> dict[str, RepeatedResult]:
    """CCE of every version on each reference sample: ``draws`` times with ``samples`` draws, or with exact means.

    ``repeats`` is how many there will be in all; the fewer, the more probes of the noise floor each one takes.
    """
    probes = max(MIN_PROBES, -(-PROBES // repeats))
    features = {name: output_features(kernel, y, model) for name, model in versions.items()}
    sums: dict[str, _Repeats] = {name: _Repeats() for name in versions}
    for number, reference in enumerate(references):
        for name, model in versions.items():
            rng = np.random.default_rng([seed, 1, number])
            errors = [
                target_errors(y, _drawn(model, samples, rng), kernel, features=features[name]) for _ in range(draws)
            ]
            signs = rng.choice((-1.0, 1.0), size=(len(errors), len(y), probes))
            blocks = [
                np.hstack([error.delta, np.sqrt(error.variance)[:, None] * sign])
                for error, sign in zip(errors, signs, strict=True)
            ]
            smoothed, solution = reference.smooth(np.hstack(blocks))
            sums[name].count(solution.seconds, solution.iterations)
            width = blocks[0].shape[1]
            for draw, error in enumerate(errors):
                columns = slice(draw * width, (draw + 1) * width - probes)
                values = np.linalg.norm(smoothed[:, columns], axis=1)
                bounds = reference.prepared.error_bounds(error, values, solution, columns)
                sums[name].add(values, smoothed[:, columns.stop : columns.stop + probes], bounds)
    return {name: repeated.result() for name, repeated in sums.items()}


def _drawn(model: Distribution, samples: int | None, rng: np.random.Generator) -> Distribution:
    return model if samples is None else Samples(model.sample(samples, seed=rng))


@dataclass
class _Repeats:
    """The running sums of one version over its repeats."""

    means: list[float] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    values: Any = 0.0
    floors: Any = 0.0
    seconds: float = 0.0
    passes: int = 0

    def count(self, seconds: float, passes: int) -> None:
        """Add what one solve took."""
        self.seconds += seconds
        self.passes += passes

    def add(self, values: Array, probes: Array, bounds: tuple[float, float]) -> None:
        """Add a repeat: CCE (m,), smoothed probes (m, p), and the bounds at a point and in the mean."""
        self.means.append(float(np.mean(values)))
        self.bounds.append(bounds)
        self.values = self.values + values
        self.floors = self.floors + np.mean(probes**2, axis=1)

    def result(self) -> RepeatedResult:
        """The averages."""
        count = len(self.means)
        if count == 0:
            raise InvalidInputError("repeats: there are none; give at least one reference sample and one draw")
        at_point, in_mean = np.transpose(self.bounds)
        return RepeatedResult(
            means=np.array(self.means),
            values=np.asarray(self.values / count),
            noise_floor_values=np.asarray(np.sqrt(self.floors / count)),
            error_bound=float(np.max(at_point)),
            mean_error_bound=float(np.mean(in_mean)),
            solution_seconds=self.seconds,
            iterations=self.passes,
        )
