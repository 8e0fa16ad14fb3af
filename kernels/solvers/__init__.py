"""Solvers of (K + n lambda I) Z = B: each prepares an operator once and solves for many right-hand sides."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.gram.landmarks import choose_landmarks as choose_landmarks
    from congruence.kernels.solvers.base import NormKind as NormKind
    from congruence.kernels.solvers.base import Solution as Solution
    from congruence.kernels.solvers.base import Solver as Solver
    from congruence.kernels.solvers.base import certified_error as certified_error
    from congruence.kernels.solvers.base import weakest_kind as weakest_kind
    from congruence.kernels.solvers.cholesky import Cholesky as Cholesky
    from congruence.kernels.solvers.conjugate_gradient import Checkpoint as Checkpoint
    from congruence.kernels.solvers.conjugate_gradient import ConjugateGradient as ConjugateGradient
    from congruence.kernels.solvers.conjugate_gradient import Iterate as Iterate
    from congruence.kernels.solvers.nystrom import Nystrom as Nystrom
    from congruence.kernels.solvers.planning import Plan as Plan
    from congruence.kernels.solvers.planning import choose_solver as choose_solver
    from congruence.kernels.solvers.planning import default_solver as default_solver
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
