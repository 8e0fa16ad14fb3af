"""What a test of conditional calibration depends on beside the data, the model and the protocol's kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from congruence.kernels.errors import InvalidInputError

PROJECTED_VALUES = 40_000_000
MANY_ROWS = 50_000
FEW_ROWS = 5_000
_STEPS = (9_999, 1_999, 999)
_OF_MANY_ROWS = 255


@dataclass(frozen=True)
class CalibrationSettings:
    """The hypotheses of the test and how often its null is drawn.

    Attributes:
        distances: bandwidths of the RBF bases, in median distances between inputs.
        ridges: lambda of the weights e / (e + n lambda).
        unsmoothed: also the weights e.
        levels: of the version's own quantiles, the inputs of its own basis; none for no such basis.
        directions: leading eigenvectors of each basis at most.
        own_directions: of the version's own basis.
        joint_prior: prior weight of all four orders together; the rest is shared by the single orders.
        draws: B; by default the most of 9,999, 1,999 and 999 with n B <= 40 million, 999 up to 50,000 rows, and 255
            above.

    Raises:
        InvalidInputError: a value that defines no test, by name.
    """

    distances: tuple[float, ...] = (0.5, 1.0, 2.0)
    ridges: tuple[float, ...] = (1e-1, 1e-2, 1e-3)
    unsmoothed: bool = True
    levels: tuple[float, ...] = (0.1, 0.5, 0.9)
    directions: int = 100
    own_directions: int = 40
    joint_prior: float = 1 / 3
    draws: int | None = None

    def __post_init__(self) -> None:
        for name, values in (("distances", self.distances), ("ridges", self.ridges)):
            if not values or not all(value > 0 and np.isfinite(value) for value in values):
                raise InvalidInputError(f"{name}: {values}; give one or more positive numbers")
        if not all(0 < level < 1 for level in self.levels):
            raise InvalidInputError(
                f"levels: {self.levels}; give levels of quantiles inside (0, 1), such as (.1, .5, .9)"
            )
        for name, count in (("directions", self.directions), ("own_directions", self.own_directions)):
            if count < 1:
                raise InvalidInputError(f"{name}: {count}; give at least 1")
        if not 0 < self.joint_prior < 1:
            raise InvalidInputError(f"joint_prior: {self.joint_prior}; give a weight inside (0, 1)")
        if self.draws is not None and self.draws < 1:
            raise InvalidInputError(
                f"draws: {self.draws}; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %"
            )

    def draws_for(self, n: int) -> int:
        """B at n rows: as given, or by the rule of ``draws``."""
        if self.draws is not None:
            return self.draws
        if n > MANY_ROWS:
            return _OF_MANY_ROWS
        return next((draws for draws in _STEPS if n * draws <= PROJECTED_VALUES), _STEPS[-1])

    def draws_of_version(self, n: int) -> int:
        """Returns B of a null that is one version's alone, at n rows: as given, 999 of few rows, 255 of more."""
        return self.draws or (_STEPS[-1] if n <= FEW_ROWS else _OF_MANY_ROWS)
