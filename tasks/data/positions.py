"""Places in open files that reading goes on from: who reads consecutive rows decodes no piece of a file twice."""

from __future__ import annotations

import bisect
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError

_MOST_KEPT = 4
"""Open places of a process."""
_KEPT_BYTES = 2**28
"""What they may hold together; the last one is kept whatever it holds."""

_of_process: tuple[int, Positions] | None = None
_guard = threading.Lock()


class Opened(ABC):
    """A file opened for reading some columns, and how far it has been read. One thread at a time."""

    held_bytes = 0
    """What reading on from here needs to be kept in memory, about."""

    def __init__(self, path: str, piece_rows: Sequence[int]) -> None:
        self.path = path
        self.position = 0
        """Rows before this one were read."""
        self._starts = [0, *accumulate(piece_rows)]
        self._stream: Iterator[pa.RecordBatch] = iter(())
        self._held: pa.RecordBatch | None = None
        self._started = False

    @abstractmethod
    def batches_from(self, piece: int) -> Iterator[pa.RecordBatch]:
        """All rows from a piece on, in batches of bounded size."""

    def close(self) -> None:
        """Let go of what is held; formats close their file."""
        self._stream, self._held = iter(()), None

    def piece(self, row: int) -> int:
        """The piece that a row lies in."""
        return bisect.bisect_right(self._starts, row) - 1

    @property
    def at_end(self) -> bool:
        """Whether all rows were read: nobody reads on from here."""
        return self.position == self._starts[-1]

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows ``start`` to ``stop``, read on from where reading ended if these lie further on.

        Raises:
            SplitError: the file ends before ``stop``.
        """
        self._go_to(start)
        while self.position < stop:
            batch = self._next()
            if batch is None:
                raise SplitError(f"{self.path}: has fewer rows than when it was opened; open the split again")
            end = self.position + batch.num_rows
            wanted = batch.slice(max(0, start - self.position), min(stop, end) - max(start, self.position))
            if end > stop:
                self._held, self.position = batch.slice(stop - self.position), stop
            else:
                self.position = end
            if end > start:
                yield wanted

    def _go_to(self, row: int) -> None:
        same_piece = self.piece(self.position) == self.piece(row)
        if self._started and (self.position == row or (self.position < row and same_piece)):
            return
        self._started = True
        self._stream, self._held = self.batches_from(self.piece(row)), None
        self.position = self._starts[self.piece(row)]

    def _next(self) -> pa.RecordBatch | None:
        held, self._held = self._held, None
        return held if held is not None else next(self._stream, None)


class Positions:
    """The open places of one process, each lent to one reader at a time; the longest unused are closed first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an abandoned reader may be collected, and give back, inside of any call
        self._idle: list[tuple[Hashable, Opened]] = []

    @classmethod
    def of_this_process(cls) -> Positions:
        """One for each process: a forked one shares no file with its parent."""
        global _of_process
        with _guard:
            if _of_process is None or _of_process[0] != os.getpid():
                _of_process = (os.getpid(), cls())
            return _of_process[1]

    @contextmanager
    def borrowed(self, identity: Hashable, row: int, make: Callable[[], Opened]) -> Iterator[Any]:
        """The place nearest before ``row`` that nobody reads from, or a new one.

        After an error it is closed, not kept.
        """
        opened = self._take(identity, row) or make()
        try:
            yield opened
        except GeneratorExit:
            self._give_back(identity, opened)
            raise
        except BaseException:
            opened.close()
            raise
        else:
            self._give_back(identity, opened)

    def _take(self, identity: Hashable, row: int) -> Opened | None:
        with self._lock:
            fitting = [kept for kept in self._idle if kept[0] == identity and kept[1].position <= row]
            if not fitting:
                return None
            nearest = max(fitting, key=lambda kept: kept[1].position)
            self._idle.remove(nearest)
            return nearest[1]

    def _give_back(self, identity: Hashable, opened: Opened) -> None:
        if opened.at_end:
            opened.close()
            return
        with self._lock:
            self._idle.append((identity, opened))
            closing = []
            while len(self._idle) > 1 and self._too_many():
                closing.append(self._idle.pop(0)[1])
        for one in closing:
            one.close()

    def _too_many(self) -> bool:
        return len(self._idle) > _MOST_KEPT or sum(kept.held_bytes for _, kept in self._idle) > _KEPT_BYTES
