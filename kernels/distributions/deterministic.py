"""Point forecasts as distributions: all mass on one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.empirical import Empirical
from congruence.kernels.errors import InvalidInputError


@dataclass(frozen=True)
class Deterministic(Empirical):
    """All mass on ``value`` (n,), or (n, q) for vector targets. Its CRPS is the absolute error; it has no density."""

    value: Array

    def __post_init__(self) -> None:
        self._hold(value=require_targets(np.atleast_1d(self.value), "Deterministic.value"))

    @property
    def _values(self) -> Array:
        return self.value[:, None]

    def has_density(self) -> bool:
        return False

    def _log_prob(self, y: Any) -> NoReturn:  # noqa: ARG002
        """Raises InvalidInputError: a point forecast has no density."""
        raise InvalidInputError(
            "Deterministic.log_prob: a point forecast has no density, so no log score; use crps (here the absolute "
            "error), or let the model return a distribution"
        )

    log_prob = _log_prob  # of vectors, too

    def std(self) -> Array:
        """See Distribution: 0."""
        return np.zeros_like(self.value)
