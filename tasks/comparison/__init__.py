"""Which version is better, is the difference real, and may it replace the one in use?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.comparison.best import best_of
    from congruence.tasks.comparison.compared import ComparedVersion
    from congruence.tasks.comparison.differences import MetricDifference, MissingInfluenceError
    from congruence.tasks.comparison.gate import GateCheck, GateDecision, Outcome, apply_gate, worst
    from congruence.tasks.comparison.gate_settings import GateSettings, Margin
    from congruence.tasks.comparison.versions import (
        Comparison,
        PairedComparison,
        compare_pair,
        compare_versions,
    )
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "ComparedVersion",
    "Comparison",
    "GateCheck",
    "GateDecision",
    "GateSettings",
    "Margin",
    "MetricDifference",
    "MissingInfluenceError",
    "Outcome",
    "PairedComparison",
    "apply_gate",
    "best_of",
    "compare_pair",
    "compare_versions",
    "worst",
]
