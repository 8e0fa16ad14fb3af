"""What can be wrong with a model's output."""

from congruence.kernels.errors import InvalidInputError


class ContractError(InvalidInputError):
    """A model whose input or output is not what its settings promise: names the column, shape, row or value."""
