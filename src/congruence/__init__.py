"""How far predictive distributions are from the truth: ``congruence.report(X, y, predicted)``, in one call."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.errors import CongruenceError as CongruenceError
    from congruence.kernels.errors import InvalidInputError as InvalidInputError
    from congruence.tasks.notebook.door import compare as compare
    from congruence.tasks.notebook.door import evaluate as evaluate
    from congruence.tasks.notebook.door import report as report
    from congruence.tasks.notebook.door import scorer as scorer
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
