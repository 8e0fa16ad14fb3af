"""The PIT-histogram interpreter (Podsztavek et al., 2024), with sample-size noise, intervals and verdicts in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.pit_interpreter.interpretation import Interpretation, interpret_pit
    from congruence.kernels.pit_interpreter.verdict import Estimate, Finding, Verdict
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["Estimate", "Finding", "Interpretation", "Verdict", "interpret_pit"]
