r"""Blocks of rows that are taken as independent of each other: groups that a user names, or runs of consecutive rows.

Intervals and p-values come from such blocks, few, unequal and skewed as they may be. Student's t distribution of the
sum of B contributions takes them as normal. Where they are skewed, an estimate that is too low comes with a standard
error that is too small: intervals of ten groups whose levels have a chi-squared distribution cover .86 in the place of
.95. With the skewness G of the contributions and a = G / (3 sqrt(B)),

.. math::  g(t) = t + a t^2 + \frac{a^2 t^3}{3} + \frac{a}{2} = \frac{(1 + a t)^3 - 1}{3 a} + \frac{a}{2}

is monotone and takes the skewness off t = (estimate - truth) / error (Hall 1992, "On the removal of skewness by
transformation"): g(t) is held against Student's t distribution.

Blocks that count shares h_b of all rows, by their sizes or their weights, know the error by fewer degrees of freedom:
(sum h^2)^2 / sum h^4 - 1 (Satterthwaite 1946), which is B - 1 where they are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.special

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.runs import SLOW_WAVES, run_length
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.rng import stream

_FLAT = 1e-8  # of a, below which g is the identity
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class SumOfBlocks:
    """How far an estimate is known.

    Attributes:
        blocks: B, or as many as have the degrees of freedom of unequal ones.
        error: its standard error.
        lean: a, by the skewness of what the blocks contribute.
    """

    blocks: float
    error: float
    lean: float

    @classmethod
    def of(cls, contributions: Array) -> SumOfBlocks:
        """From what each block contributes to the estimate beyond its mean, (B,)."""
        count = len(contributions)
        error = float(np.sqrt(np.sum(contributions**2) * count / (count - 1.0)))
        unbiased = np.sqrt(count * (count - 1.0)) / max(count - 2.0, 1.0)  # two blocks show no skewness
        return cls(count, error, float(unbiased * skewness(contributions)) / (3.0 * np.sqrt(count)))

    @classmethod
    def by_jackknife(cls, without_each: Array, counts: Array) -> SumOfBlocks:
        """From the estimate without each block in turn, (B,), and what each counts, (B,)."""
        size = len(without_each)
        found = cls.of((np.mean(without_each) - without_each) * (size - 1.0) / size)
        squares = counts**2
        return replace(found, blocks=max(2.0, float(np.sum(squares) ** 2 / np.sum(squares**2))))

    def interval(self, estimate: float, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of what is estimated."""
        reach = t_quantile(self.blocks, level)
        return estimate - self.error * self._inverse(reach), estimate - self.error * self._inverse(-reach)

    def p_value(self, difference: float) -> float:
        """Two-sided, of an estimate whose truth is 0."""
        if self.error == 0.0:
            return 1.0 if difference == 0.0 else 0.0
        ratio, a = difference / self.error, self.lean
        return two_sided_p_value(ratio + a * ratio**2 + a**2 * ratio**3 / 3.0 + a / 2.0, self.blocks)

    def _inverse(self, value: float) -> float:
        """t with g(t) = ``value``."""
        a = self.lean
        if abs(a) < _FLAT:
            return value
        return float((np.cbrt(1.0 + 3.0 * a * (value - a / 2.0)) - 1.0) / a)


def without_each(sums: Array, counts: Array) -> Array:
    """Means over all blocks but one, (B, k), from sums (B, k) and counts (B,) within them."""
    return np.asarray((np.sum(sums, axis=0) - sums) / (np.sum(counts) - counts)[:, None])


FEWEST_BLOCKS = 10
"""With fewer blocks no p-value and no interval is given: it would rest on too few independent pieces."""

FOLDS = 10
"""Parts of the blocks, each of which is judged by a fit of the others."""

_TIMES, _CELLS = 100, 10_000_000  # of groups by time, at the most
_MEETING_BY_CHANCE = 0.02  # of splits whose groups do not depend on each other
_CLEAR_SKEWNESS = 24.0  # over B: two standard errors of a skewness, squared
_ROUNDING = 1e-9  # of sums of counts over blocks
_OF_COUNTS = 6.0  # by which the skewness of sums of counts enlarges a null

_WORDS = {"groups": "groups", "time": "runs of rows that do not depend on each other"}


class TooFewBlocksError(InvalidInputError):
    """Fewer than ten groups or runs of time, or fewer than ten that say something."""


@dataclass(frozen=True)
class DependentBlocks:
    """A partition of n rows into blocks.

    Attributes:
        labels: the block of each row, 0 to ``count`` - 1, (n,).
        count: of blocks.
        kind: "groups" or "time".
        sparse: whether targets are counts of which more than half are the same, see ``enlargement``.
    """

    labels: Array = field(repr=False)
    count: int
    kind: str
    sparse: bool = False

    def sums(self, values: Array) -> Array:
        """Sums of values (n, ...) within the blocks, (count, ...)."""
        flat = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        total = np.column_stack([np.bincount(self.labels, column, self.count) for column in flat.T])
        return total.reshape(self.count, *np.shape(values)[1:])

    def add_products(self, total: Array, vectors: Array, values: Array) -> None:
        """Adds u_i v_i' of rows with u (n, k) and v (n, r) to the ``total`` of their block, (count, k, r)."""
        order = np.argsort(self.labels, kind="stable")
        present, starts = np.unique(self.labels[order], return_index=True)
        ordered = vectors[order]
        for j in range(values.shape[1]):
            total[present, :, j] += np.add.reduceat(ordered * values[order, j : j + 1], starts, axis=0)

    def signs(self, draws: int, seed: int, first: int = 0) -> Array:
        """A random sign a block, (count, draws); draw ``first`` + d is the same however many are asked for."""
        columns = [
            stream(seed, "signs of blocks", first + draw).integers(0, 2, self.count, dtype=np.int8)
            for draw in range(draws)
        ]
        return np.asarray(2.0 * np.column_stack(columns) - 1.0)

    def standard_error(self, influence: Array) -> float:
        """Of a mean whose rows contribute ``influence`` (n,) beyond it: sums within blocks, ddof 1."""
        return self.error_of_sum(influence - np.mean(influence)) / len(influence)

    def error_of_sum(self, influence: Array) -> float:
        """Of a sum to which rows contribute ``influence`` (n,): the root sum of squares over blocks, ddof 1."""
        return float(np.sqrt(np.sum(self.sums(influence) ** 2) * self.count / (self.count - 1.0)))

    @cached_property
    def effective(self) -> float:
        """As many equal blocks as know an error by the same degrees of freedom, at least 2: see the module."""
        squares = np.bincount(self.labels, minlength=self.count).astype(np.float64) ** 2
        return max(2.0, float(np.sum(squares) ** 2 / np.sum(squares**2)))

    @cached_property
    def folds(self) -> Array:
        """Which of ``FOLDS`` parts each row is in, whole blocks at random, (n,)."""
        return np.asarray(stream(0, "folds of blocks").permutation(self.count)[self.labels] % FOLDS)

    def at(self, rows: slice) -> DependentBlocks:
        """Of a range of the rows, with the number of all blocks."""
        return replace(self, labels=self.labels[rows])

    def joined(self, most: int) -> DependentBlocks:
        """At most so many blocks, each of neighbouring ones: independent of each other as those are."""
        if self.count <= most:
            return self
        return replace(self, labels=self.labels * most // self.count, count=most)

    def of_rows(self, rows: Any) -> DependentBlocks:
        """Of some rows alone, by their numbers or a mask; blocks without any of them are gone."""
        found, labels = np.unique(self.labels[rows], return_inverse=True)
        return replace(self, labels=labels.reshape(-1), count=len(found))

    def __str__(self) -> str:
        return f"{self.count:,} groups" if self.kind == "groups" else f"{self.count:,} runs of time"


def widening(blocks: int) -> float:
    """By which what is resampled by blocks is drawn apart, for intervals of so few blocks to cover."""
    return t_quantile(blocks) / t_quantile(None) * float(np.sqrt(blocks / (blocks - 1.0)))


def enlargement(blocks: int, counts: Array | None = None) -> float:
    r"""(B / (B - 1))^{1/3}, by which sums of blocks under random signs count more in a null than the observed ones.

    Sums of few blocks are not as symmetric as signs make them. The whole factor, as in the jackknife of clusters (CR3,
    Bell and McCaffrey 2002), called .005 of true distributions wrong by the congruence test with ten groups that share
    their inputs, where this called .04; what skewness asks for beyond it is in ``enlargements``.

    Sparse counts that fall together in a few groups make sums whose skewness G lasts over fifty groups. Where their
    ``counts`` (B,), observed minus expected by block, are given and sum to less than 0 by more than rounding, it is
    multiplied by sqrt(1 + 6 max(G^2 - 24 / B, 0) / B): 24 / B is two standard errors of G, squared, and 6 is by
    simulation (``tests/benchmarks/dependent_rows.md``). Sums vary too little where by chance no group holds many; where
    more fall than expected they vary enough.
    """
    factor = (blocks / (blocks - 1.0)) ** (1.0 / 3.0)
    if counts is None or np.sum(counts) > -_ROUNDING * np.sum(np.abs(counts)):
        return float(factor)
    clear = max(float(skewness(counts)) ** 2 - _CLEAR_SKEWNESS / blocks, 0.0)
    return float(factor * np.sqrt(1.0 + _OF_COUNTS * clear / blocks))


def enlargements(sums: Array) -> Array:
    """The same of columns whose sums within blocks (B, r) are known, (r,): as far as these are skewed.

    With a skewness G a sum in its own standard errors reaches G^2 / B further than signs make it, at 5 % (by its
    Edgeworth expansion). What is left of the factor above is for a G that few blocks show too small.
    """
    count = len(sums)
    squares = 1.0 + 2.0 * np.maximum(skewness(sums) ** 2 - 6.0 / count, 0.0) / count
    return np.asarray(enlargement(count) * np.sqrt(squares))


def skewness(sums: Array) -> Array:
    """Of each column (B, ...); 0 where it does not vary."""
    centred = sums - np.mean(sums, axis=0)
    variance = np.mean(centred**2, axis=0)
    return np.asarray(np.mean(centred**3, axis=0) / np.where(variance > 0.0, variance, 1.0) ** 1.5)


def t_quantile(blocks: float | None, level: float = 0.95) -> float:
    """Of a two-sided interval: Student's t with one degree of freedom less than blocks, or the normal distribution."""
    share = 0.5 + 0.5 * level
    return float(scipy.special.ndtri(share) if blocks is None else scipy.special.stdtrit(blocks - 1, share))


def two_sided_p_value(ratio: float, blocks: float | None) -> float:
    """Of a difference that is ``ratio`` standard errors, by the same distributions."""
    if blocks is None:
        return float(2.0 * scipy.special.ndtr(-abs(ratio)))
    return float(2.0 * scipy.special.stdtr(blocks - 1, -abs(ratio)))


def p_value_kind(blocks: int | None, otherwise: str = "exact") -> str:
    """How far p-values hold: ``otherwise`` of independent rows, else in the limit of many blocks."""
    return otherwise if blocks is None else f"asymptotic in {blocks:,} blocks"


@dataclass(frozen=True)
class RowDependence:
    """Which rows of a split may depend on each other, as its user says: those of a group, or those near in time.

    Attributes:
        groups: one value per row, (n,), or None.
        time: one sortable value per row, (n,), or None. Where both are given, blocks are groups, and these may not
            depend on each other at one time.
    """

    groups: Array | None = field(default=None, repr=False)
    time: Array | None = field(default=None, repr=False)

    @classmethod
    def of(cls, n: int, *, groups: Any | None = None, time: Any | None = None) -> RowDependence | None:
        """Checked; None where rows are independent.

        Raises:
            InvalidInputError: another number of rows than n, or missing values, by row.
        """
        given = {"groups": groups, "time": time}
        known = {name: _column(values, n, name) for name, values in given.items() if values is not None}
        return cls(**known) if known else None

    @property
    def kind(self) -> str:
        """ "groups" or "time": by which of the two blocks are made."""
        return "time" if self.groups is None else "groups"

    def blocks(self, scores: Callable[[], Array], *, counts: Array | None = None) -> DependentBlocks | None:
        """The blocks of rows; None where every row is one of its own.

        Args:
            scores: of the rows, (n, r), by whose correlation runs of time are long enough.
            counts: targets that are counts, (n,). Of sparse ones a block without any says next to nothing: blocks that
                hold a target other than the commonest one have to be as many as blocks have to be.

        Raises:
            TooFewBlocksError: fewer than ten groups or runs of time, or fewer than ten that hold a count; or groups
                that depend on each other at one time.
        """
        if self.groups is not None:
            found = blocks_of_groups(self.groups, len(self.groups))
            if self.time is not None and _meet_in_time(found, time_ranks(self.time, len(self.time)), scores()):
                raise TooFewBlocksError(
                    "groups: rows of different groups depend on each other near in time, so that groups are not "
                    "independent. Name groups alone if the inputs say what they share, or read point estimates alone"
                )
        else:
            found = blocks_of_time(self.time, scores())
        if found.count == len(found.labels):
            return None
        if counts is None:
            return found
        values, times = np.unique(counts, return_counts=True)
        commonest = values[np.argmax(times)]
        held = len(np.unique(found.labels[counts != commonest]))
        if held < FEWEST_BLOCKS:
            raise _too_few(
                f"{found.kind}: {held} of {found.count} {_WORDS[found.kind]} hold a target other than {commonest:g}"
            )
        return replace(found, sparse=bool(2 * np.max(times) > len(counts)))

    def of_rows(self, rows: Any) -> RowDependence:
        """Of some rows alone."""
        return RowDependence(*(None if column is None else column[rows] for column in (self.groups, self.time)))


def blocks_of_groups(groups: Any, n: int) -> DependentBlocks:
    """A block for every value of ``groups`` (n,), such as the patient of each row.

    Raises:
        InvalidInputError: another number of rows, missing values, or fewer than ten groups.
    """
    found, labels = np.unique(_column(groups, n, "groups"), return_inverse=True)
    return _enough(DependentBlocks(labels.reshape(-1), len(found), "groups"))


def blocks_of_time(time: Any, scores: Array) -> DependentBlocks:
    """Runs of consecutive rows in the order of ``time`` (n,), as long as the scores (n, r) depend on each other.

    Rows of one time are in one run.

    Raises:
        InvalidInputError: another number of rows, missing values, or fewer than ten runs.
    """
    rank = time_ranks(time, len(scores))
    order = np.argsort(rank, kind="stable")
    ordered, columns = rank[order], np.asarray(scores, dtype=np.float64)[order].T
    length = max(map(run_length, columns))
    first = np.searchsorted(ordered, ordered, side="left")  # of the rows of the same time
    _, runs = np.unique(first // length, return_inverse=True)
    labels = np.empty(len(order), dtype=np.intp)
    labels[order] = runs.reshape(-1)
    return _enough(DependentBlocks(labels, int(labels.max()) + 1, "time"))


def _meet_in_time(groups: DependentBlocks, rank: Array, scores: Array) -> bool:
    """Whether rows of different groups depend on each other near in time, by their scores (n, r).

    Of independent groups the sums c_gt at time t have products c_gt c_ht of mean 0. What these add up to, over all
    pairs and times, is held against its error under one random sign a group. Levels of groups, and what moves slowly in
    time, are taken off before, as for ``run_length``.
    """
    times = int(rank.max()) + 1
    kept = min(times, _TIMES, max(2, _CELLS // groups.count))
    place = rank * kept // times
    waves = np.cos(np.pi * np.outer(place + 0.5, np.arange(1, min(SLOW_WAVES, kept // 8) + 1)) / kept)
    rest = scores - (groups.sums(scores) / np.bincount(groups.labels)[:, None])[groups.labels]
    rest = rest - waves @ np.linalg.lstsq(waves, rest, rcond=None)[0]
    for column in rest.T:
        sums = np.bincount(groups.labels * kept + place, column, groups.count * kept).reshape(groups.count, kept)
        own, products = np.sum(sums**2, axis=1), np.sum((sums.T @ sums) ** 2)
        freedom = np.sum(own) ** 2 / max(float(products), _TINY)  # as of a chi-squared distribution
        beyond = (scipy.special.chdtri(freedom, _MEETING_BY_CHANCE / len(rest.T)) - freedom) / np.sqrt(freedom)
        together = float(np.sum(np.sum(sums, axis=0) ** 2) - np.sum(own))
        if together > beyond * np.sqrt(max(float(products - np.sum(own**2)), 0.0)):
            return True
    return False


def lag_correlations(scores: Array) -> Array:
    """Lag-1 correlation of each column of scores (..., n, r), in their order; 0 where it does not vary."""
    centred = scores - scores.mean(axis=-2, keepdims=True)
    squares = np.einsum("...nr,...nr->...r", centred, centred)
    products = np.einsum("...nr,...nr->...r", centred[..., 1:, :], centred[..., :-1, :])
    return np.asarray(np.divide(products, squares, out=np.zeros_like(products), where=squares > 0))


def time_ranks(time: Any, n: int) -> Array:
    """The dense rank of every row's time, (n,): any sortable type, ties allowed.

    Raises:
        InvalidInputError: another number of rows, or missing values, by row.
    """
    return np.unique(_column(time, n, "time"), return_inverse=True)[1].reshape(-1)


def _column(values: Any, n: int, name: str) -> Array:
    column = np.asarray(values)
    if column.ndim != 1 or len(column) != n:
        raise InvalidInputError(f"{name}: shape {column.shape}, expected one value for each of the {n} rows")
    missing = (column != column) | np.array([value is None for value in column])
    if np.any(missing):
        raise InvalidInputError(f"{name}: row {int(np.argmax(missing))} has no value; fill it in, or leave the row out")
    try:
        np.sort(column[:2])
    except TypeError as error:
        raise InvalidInputError(f"{name}: values of different types cannot be compared: {error}") from None
    return column


def _enough(blocks: DependentBlocks) -> DependentBlocks:
    if blocks.count == 1:
        one = "group" if blocks.kind == "groups" else "run of rows that depend on each other"
        raise _too_few(f"{blocks.kind}: all {len(blocks.labels)} rows are one {one}")
    if blocks.count < FEWEST_BLOCKS:
        raise _too_few(f"{blocks.kind}: {blocks.count} {_WORDS[blocks.kind]} among {len(blocks.labels)} rows")
    return blocks


def _too_few(found: str) -> TooFewBlocksError:
    return TooFewBlocksError(
        f"{found}; p-values and intervals need at least {FEWEST_BLOCKS}. "
        "Use a longer split, or read point estimates alone"
    )
