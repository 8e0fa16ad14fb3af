"""What is said of every new input: support, effective rows, CCE where there is support, and whether to withhold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.printed import printed
from congruence.kernels.support.conformal import SupportReading
from congruence.kernels.withholding.judgement import WithholdingJudgement
from congruence.kernels.withholding.rule import WithholdingRule

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("key", "support_p_value", "effective_rows", "cce", "cce_expected", "cce_p_value", "withhold", "reason")


@dataclass(frozen=True)
class InputScores:
    """The scores of m inputs, in their order.

    Attributes:
        key: names of the inputs, (m,).
        support: how usual they are among the labelled rows.
        effective_rows: how many labelled rows speak there, (m,).
        cce: estimated CCE, (m,); NaN without support, as the next two.
        cce_expected: what the CCE of a true version would be there, (m,).
        cce_p_value: of "the version is true around the input", (m,).
        withhold: booleans, (m,).
        reason: "unusual", the fault for which an input is withheld (one of ``ORDERS``, or "CCE"), or "", (m,).
        wrong: whether the version is wrong there by enough to matter, (m,) booleans.
        faults: what is wrong at the inputs that are withheld though they are usual, in their order; None of vectors.
        rule: by which inputs are withheld.
        judgement: whether withholding where the version is wrong helps on the labelled split.
    """

    key: Array = field(repr=False)
    support: SupportReading = field(repr=False)
    effective_rows: Array = field(repr=False)
    cce: Array = field(repr=False)
    cce_expected: Array = field(repr=False)
    cce_p_value: Array = field(repr=False)
    withhold: Array = field(repr=False)
    reason: Array = field(repr=False)
    wrong: Array = field(repr=False)
    faults: LocalReading | None = field(repr=False)
    rule: WithholdingRule
    judgement: WithholdingJudgement

    def __repr__(self) -> str:
        return printed(self, inputs=len(self.withhold), unusual=self.unusual, withheld=int(self.withhold.sum()),
                       helps=self.judgement.helps)  # fmt: skip

    @property
    def unusual(self) -> int:
        """Number of inputs that are unusual at the rule's level."""
        return int(self.support.unusual(self.rule.unusual).sum())

    def columns(self) -> dict[str, Array]:
        """``COLUMNS`` by name, (m,) each."""
        return {name: self.support.p_values if name == "support_p_value" else getattr(self, name) for name in COLUMNS}

    def to_frame(self) -> pd.DataFrame:
        """A table with a row an input: its key, how usual it is, what is known of the version there, and the advice."""
        import pandas as pd

        return pd.DataFrame(self.columns())
