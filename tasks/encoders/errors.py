"""What an encoder says of one row that it cannot read."""

from congruence.kernels.errors import CongruenceError


class InvalidRow(CongruenceError):  # noqa: N818 - a verdict on a row, counted and reported, not a failure of the program
    """One row has no embedding; ``reason`` says why. The row keeps its place and is reported, never dropped."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type["InvalidRow"], tuple[str]]:
        return type(self), (self.reason,)
