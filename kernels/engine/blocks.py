"""Blocks of rows: how a split is read, what its blocks add up to, and passes over them in this process.

Blocks in which rows depend on each other are another thing, and found by such a pass (``FoundBlocks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any, Protocol

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import dependence_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import BlocksInference
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.threads import available_threads, map_on_threads, single_threaded_blas

Write = Callable[[int, str, dict[str, Array]], None]
"""Takes the columns of a block, a version's name and its columns, (rows,) each."""
HELD_BLOCK_ROWS = 4096


@dataclass
class BlockSums:
    """What some rows add up to; its size does not depend on how many rows these are.

    Attributes:
        added: sums over the rows.
        largest: maxima over the rows.
        moments: count, mean and sum of squared deviations of something, which merge without cancellation (Chan, Golub
            and LeVeque 1983).
        kept: named rows, of those that were asked for: their values, in order.
    """

    added: dict[str, Any] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    moments: dict[str, tuple[float, Any, Any]] = field(default_factory=dict)
    kept: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Add to a sum; arrays are copied, so that what is merged stays as it was."""
        if name not in self.added:
            self.added[name] = value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)
        elif isinstance(value, np.ndarray):
            self.added[name] = self.added[name].astype(np.float64, copy=False)
            self.added[name] += value
        else:
            self.added[name] = self.added[name] + float(value)

    def add_large(self, name: str, value: Array) -> None:
        """Add an array that nobody else holds: the first is kept as it is, also in single precision."""
        if name in self.added:
            self.add(name, value)
        else:
            self.added[name] = value

    def sum_of(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """Returns the sum itself, to be added to in place."""
        if name not in self.added:
            self.added[name] = np.zeros(shape, dtype)
        return np.asarray(self.added[name])

    def raise_to(self, name: str, value: float) -> None:
        """Raise a maximum; NaN stays."""
        self.largest[name] = float(np.maximum(self.largest.get(name, -np.inf), value))

    def spread(self, name: str, values: Array) -> None:
        """Add rows (n,) or (n, q) to count, mean and squared deviations."""
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by what asks for the variance
            mean = np.mean(values, axis=0, dtype=np.float64)
            self._merge_moments(name, (float(len(values)), mean, np.sum((values - mean) ** 2, axis=0)))

    def keep(self, name: str, rows: Any) -> None:
        """Keep rows that were asked for."""
        if len(rows):
            self.kept.setdefault(name, []).append(rows)

    def merge(self, other: BlockSums) -> BlockSums:
        """Returns this with what the rows that follow add, whose own sums stay as they were."""
        for name, value in other.added.items():
            self.add(name, value)
        for name, value in other.largest.items():
            self.raise_to(name, value)
        for name, moments in other.moments.items():
            self._merge_moments(name, moments)
        for name, rows in other.kept.items():
            self.kept.setdefault(name, []).extend(rows)
        return self

    def rows(self, name: str) -> Any:
        """Returns the kept rows one after the other."""
        parts = self.kept[name]
        if isinstance(parts[0], Distribution):
            return type(parts[0]).concatenate(parts)
        return np.concatenate(parts)

    def variance(self, name: str) -> float:
        """Returns the variance (ddof 1), summed over columns."""
        count, _, squares = self.moments[name]
        return float(np.sum(squares)) / (count - 1.0)

    def _merge_moments(self, name: str, more: tuple[float, Any, Any]) -> None:
        if name not in self.moments:
            self.moments[name] = more
            return
        (n, mean, squares), (m, other, others) = self.moments[name], more
        difference = other - mean
        total = n + m
        merged = mean + difference * (m / total), squares + others + difference**2 * (n * m / total)
        self.moments[name] = (total, *merged)


Pass = dict[str, BlockSums]
"""What a pass adds up, by name: "" for the split itself, else a version."""


def chosen_in(positions: Array, first: int, rows: int) -> Array:
    """Returns, of sorted row numbers, those in a block that begins at ``first``, counted from there."""
    start, stop = np.searchsorted(positions, (first, first + rows))
    return np.asarray(positions[start:stop] - first)


def evenly_spaced(n: int, most: int) -> Array:
    """Returns the positions of up to ``most`` of n rows, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.intp)


class RowBlocks(Protocol):
    """The rows of a split by blocks, read where they are asked for; picklable, and an address rather than data."""

    @property
    def sizes(self) -> Sequence[int]:
        """Valid rows of each block, in the order of the split."""

    def inputs(self, block: int) -> Array:
        """Returns the embeddings of the block's valid rows, (rows, d), as the encoder gave them."""

    def targets(self, block: int) -> Array:
        """Returns the targets, (rows,) or (rows, q)."""

    def predictive(self, block: int, version: str) -> Distribution:
        """Returns what a version predicts for the block's rows."""

    def weights(self, block: int) -> Array | None:
        """Returns what each row counts in means, (rows,), of mean 1 over the split; None for equal weights."""


@dataclass(frozen=True)
class BlockRows:
    """One block of a split, read where it is asked for: what every pass is a function of.

    Attributes:
        blocks: of the split.
        block: the number of this one.
        first: position of its first row in the split.
    """

    blocks: Any
    block: int
    first: int

    def __len__(self) -> int:
        return int(self.blocks.sizes[self.block])

    def inputs(self) -> Array:
        """Returns the embeddings, (rows, d).

        Raises:
            InvalidInputError: not one for each valid row.
        """
        inputs: Array = self.blocks.inputs(self.block)
        if np.ndim(inputs) != 2 or len(inputs) != len(self):
            raise InvalidInputError(
                f"embeddings: shape {np.shape(inputs)} in block {self.block} (from row {self.first} on), which has "
                f"{len(self)} valid rows; embed the split again"
            )
        return inputs

    def targets(self) -> Array:
        """Returns the targets, (rows,) or (rows, q).

        Raises:
            InvalidInputError: not numbers, another number of rows, or not finite; rows count from the block's first.
        """
        try:
            return require_targets(self.blocks.targets(self.block), "targets", len(self))
        except InvalidInputError as error:
            raise InvalidInputError(f"{error} (in the block that begins at row {self.first} of the split)") from error

    def predictive(self, version: str) -> Distribution:
        """Returns what a version predicts."""
        found: Distribution = self.blocks.predictive(self.block, version)
        return found

    def weights(self) -> Array | None:
        """Returns what each row counts in means; None for equal weights."""
        found: Array | None = self.blocks.weights(self.block)
        return found


@dataclass
class Columns:
    """Takes the columns that passes in this process write, by version and block."""

    written: dict[str, dict[int, dict[str, Array]]] = field(default_factory=dict)

    def __call__(self, block: int, version: str, columns: dict[str, Array]) -> None:
        self.written.setdefault(version, {}).setdefault(block, {}).update(columns)

    def of(self, version: str) -> dict[str, Array]:
        """Returns the columns of a version over all blocks."""
        blocks = [columns for _, columns in sorted(self.written[version].items())]
        return {name: np.concatenate([columns[name] for columns in blocks if name in columns]) for name in blocks[0]}


@dataclass(frozen=True)
class HeldRows(RowBlocks):
    """Rows in memory, in blocks of at most ``block_rows``: one, or an even number of one size, for as many cores.

    Attributes:
        x: embeddings (n, d).
        y: targets, (n,) or (n, q); None where nothing asks for them.
        models: predictive distributions by version, n rows each.
        counted: what each row counts in means, (n,), of mean 1; None for equal weights.
        named: keys by which randomised PIT values are drawn, (n,); row numbers by default.
    """

    x: Array = field(repr=False)
    y: Array | None = field(default=None, repr=False)
    models: Mapping[str, Distribution] = field(default_factory=dict, repr=False)
    counted: Array | None = field(default=None, repr=False)
    block_rows: int = HELD_BLOCK_ROWS
    named: Array | None = field(default=None, repr=False)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """See RowBlocks."""
        count = -(-len(self.x) // self.block_rows)
        count += count % 2 if count > 1 else 0
        return [len(self.x) * (block + 1) // count - len(self.x) * block // count for block in range(count)]

    def inputs(self, block: int) -> Array:
        return self.x[self._of(block)]

    def targets(self, block: int) -> Array:
        assert self.y is not None
        return self.y[self._of(block)]

    def predictive(self, block: int, version: str) -> Distribution:
        model = self.models[version]
        return model if len(self.sizes) == 1 else model[self._of(block)]

    def weights(self, block: int) -> Array | None:
        return None if self.counted is None else self.counted[self._of(block)]

    def keys(self, block: int) -> Array:
        """Returns one number or text per row of a block, (rows,)."""
        return (np.arange(len(self.x)) if self.named is None else self.named)[self._of(block)]

    def _of(self, block: int) -> slice:
        first = sum(self.sizes[:block])
        return slice(first, first + self.sizes[block])


class Passes(Protocol):
    """Runs functions of every block that has rows, and merges what they add."""

    @property
    def sizes(self) -> Sequence[int]:
        """Valid rows of each block."""

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        """Returns the merged sums of ``function(rows, *context)`` over the blocks."""


@dataclass(frozen=True)
class LocalPasses(Passes):
    """Passes in this process, by its threads: each takes neighbouring blocks."""

    blocks: RowBlocks

    @property
    def sizes(self) -> Sequence[int]:
        return self.blocks.sizes

    def __call__(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:  # noqa: ARG002
        places, shared = places_of(self.sizes), (self.blocks, *context)
        count = min(available_threads(), len(places))
        groups = [[places[at] for at in group] for group in np.array_split(np.arange(len(places)), count)]
        return merged(map_on_threads(lambda some: sums_of_blocks(function, some, shared), groups, count))


def places_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Returns number and first row of every block that has rows."""
    firsts = accumulate(sizes, initial=0)
    return [(block, first) for block, (size, first) in enumerate(zip(sizes, firsts, strict=False)) if size]


def sums_of_blocks(function: Callable[..., Pass], places: list[tuple[int, int]], shared: tuple[Any, ...]) -> Pass:
    """Returns what a pass adds over the blocks at ``places``; ``shared`` are the blocks and what follows them."""
    blocks, *context = shared
    with single_threaded_blas():
        return merged(function(BlockRows(blocks, block, first), *context) for block, first in places)


def merged(parts: Iterable[Pass]) -> Pass:
    """Returns the sums of parts that follow each other; of one alone they are its own, which nobody else holds."""
    rest = iter(parts)
    first, second = next(rest, {}), next(rest, None)
    if second is None:
        return first
    total: Pass = {}
    for part in chain((first, second), rest):
        for name, sums in part.items():
            total.setdefault(name, BlockSums()).merge(sums)
    return total


def whole_rows(rows: BlockRows, versions: list[str], positions: Array) -> Pass:
    """A pass that keeps some rows of the split with all that is known of them: inputs, targets, predictions."""
    found = {"": BlockSums()} | {f"version {name}": BlockSums() for name in versions}
    chosen = chosen_in(positions, rows.first, len(rows))
    if len(chosen):
        found[""].keep("inputs", rows.inputs()[chosen])
        found[""].keep("targets", rows.targets()[chosen])
        for name in versions:
            found[f"version {name}"].keep("predictive", rows.predictive(name)[chosen])
    return found


def held(found: Pass, versions: Sequence[str]) -> HeldRows:
    """Returns what ``whole_rows`` kept as rows in memory."""
    models = {name: found[f"version {name}"].rows("predictive") for name in versions}
    return HeldRows(found[""].rows("inputs"), found[""].rows("targets"), models)


@dataclass(frozen=True)
class FoundBlocks:
    """By what blocks of rows a version is judged: a ``BlocksInference`` with the blocks themselves.

    Attributes:
        kind: "groups" or "time", as the split names the column; "" where it names none.
        blocks: None where every row is one of its own, or there are too few.
        refused: why there is no p-value and no interval; "" where there are.
    """

    kind: str = ""
    blocks: DependentBlocks | None = field(default=None, repr=False)
    refused: str = ""

    @property
    def inference(self) -> BlocksInference | None:
        """What a result says of them; None where the split names no column."""
        if not self.kind:
            return None
        count, effective = (None, None) if self.blocks is None else (self.blocks.count, self.blocks.effective)
        return BlocksInference(self.kind, count, self.refused, effective)


def dependent_rows(rows: BlockRows, versions: list[str], n: int) -> Pass:
    """Groups and times of a block's rows, and their scores by every version where a time is named."""
    sums = BlockSums()
    dependence = rows.blocks.row_dependence(rows.block)
    if dependence is None:
        return {"": sums}
    targets = rows.targets()
    for name, column in (("groups", dependence.groups), ("time", dependence.time)):
        if column is not None:
            sums.keep(name, column)
    laws = {version: rows.predictive(version) for version in versions}
    if any(law.is_discrete for law in laws.values()):
        sums.keep("targets", targets)
    for version, law in laws.items():
        sums.raise_to(f"noise {version}", float(law.is_discrete))
        if dependence.time is not None:
            sums.keep(f"scores {version}", dependence_scores(targets, law, n).astype(np.float32))
    return {"": sums}


def blocks_of_versions(found: BlockSums, n: int, versions: Sequence[str]) -> dict[str, FoundBlocks]:
    """The blocks of every version, from ``dependent_rows`` of all n rows."""
    columns = {name: found.rows(name) for name in ("groups", "time") if name in found.kept}
    dependence = RowDependence.of(n, **columns)
    made: dict[str, FoundBlocks] = {}
    for version in versions:
        scores = partial(found.rows, f"scores {version}")
        counted = found.largest.get(f"noise {version}", 0.0) > 0.0
        made[version] = found_blocks(dependence, scores, found.rows("targets") if counted else None)
    return made


def found_blocks(dependence: RowDependence | None, scores: Callable[[], Array], counts: Array | None) -> FoundBlocks:
    """The blocks by the scores of all rows (n, r), and by their targets (n,) that are counts; see ``RowDependence``."""
    if dependence is None:
        return FoundBlocks()
    try:
        return FoundBlocks(dependence.kind, dependence.blocks(scores, counts=counts))
    except TooFewBlocksError as error:
        return FoundBlocks(dependence.kind, refused=str(error))


def blocks_of_version(dependence: RowDependence | None, targets: Array, predictive: Distribution) -> FoundBlocks:
    """The blocks of one version's rows."""
    counts = targets if predictive.is_discrete else None
    return found_blocks(dependence, lambda: dependence_scores(targets, predictive), counts)
