"""What the table of arrays asks of an array on disk, whatever its format."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array


class StoredArray(ABC):
    """An array on disk of which any range of rows can be read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Array]:
        """Rows ``start`` to ``stop``, at most ``size`` at a time."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """What tells how to read it without opening it, as JSON."""
