"""Which version is better, is the difference real, and may it replace the one in use?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.comparison.best import best_of as best_of
    from congruence.tasks.comparison.compared import ComparedVersion as ComparedVersion
    from congruence.tasks.comparison.differences import MetricDifference as MetricDifference
    from congruence.tasks.comparison.differences import MissingInfluenceError as MissingInfluenceError
    from congruence.tasks.comparison.gate import GateCheck as GateCheck
    from congruence.tasks.comparison.gate import GateDecision as GateDecision
    from congruence.tasks.comparison.gate import Outcome as Outcome
    from congruence.tasks.comparison.gate import apply_gate as apply_gate
    from congruence.tasks.comparison.gate import worst as worst
    from congruence.tasks.comparison.gate_settings import GateSettings as GateSettings
    from congruence.tasks.comparison.gate_settings import Margin as Margin
    from congruence.tasks.comparison.versions import Comparison as Comparison
    from congruence.tasks.comparison.versions import PairedComparison as PairedComparison
    from congruence.tasks.comparison.versions import compare_pair as compare_pair
    from congruence.tasks.comparison.versions import compare_versions as compare_versions
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
