"""How predicted quantiles were read, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping

from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.quantiles import TAILS
from congruence.tasks.scores.evaluation import MetricValue


def quantiles_read(metrics: Mapping[str, MetricValue], predictive: Distribution | None) -> str:
    """How many rows crossed, how many targets lie beyond the outer quantiles, and the tails; empty for other laws."""
    crossing, beyond = (metrics.get(name) for name in ("quantile_crossing_share", "beyond_quantiles_share"))
    if crossing is None or beyond is None or predictive is None:
        return ""
    stated = predictive.parameters()
    levels, kind = stated["levels"], TAILS[int(stated["tails"][0])]
    expected = levels[0] + 1.0 - levels[-1]
    crossed = f"The predicted quantiles crossed in {crossing.value:.2%} of the rows and were sorted there. "
    tails = "no tails" if kind == "none" else f"{kind} tails"
    return (
        f"{crossed if crossing.value > 0.0 else ''}{beyond.value:.2%} of the targets lie beyond the outer quantiles, "
        f"{expected:.2%} by the levels; there the predictions have {tails}."
    )
