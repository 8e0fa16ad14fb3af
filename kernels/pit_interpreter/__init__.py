"""The PIT-histogram interpreter (Podsztavek et al., 2024), with sample-size noise, intervals and verdicts in words."""

from congruence.kernels.pit_interpreter.interpretation import Interpretation, interpret_pit
from congruence.kernels.pit_interpreter.verdict import Estimate, Finding, Verdict

__all__ = ["Estimate", "Finding", "Interpretation", "Verdict", "interpret_pit"]
