"""Solvers of (K + n lambda I) Z = B: each prepares an operator once and solves for many right-hand sides."""

from congruence.kernels.solvers.auto import default_solver
from congruence.kernels.solvers.base import Solution, Solver, certificate
from congruence.kernels.solvers.cholesky import Cholesky

__all__ = ["Cholesky", "Solution", "Solver", "certificate", "default_solver"]
