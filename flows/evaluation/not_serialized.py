"""A parameter of a flow that stays in its process: Prefect neither stores it nor sends it to tasks.

Prefect writes a run's parameters to its server, and sends them along with each of the run's tasks: a parameter that
grows with the versions is then sent, and held by the scheduler, once for every version.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class NotSerialized(Generic[T]):
    """A flow's parameter that stays in the process of the flow: a copy that is sent elsewhere holds nothing."""

    __slots__ = ("_value",)

    def __init__(self, value: T | None) -> None:
        self._value = value

    def here(self) -> T:
        """The value.

        Raises:
            ValueError: this is a copy in another process.
        """
        if self._value is None:
            raise ValueError("this parameter is known to the process of the flow alone")
        return self._value

    def __reduce__(self) -> tuple[type[NotSerialized[T]], tuple[None]]:
        return type(self), (None,)
