"""Which version is better, is the difference real, and may it replace the one in use?"""

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
    "compare_pair",
    "compare_versions",
    "worst",
]
