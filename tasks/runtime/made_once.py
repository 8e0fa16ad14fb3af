"""What is costly to make, made once by a process and held while it is among the last that were asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class MadeOnce(Generic[Value]):
    """At most so many values by their keys, for any thread; one is made at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, RLock()
        self._held: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of that key, by ``make`` where it is not held."""
        with self._lock:
            if key not in self._held:
                while len(self._held) >= self._most:  # before, so that there are never more in memory
                    self._held.popitem(last=False)
                self._held[key] = make()
            self._held.move_to_end(key)
            return self._held[key]

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._held.clear()
