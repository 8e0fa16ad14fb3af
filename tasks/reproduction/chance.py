"""What chance alone does to a calibrated model, by simulation."""

from __future__ import annotations

import numpy as np

from congruence.kernels.calibration import calibration_error_of_pit


def largest_chance_ece(rows: int, seed: int, *, draws: int = 200, share: float = 0.99) -> float:
    """The ECE (50 levels, uniform weights) that ``share`` of calibrated models on ``rows`` rows stay below."""
    rng = np.random.default_rng([seed, rows])
    return float(np.quantile([calibration_error_of_pit(rng.uniform(size=rows)) for _ in range(draws)], share))
