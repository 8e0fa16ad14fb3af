"""Where the points of a Gram matrix are, and who works on its blocks: threads of this process, a card, or a cluster.

A product with the Gram matrix is a sum over its blocks. What a block adds is a function of the points, called by who
has them; so the operator, its columns and the solvers are written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy
from congruence.kernels.gram.thin_products import padded_columns
from congruence.kernels.gram.tiles import TilePoints, tile_slices
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.memory import VECTORS_PART, card_bytes, keepable_bytes
from congruence.kernels.threads import available_threads, map_on_threads

BLOCK_ROWS = 992  # about what a core keeps in its cache; rows a power of two apart would share lines of it
GPU_BLOCK_ROWS = 8192
LEAST_ROWS = 32  # of a block
VECTORS_OF_A_SOLVE = 10  # arrays like the right-hand sides that conjugate gradients and their products hold at once


class Item(NamedTuple):
    """A piece of work: the numbers of the totals that its parts are added to, its blocks of rows, its own arguments."""

    totals: tuple[int, ...]
    blocks: tuple[slice, ...] = ()
    arguments: tuple[Any, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """Names its blocks."""
        return tuple(end for block in self.blocks for end in (block.start, block.stop))


class Lasting(ABC):
    """What a function makes of blocks, held where it was made for the sums that follow."""

    @abstractmethod
    def has(self, items: Sequence[Item]) -> bool:
        """Whether it is there for all items."""

    @abstractmethod
    def clear(self) -> None:
        """Let go of all."""


class PlacedPoints(ABC):
    """The n reference points, moved to their ``Kernel.center``, and the workers that have them."""

    x: Any
    """The inputs as they were given, (n, d)."""

    given_rows: int | None
    """Rows of a tile, where they were asked for."""

    @property
    def n(self) -> int:
        """Number of points."""
        return int(self.x.shape[0])

    @property
    def dimension(self) -> int:
        """Number of features d of a point."""
        return int(self.x.shape[1])

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: by default what fits a core's cache, or fills a GPU."""
        return self.given_rows or (GPU_BLOCK_ROWS if self.on_gpu else BLOCK_ROWS)

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Of the arithmetic inside a tile."""

    @property
    @abstractmethod
    def center(self) -> Any | None:
        """What was subtracted from the inputs, (d,); None for nothing."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Pieces of work that are done at a time."""

    @property
    @abstractmethod
    def processes(self) -> int:
        """That work on the points, each with a memory of its own."""

    @property
    @abstractmethod
    def on_gpu(self) -> bool:
        """Whether tiles are made on a GPU."""

    @property
    @abstractmethod
    def has_card(self) -> bool:
        """Whether what follows from a solve may be computed on a card by the process that asks."""

    @property
    @abstractmethod
    def keepable_bytes(self) -> int:
        """What a ``Lasting`` may take."""

    @abstractmethod
    def vectors(self, v: Array) -> Any:
        """v (n, r) where a solve should keep its vectors: on the card that holds the points if that has room."""

    @abstractmethod
    def shared(self, v: Any) -> Any:
        """v (n, r) in the form that functions of blocks take it."""

    @abstractmethod
    def lasting(self, function: Callable[..., Any], *shared: Any) -> Lasting:
        """Holds ``function(points, *blocks, *shared)`` of items."""

    @abstractmethod
    def sums(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[Item],
        *shared: Any,
        stored: Lasting | None = None,
        title: str = "",
    ) -> list[Any]:
        """The totals, in order, of the parts ``function(points, *blocks, *arguments, *shared)`` of all items.

        Parts are arrays of their own, which may be added to in place. With ``stored`` a function is given what is held
        of the item after the points. ``title``: by which the sum says how far it is.
        """

    @abstractmethod
    def of_points(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(points, *arguments)`` of all points at once."""

    @abstractmethod
    def rows(self, indices: Array) -> Any:
        """The inputs ``indices`` as they were given."""

    @abstractmethod
    def of_inputs(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(inputs as they were given, *arguments)`` of blocks that cover all rows, in order."""

    def pieces(self, rows: int, least: int = 1) -> list[slice]:
        """So many rows in some four pieces a thread, of ``least`` rows or more."""
        return tile_slices(slice(0, rows), max(least, 1, -(-rows // (4 * self.threads))))

    @property
    def row_blocks(self) -> list[slice]:
        """Row blocks whose pairs are pieces of work: some six pairs a thread, so that the last ones idle no others."""
        count = int(np.ceil(np.sqrt(12 * self.threads)))
        return tile_slices(slice(0, self.n), max(LEAST_ROWS, -(-self.n // count)))


@dataclass(frozen=True)
class PointsHere(PlacedPoints):
    """Points in the memory of this process, or on its card.

    Args:
        x: inputs (n, d), NumPy or CuPy.
        kernel: the input kernel, for its center.
        given_rows: rows of a tile; by default what fits a core's cache, or fills a GPU.
        given_threads: cores to use; by default all that this process may.
    """

    x: Any = field(repr=False)
    kernel: Kernel
    given_rows: int | None = None
    given_threads: int | None = None

    @property
    def dtype(self) -> Any:
        return self.x.dtype

    @cached_property
    def center(self) -> Any | None:
        center = self.kernel.center(self.x)
        return None if center is None else center.astype(self.dtype)

    @cached_property
    def points(self) -> TilePoints:
        """The points themselves."""
        return TilePoints(moved(self.x, self.center))

    @property
    def threads(self) -> int:
        # A GPU runs one stream of tiles; a small problem is done before threads have started.
        if self.has_card or self.n <= self.tile_rows:
            return 1
        return self.given_threads or available_threads()

    @property
    def processes(self) -> int:
        return 1

    @property
    def on_gpu(self) -> bool:
        return array_namespace(self.x) is not np

    has_card = on_gpu

    @property
    def keepable_bytes(self) -> int:
        return keepable_bytes(self.x)

    @property
    def row_blocks(self) -> list[slice]:
        """See PlacedPoints; all rows where they would only wait for each other."""
        return [slice(0, self.n)] if self.threads == 1 else super().row_blocks

    def vectors(self, v: Array) -> Any:
        if not self.has_card or VECTORS_OF_A_SOLVE * v.nbytes > VECTORS_PART * card_bytes(self.x):
            return v
        return array_namespace(self.x).asarray(v)

    def shared(self, v: Any) -> Any:
        return padded_columns(v, self.x)

    def lasting(self, function: Callable[..., Any], *shared: Any) -> LastingHere:
        return LastingHere(self, function, shared)

    def sums(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[Item],
        *shared: Any,
        stored: Lasting | None = None,
        title: str = "",  # noqa: ARG002
    ) -> list[Any]:
        totals: dict[int, Any] = {}
        locks = {number: Lock() for item in items for number in item.totals}

        def add(item: Item) -> None:
            held = (stored.of(item),) if isinstance(stored, LastingHere) else ()
            parts = function(self.points, *held, *item.blocks, *item.arguments, *shared)
            for number, part in zip(item.totals, parts, strict=True):
                with locks[number]:
                    if number in totals:
                        totals[number] += part
                    else:
                        totals[number] = part

        map_on_threads(add, items, self.threads)
        return [totals[number] for number in sorted(totals)]

    def of_points(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.points, *arguments)

    def rows(self, indices: Array) -> Any:
        return self.x[array_namespace(self.x).asarray(indices)]

    def of_inputs(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        blocks = tile_slices(slice(0, self.n), self.tile_rows)
        return map_on_threads(lambda rows: function(self.x[rows], *arguments), blocks, self.threads)


@dataclass(frozen=True)
class LastingHere(Lasting):
    """See Lasting: made by the thread that first needs it."""

    points: PointsHere
    function: Callable[..., Any]
    shared: tuple[Any, ...] = field(repr=False)
    made: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)

    def has(self, items: Sequence[Item]) -> bool:
        return all(item.key in self.made for item in items)

    def clear(self) -> None:
        self.made.clear()

    def of(self, item: Item) -> Any:
        """What is held of ``item``."""
        if item.key not in self.made:
            self.made[item.key] = self.function(self.points.points, *item.blocks, *self.shared)
        return self.made[item.key]


def moved(x: Any, center: Any | None) -> Any:
    """x - center for rows of x (n, d), where the center is; x itself if there is none."""
    if center is None:
        return x
    xp = array_namespace(center)
    return (to_numpy(x) if xp is np else xp.asarray(x)) - center
