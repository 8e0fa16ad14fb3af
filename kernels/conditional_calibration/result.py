"""The outcome of a test of conditional calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.effects import Effect
from congruence.kernels.printed import printed

if TYPE_CHECKING:
    import pandas as pd

NullKind = Literal["exact", "gaussian", "blocks"]


@dataclass(frozen=True, repr=False)
class ConditionalCalibrationTest:
    """A Monte-Carlo test of "given its input, every target follows its predicted law".

    Attributes:
        statistic: max over all hypotheses of the evidence s + log prior.
        p_value: of the whole test; at least 1 / (draws + 1).
        by_order: p-values of bias, spread, skew and tails, each for itself. A fault of one kind is often seen in
            several; which is the largest say the effects.
        by_basis: p-values of the input bases, each for itself: "constant" asks for faults on average alone.
        effects: by order, the share of the score's variance that the inputs explain (see ``effects``).
        means: by order, the mean score: its sign is the direction of what is wrong on average.
        draws: B.
        null: "exact"; "gaussian" for the limit of many rows; "blocks" where rows depend on each other within blocks:
            then p-values hold in the limit of many blocks, and effects have intervals of Student's t by blocks.
        null_statistics: of the draws, (B,).
        blocks: how many blocks of rows are taken as independent; None where all rows are.
    """

    statistic: float
    p_value: float
    by_order: Mapping[str, float]
    by_basis: Mapping[str, float]
    effects: Mapping[str, Effect]
    means: Mapping[str, float]
    draws: int
    null: NullKind
    null_statistics: Array = field(repr=False)
    blocks: int | None = None

    def __repr__(self) -> str:
        largest, effect = max(self.effects.items(), key=lambda item: item[1].estimate)
        said = f"{largest} {effect.estimate:.3g} [{effect.low:.3g}, {effect.high:.3g}]"
        by_order = {f"{order}_p_value": p_value for order, p_value in self.by_order.items()}
        return printed(self, p_value=self.p_value, **by_order, largest_effect=said, draws=self.draws, null=self.null)

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each order (bias, spread, skew, tails), which is the index.

        ``mean_score``: the mean score, whose sign is the direction of what is wrong on average. ``p_value``: of the
        order by itself. ``effect``, ``effect_low``, ``effect_high``: the share of the score's variance that the inputs
        explain, with its interval.
        """
        import pandas as pd

        rows = {
            order: {
                "mean_score": self.means[order],
                "p_value": self.by_order[order],
                "effect": effect.estimate,
                "effect_low": effect.low,
                "effect_high": effect.high,
            }
            for order, effect in self.effects.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("order")
