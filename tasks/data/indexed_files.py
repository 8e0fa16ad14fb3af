"""The files of a split as they were when it was indexed: what is read of them later must be the same content."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from congruence.tasks.data.errors import SplitChangedError, changed
from congruence.tasks.data.formats import Format
from congruence.tasks.data.layouts import FileLayout


@dataclass(frozen=True)
class IndexedFiles:
    """Where each file's rows lie in the split, and the state that it had: size and times, or an object's ETag."""

    form: Format
    layouts: Sequence[FileLayout]

    def require_unchanged(self, start: int, stop: int) -> None:
        """To be asked after rows ``start`` to ``stop`` were read and before they are used.

        Raises:
            SplitChangedError: a file that holds some of them is another one, or gone.
        """
        if start >= stop:
            return
        first, last = bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)
        for layout in self.layouts[first:last]:
            require_unchanged(self.form, layout)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(layout.rows for layout in self.layouts)]


def require_unchanged(form: Format, layout: FileLayout) -> None:
    """The file is as its layout found it.

    Raises:
        SplitChangedError: it is another one, or gone.
    """
    form.forget_listings()
    try:
        state = form.state(layout.path)
    except FileNotFoundError:
        raise SplitChangedError(
            f"{layout.path}: is gone since the split was opened; put it back, and run again"
        ) from None
    if state != layout.state:
        raise changed(layout.path)
