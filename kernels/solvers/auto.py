"""Which solver fits a reference split."""

from congruence.kernels.operators import Operator
from congruence.kernels.solvers.base import Solver
from congruence.kernels.solvers.cholesky import Cholesky

DENSE_LIMIT = 6000


def default_solver(operator: Operator) -> Solver:
    """Cholesky up to n = 6,000."""
    return Cholesky()
