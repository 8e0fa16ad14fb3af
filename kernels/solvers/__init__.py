"""Solvers of (K + n lambda I) Z = B: each prepares an operator once and solves for many right-hand sides."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.gram.landmarks import choose_landmarks
    from congruence.kernels.solvers.base import NormKind, Solution, Solver, certificate, weakest_kind
    from congruence.kernels.solvers.cholesky import Cholesky
    from congruence.kernels.solvers.conjugate_gradient import Checkpoint, ConjugateGradient, Iterate
    from congruence.kernels.solvers.nystrom import Nystrom
    from congruence.kernels.solvers.planning import Plan, choose_solver, default_solver
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Checkpoint",
    "Cholesky",
    "ConjugateGradient",
    "Iterate",
    "NormKind",
    "Nystrom",
    "Plan",
    "Solution",
    "Solver",
    "certificate",
    "choose_landmarks",
    "choose_solver",
    "default_solver",
    "weakest_kind",
]
