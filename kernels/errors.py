"""The exceptions of the package: each message says what was found, where, the limit, and the remedy."""

from congruence.kernels.masking import mask_text


class CongruenceError(Exception):
    """Root of every error that the package raises on purpose: the command line prints it without a traceback.

    Its text is without secrets wherever it goes: terminals, logs, Prefect's states, MLflow's tags, pickles.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(mask_text(each) if isinstance(each, str) else each for each in args))


class InvalidInputError(CongruenceError, ValueError):
    """An array, a parameter or a distribution that cannot be evaluated: names the row, the field and the value."""


class BudgetError(CongruenceError, MemoryError):
    """A computation that would not fit: refused before it starts, with the projected and the allowed size."""


class ProtocolError(CongruenceError, ValueError):
    """Numbers of different protocols, or inputs that break the protocol that was asked for."""


class ConvergenceError(CongruenceError, ArithmeticError):
    """A factorisation or an iteration that did not reach its tolerance: says how far it came and what may help."""
