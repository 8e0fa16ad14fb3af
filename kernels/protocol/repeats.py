"""CCE over repeats: several draws of a model's samples, several choices of the reference points.

The papers report mean and standard deviation over repeats. Draws are more right-hand sides on one preparation; every
choice of the reference points (a bootstrap, a downsample) is a preparation of its own, see ``weighting``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.influence import CongruenceUncertainty, repeated_uncertainty, spread_over
from congruence.kernels.congruence.noise_floor import PROBES
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.mean_embeddings.residuals import shared_features, target_errors
from congruence.kernels.protocol.weighting import Reference
from congruence.kernels.solvers import NormKind, weakest_kind
from congruence.kernels.streams import stream

if TYPE_CHECKING:
    import pandas as pd

MIN_PROBES = 4  # of the noise floor, in each repeat


@dataclass(frozen=True, repr=False)
class RepeatedResult(CongruenceResult):
    """CCE averaged point by point over repeats of a protocol; its bounds hold in every repeat and in their mean.

    Attributes:
        means: mean CCE over the points in each repeat, (repeats,).
        mean_squares: mean of CCE(x_j)^2 over the repeats, (m,); the square of the mean is smaller by their variance.
    """

    means: Array
    mean_squares: Array = field(repr=False)

    @property
    def squared_values(self) -> Array:
        """See CongruenceResult: averaged over the repeats, as the squared noise floor is."""
        return self.mean_squares

    @property
    def std(self) -> float:
        """Standard deviation of the mean CCE over the repeats (ddof 1); 0 for one repeat."""
        return float(np.std(self.means, ddof=1)) if len(self.means) > 1 else 0.0

    def _spread_of_mean(self) -> dict[str, Any]:
        repeats = {"std": self.std, "repeats": len(self.means)} if len(self.means) > 1 else {}
        return super()._spread_of_mean() | repeats

    def to_frame(self) -> pd.DataFrame:
        """See ``CongruenceResult.to_frame``; here the averages over the repeats, and one more column.

        ``cce_std``: standard deviation of the point's CCE over the repeats (ddof 1); 0 for one repeat.
        """
        count = len(self.means)
        variance = np.maximum(self.mean_squares - self.values**2, 0.0) * (count / (count - 1.0) if count > 1 else 0.0)
        return super().to_frame().assign(cce_std=np.sqrt(variance))


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
    uncertainty: bool = False,
) -> dict[str, RepeatedResult]:
    """CCE of every version on each reference sample: ``draws`` times with ``samples`` draws, or with exact means.

    ``repeats`` is how many there will be in all; the fewer, the more probes of the noise floor each one takes.
    ``uncertainty``: with standard errors and the influence of each row of the split, see ``repeated_uncertainty``.
    """
    if draws < 1:
        raise InvalidInputError(f"draws: {draws}; give at least one")
    probes = max(MIN_PROBES, -(-PROBES // (repeats * draws)))
    features = {name: shared_features(kernel, y, model) for name, model in versions.items()}
    exact = {} if samples is not None else {name: target_errors(y, model, kernel) for name, model in versions.items()}
    sums: dict[str, _Repeats] = {name: _Repeats() for name in versions}
    for number, reference in enumerate(references):
        for name, model in versions.items():
            rng = stream(seed, "repeats", number)
            errors = [
                target_errors(y, Samples(model.sample(samples, seed=rng)), kernel, features=features[name])
                if samples is not None
                else exact[name]
                for _ in range(draws)
            ]
            drawn = {draw: reference.errors(error) for draw, error in enumerate(errors)}
            uses = {draw: f", reference {number}, draw {draw}" for draw in drawn}
            solved = reference.prepared.solve_versions(
                drawn, seed=seed, uses=uses, probes=probes, positions=reference.rows
            )
            smoother = reference.prepared.smoother if uncertainty else None
            results = [one.result if smoother is None else one.with_uncertainty(smoother) for one in solved.values()]
            sums[name].add(results, reference.rows, len(y))
    return {name: repeated.result() for name, repeated in sums.items()}


@dataclass
class _Repeats:
    """The running sums of one version over its repeats."""

    means: list[float] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)
    values: Any = 0.0
    squares: Any = 0.0
    floors: Any = 0.0
    seconds: float = 0.0
    passes: int = 0
    uncertainties: list[CongruenceUncertainty] = field(default_factory=list)
    kinds: set[NormKind] = field(default_factory=set)
    weights: Array | None = None

    def add(self, draws: Sequence[CongruenceResult], rows: Array, total: int) -> None:
        """Add the draws of one solve on the reference ``rows`` of ``total``."""
        self.weights = draws[0].weights
        self.seconds += draws[0].solution_seconds
        self.passes += draws[0].iterations
        for result in draws:
            self.means.append(result.mean)
            self.bounds.append((result.error_bound, result.mean_error_bound))
            self.kinds.add(result.bound_kind)
            self.values = self.values + result.values
            self.squares = self.squares + result.squared_values
            self.floors = self.floors + result.noise_floor_values**2
            if result.uncertainty is not None:
                self.uncertainties.append(spread_over(result.uncertainty, rows, total))

    def result(self) -> RepeatedResult:
        """The averages."""
        count = len(self.means)
        if count == 0:
            raise InvalidInputError("repeats: there are none; give at least one reference sample")
        at_point, in_mean = np.transpose(self.bounds)
        return RepeatedResult(
            means=np.array(self.means),
            mean_squares=np.asarray(self.squares / count),
            values=np.asarray(self.values / count),
            noise_floor_values=np.asarray(np.sqrt(self.floors / count)),
            error_bound=float(np.max(at_point)),
            mean_error_bound=float(np.mean(in_mean)),
            solution_seconds=self.seconds,
            iterations=self.passes,
            uncertainty=repeated_uncertainty(self.uncertainties) if self.uncertainties else None,
            bound_kind=weakest_kind(self.kinds),
            weights=self.weights,
        )
