"""The exceptions of the package: each message says what was found, where, the limit, and the remedy."""

from collections.abc import Callable
from typing import ClassVar


class CongruenceError(Exception):
    """Root of every error that the package raises on purpose: the command line prints it without a traceback.

    Attributes:
        shown: what is applied to its texts as it is made. ``congruence.tasks`` masks secrets here, so that texts are
            without them wherever they go: terminals, logs, Prefect's states, MLflow's tags, pickles.
    """

    shown: ClassVar[Callable[[str], str]] = str

    def __init__(self, *args: object) -> None:
        super().__init__(*(CongruenceError.shown(each) if isinstance(each, str) else each for each in args))


class InvalidInputError(CongruenceError, ValueError):
    """An array, a parameter or a distribution that cannot be evaluated: names the row, the field and the value."""


class BudgetError(CongruenceError, MemoryError):
    """A computation that would not fit: refused before it starts, with the projected and the allowed size."""


class ProtocolError(CongruenceError, ValueError):
    """Numbers of different protocols, or inputs that break the protocol that was asked for."""


class ConvergenceError(CongruenceError, ArithmeticError):
    """A factorisation or an iteration that did not reach its tolerance: says how far it came and what may help."""
