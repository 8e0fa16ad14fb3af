"""The PIT-histogram interpreter (Podsztavek et al., 2024), with sample-size noise, intervals and a verdict."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.pit_interpreter.interpretation import Estimate as Estimate
    from congruence.kernels.pit_interpreter.interpretation import Finding as Finding
    from congruence.kernels.pit_interpreter.interpretation import Interpretation as Interpretation
    from congruence.kernels.pit_interpreter.interpretation import Verdict as Verdict
    from congruence.kernels.pit_interpreter.interpretation import interpret_pit as interpret_pit
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
