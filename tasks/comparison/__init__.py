"""Which version is better, is the difference real, and may it replace the one in use?"""

from congruence.tasks.comparison.gate import GateCheck, GateDecision, GateSettings, apply_gate
from congruence.tasks.comparison.versions import (
    ComparedVersion,
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
    "PairedComparison",
    "apply_gate",
    "compare_pair",
    "compare_versions",
]
