"""From rates to counts: a count over an exposure e (insured years, kilometres) of a rate r has the mean e r.

The exposure multiplies the mean of a distribution of counts. The dispersion of a negative binomial and the inflation of
zeros stay: a policy's own rate is gamma about the predicted one, and which policies never claim is no matter of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.settings import RATES, families

if TYPE_CHECKING:
    from congruence.kernels.distributions.base import Distribution

EXPOSURE = "__exposure__"
"""Column of a frame of model inputs, which no model is given: the exposure of each row, where the split names one."""

_CLEARLY = 1.2
"""A mean prediction within this factor of the mean count is one of counts."""
_REACH = 3.0


def exposed(law: Distribution, family: str, exposure: Array) -> Distribution:
    """The law of the counts over ``exposure`` (n,), from that of counts over an exposure of 1.

    Raises:
        ContractError: a family that an exposure does not multiply.
    """
    if family not in RATES:
        raise ContractError(
            f"exposure: multiplies the mean of a distribution of counts, and {family} is none that has one; leave it "
            f"out, or read the output as one of {', '.join(RATES)}"
        )
    name = RATES[family]
    return families()[family](**{**law.parameters(), name: law.parameters()[name] * exposure})


def exposure_in(frame: pd.DataFrame, column: str, start: int = 0) -> Array:
    """The exposure of each row of model inputs: what their split names, else the column of that name.

    Raises:
        ContractError: neither is there, or a value that is not a number above 0.
    """
    given = EXPOSURE if EXPOSURE in frame.columns else column
    if given not in frame.columns:
        raise ContractError(
            f"its predictions are rates, to be multiplied by the exposure {column!r}, which the rows do not give; add "
            f"exposure: {column} to the split"
        )
    values = pd.to_numeric(frame[given], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    bad = ~(np.isfinite(values) & (values > 0.0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ContractError(
            f"row {start + row}: exposure {column!r} is {frame[given].iloc[row]}; give a number above 0"
        )
    return values


def require_counts(label: str, predictive: Distribution, frame: pd.DataFrame, targets: Any) -> None:
    """Refuse predicted rates that are read as counts, on rows whose split names an exposure.

    Raises:
        ContractError: the mean prediction is not the mean count, and nearer to the mean rate, sum y / sum e.
    """
    if EXPOSURE not in frame.columns or not predictive.is_discrete or np.ndim(targets) != 1:
        return
    exposure, total = frame[EXPOSURE].to_numpy(np.float64), float(np.sum(targets))
    predicted = float(np.mean(predictive.mean()))
    if total <= 0.0 or not predicted > 0.0:
        return
    count, rate = total / len(exposure), total / float(np.sum(exposure))
    from_count, from_rate = abs(np.log(predicted / count)), abs(np.log(predicted / rate))
    # The total is known to some 1 / sqrt(total) of itself.
    if from_count > max(np.log(_CLEARLY), _REACH / np.sqrt(total)) and from_rate < from_count:
        raise ContractError(
            f"{label}: predicts rates that are read as counts: its mean prediction {predicted:.3g} is "
            f"{predicted / count:.3g} times the mean count {count:.3g}, and {predicted / rate:.3g} times the mean rate "
            f"{rate:.3g} per unit of exposure, on {len(exposure):,} rows; add exposure: to predictions: in the "
            "evaluation file, or log it with log_predictive_model(..., exposure=...); a model that does predict counts "
            "is evaluated where the split names no exposure"
        )
