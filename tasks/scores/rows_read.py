"""The rows of a version as faults are read off them: by PIT values, as counts, or by what quantiles cover; and sizes.

A version is read in the terms in which it speaks. Counts with many zeros are read by their sum and their zeros, ones,
two and more; predicted quantiles by how many targets they hold; all others by the scores of their PIT values. How large
a fault is stands in the unit of the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.counts import (
    CountReading,
    CountRows,
    JumpScores,
    by_group,
    count_reading,
)
from congruence.kernels.conditional_calibration.coverage import LevelReading, LevelRows, level_reading
from congruence.kernels.conditional_calibration.reading import GroupReading, Place, group_reading, group_readings
from congruence.kernels.dependence.blocks import DependentBlocks, t_quantile
from congruence.kernels.distributions import Distribution
from congruence.tasks.sentences.calibration import LEVEL, NEGLIGIBLE, short_name
from congruence.tasks.sentences.counts import count_fault, count_finding, level_fault, level_finding
from congruence.tasks.sentences.findings import Finding, group_finding

Power = Literal["square", "root"]

_TINY = 1e-300
_INSIDE = 0.6827  # of a normal law, within one spread
_ALMOST, _APART = 0.08, 0.25  # of the logarithm of a spread
_VARIES, _SLOPE = 0.2, 0.15  # predicted spreads from which a power shows in the rows, and how nearly it does
_FEWEST = 50


@dataclass(frozen=True)
class Size:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TargetRows:
    """Targets, predicted means and spreads, and PIT values of rows, (n,) each.

    ``blocks`` of the rows, where they depend on each other.
    """

    y: Array = field(repr=False)
    mean: Array = field(repr=False)
    std: Array = field(repr=False)
    pit: Array = field(repr=False)
    blocks: DependentBlocks | None = field(default=None, repr=False)

    def __getitem__(self, rows: Array) -> TargetRows:
        blocks = None if self.blocks is None else self.blocks.of_rows(rows)
        parts = {name: getattr(self, name)[rows] for name in ("y", "mean", "std", "pit")}
        return replace(self, **parts, blocks=blocks)

    @property
    def bias(self) -> Size | None:
        """The mean of predicted mean less target; None where there is none."""
        return self._mean(self.mean - self.y)

    @property
    def ratio(self) -> Size | None:
        """The sum of the predicted means over that of the targets; None where these are not amounts (none below 0)."""
        if np.min(self.y) < 0.0 or np.min(self.mean) <= 0.0 or not np.sum(self.y) > 0.0:
            return None
        ratio = float(np.sum(self.mean) / np.sum(self.y))
        apart = self._mean((self.mean - ratio * self.y) / (ratio * float(np.mean(self.y))))
        if apart is None:
            return None
        return Size(ratio, ratio * float(np.exp(apart.low)), ratio * float(np.exp(apart.high)))

    @property
    def factor(self) -> Size | None:
        """The spread of the targets about the predicted means, the mean of it taken out, over the predicted one."""
        z = (self.y - self.mean) / np.maximum(self.std, _TINY)
        squares = (z - np.mean(z)) ** 2
        found = self._mean(squares)
        if found is None or found.value <= 0.0:
            return None
        spread = (found.high - found.value) / found.value
        value = float(np.sqrt(found.value))
        return Size(value, value * float(np.exp(-spread / 2.0)), value * float(np.exp(spread / 2.0)))

    @property
    def spreads_vary(self) -> bool:
        """Whether predicted spreads differ by enough for a power of them to show."""
        return bool(np.all(self.std > 0.0)) and float(np.std(np.log(self.std))) > _VARIES

    @property
    def power(self) -> Power | None:
        """Whether what is predicted as spread is the square, or the root, of the spread that the targets show."""
        apart, n = np.abs(self.y - self.mean), len(self.y)
        if n < _FEWEST or not np.all(self.std > 0.0):
            return None
        logs, noise = np.log(self.std), 1.5 / n**0.5
        varies = float(np.std(logs))
        found: tuple[tuple[Power, float], ...] = (("square", 0.5), ("root", 2.0))
        for name, power in found:
            fits = abs(float(np.log(np.quantile(apart / self.std**power, _INSIDE)))) <= _ALMOST + noise
            if self.spreads_vary:
                slope = float(np.polyfit(logs, np.log(np.maximum(apart, _TINY)), 1)[0])
                error = 2.2 / (varies * n**0.5)
                fits &= abs(slope - power) <= _SLOPE * power + error < abs(slope - 1.0)
            else:
                fits &= abs(float(np.log(np.quantile(apart / self.std, _INSIDE)))) > _APART
            if fits:
                return name
        return None

    def gain_of_power(self, power: Power) -> float:
        """The log-likelihood of a normal distribution, by row, that the power has beyond spreads as they are scaled."""
        exponent = {"square": 0.5, "root": 2.0}[power]
        as_power = _log_of_squares((self.y - self.mean) / self.std**exponent)
        return (1.0 - exponent) * float(np.mean(np.log(self.std))) + self._log_of_squares - as_power

    def gain_of_part(self, rows: Array) -> float:
        """The same of a scale for some rows and another one for all others."""
        inside = np.zeros(len(self.y), dtype=bool)
        inside[rows] = True
        share, z = float(np.mean(inside)), (self.y - self.mean) / np.maximum(self.std, _TINY)
        apart = sum(part * _log_of_squares(z[some]) for part, some in ((share, inside), (1.0 - share, ~inside)) if part)
        return self._log_of_squares - apart

    @property
    def _log_of_squares(self) -> float:
        return _log_of_squares((self.y - self.mean) / np.maximum(self.std, _TINY))

    def share_outside(self, level: float) -> float:
        """Of the targets beyond the predicted quantile of ``level``: above it, or below it where it is a lower one."""
        return float(np.mean(self.pit > level if level > 0.5 else self.pit < level))

    def share_beyond(self, level: float) -> float:
        """Of the targets outside the predicted central interval of probability ``level``."""
        return float(np.mean(np.abs(self.pit - 0.5) > level / 2.0))

    def _mean(self, values: Array) -> Size | None:
        n = len(values)
        if n < 2 or not np.all(np.isfinite(values)):
            return None
        value, own = float(np.mean(values)), self.blocks
        error = float(np.std(values, ddof=1)) * n**0.5 if own is None else float(own.error_of_sum(values - value))
        reach = t_quantile(None if own is None else max(own.count, 2)) * error / n
        return Size(value, value - reach, value + reach)


def _log_of_squares(z: Array) -> float:
    return 0.5 * float(np.log(max(float(np.mean(z**2)), _TINY)))


@dataclass(frozen=True)
class RowsRead:
    """The rows of a version as its faults are read off them.

    Attributes:
        pit: PIT values, (n,).
        counts: the rows, where they are counts with many zeros.
        jumps: scores of the rows, where they are counts of any kind, or lie in cells that the version states: what is
            read then takes no random numbers, which hide what few claims say.
        levels: the rows of a version that states quantiles.
        blocks: of the rows, where they depend on each other.
        targets: the rows in the targets' own unit; sizes are in predicted spreads without them.
        members: of an ensemble, by whose ranks its law is read.
        mixing: variance of the spread score over all rows, see ``kernels.conditional_calibration.reading.faults``.
    """

    pit: Array = field(repr=False)
    counts: CountRows | None = None
    jumps: JumpScores | None = None
    levels: LevelRows | None = None
    blocks: DependentBlocks | None = None
    targets: TargetRows | None = None
    members: int | None = None
    mixing: float = 0.0

    @classmethod
    def of(
        cls,
        points: Mapping[str, Array],
        targets: Array,
        predictive: Distribution,
        blocks: DependentBlocks | None = None,
    ) -> RowsRead:
        """Of the scores of n rows (``score_points``), their targets (n,) and n laws."""
        jumps, pit = JumpScores.of(targets, predictive), points["pit"]
        return cls(
            pit,
            CountRows.of(targets, predictive),
            jumps,
            LevelRows.of(predictive.quantile_levels, jumps),
            blocks,
            TargetRows(targets, points["mean"], points["std"], pit, blocks),
            predictive.members,
        )

    def __len__(self) -> int:
        return len(self.pit)

    def __getitem__(self, rows: Array) -> RowsRead:
        return replace(
            self,
            pit=self.pit[rows],
            counts=None if self.counts is None else self.counts[rows],
            jumps=None if self.jumps is None else self.jumps[rows],
            levels=None if self.levels is None else self.levels[rows],
            blocks=None if self.blocks is None else self.blocks.of_rows(rows),
            targets=None if self.targets is None else self.targets[rows],
        )

    @property
    def scores(self) -> Array | JumpScores:
        """What scores are made of."""
        return self.pit if self.jumps is None else self.jumps

    @property
    def kind(self) -> Kind[Any]:
        """In which terms they are read."""
        return COUNTS if self.counts is not None else SCORES if self.levels is None else LEVELS

    def places(self, groups: Mapping[str, Array]) -> list[Place]:
        """The reading of each group of rows by its name, those with a fault beyond chance first, the largest before."""
        kind = self.kind
        readings, q_values = kind.by_group(self, groups)
        found = [Place(name, q_values[name], reading) for name, reading in readings.items()]
        return sorted(found, key=lambda place: (not kind.is_named(place, LEVEL), -kind.size(place.reading)))


R = TypeVar("R")


@dataclass(frozen=True)
class Kind(Generic[R]):
    """The terms in which versions are read.

    Attributes:
        read: some rows by their numbers, or all.
        by_group: each of several groups of rows, and q-values over them.
        is_off: whether there is a fault that is worth naming, by chance or not.
        size: what the fault weighs, for the order of places.
        fault: the fault in a few words.
        finding: the fault in a sentence: of a place, by its name in that sentence, with sizes of its rows.
        columns: what a table of places says beside it.
    """

    read: Callable[[RowsRead, Array | None], R]
    by_group: Callable[[RowsRead, Mapping[str, Array]], tuple[dict[str, R], dict[str, float]]]
    is_off: Callable[[R], bool]
    size: Callable[[R], float]
    fault: Callable[[R], str]
    finding: Callable[[R, str, str, TargetRows | None], Finding]
    columns: Callable[[R], dict[str, Any]]

    def is_named(self, place: Place, level: float) -> bool:
        """Whether the fault of a place is beyond chance over all places, and worth naming."""
        return place.q_value <= level and self.is_off(place.reading)

    def table(self, places: Sequence[Place], level: float) -> pd.DataFrame:
        """The places, with a fault where it is named at a level."""
        return pd.DataFrame(
            {
                "place": place.name,
                "rows": place.reading.rows,
                "fault": self.fault(place.reading) if self.is_named(place, level) else "",
                **self.columns(place.reading),
                "q_value": place.q_value,
            }
            for place in places
        )


def _known(part: R | None) -> R:
    assert part is not None  # of rows of this kind
    return part


def _read_scores(rows: RowsRead, chosen: Array | None) -> GroupReading:
    mixing = rows.mixing if chosen is None else 0.0
    return group_reading(rows.scores, chosen, mixing=mixing, blocks=rows.blocks, members=rows.members)


def _of_levels(reading: LevelReading) -> dict[str, float]:
    widest = next(iter(reading.intervals or reading.levels), None)
    names = {"stated": "probability", "holds": "observed", "holds_low": "low", "holds_high": "high"}
    return {name: np.nan if widest is None else getattr(widest, part) for name, part in names.items()}


def _of_counts(reading: CountReading) -> dict[str, float]:
    sums = {"observed": reading.total.observed, "expected": reading.total.expected}
    ratios = {"ratio": reading.ratio, "ratio_low": reading.low, "ratio_high": reading.high}
    shares = {
        f"{name}_{kind}": getattr(tally, f"{kind}_share")
        for name, tally in zip(("zeros", "ones", "more"), reading.shares, strict=True)
        for kind in ("observed", "expected")
    }
    return {**sums, **ratios, **shares}


SCORES: Kind[GroupReading] = Kind(
    _read_scores,
    lambda rows, groups: group_readings(rows.scores, groups, rows.blocks, rows.members),
    lambda reading: abs(reading.strength) >= NEGLIGIBLE,
    lambda reading: reading.strength**2 * reading.share,
    lambda reading: short_name(reading.dominant, reading.strength),
    group_finding,
    lambda reading: {"shift": reading.shift, "factor": reading.factor},
)
LEVELS: Kind[LevelReading] = Kind(
    lambda rows, chosen: level_reading(_known(rows.levels), chosen, rows.blocks),
    lambda rows, groups: by_group(lambda chosen: level_reading(_known(rows.levels), chosen, rows.blocks), groups, 2),
    lambda reading: reading.is_off,
    lambda reading: reading.size,
    level_fault,
    lambda reading, place, words, *_: level_finding(reading, place, words),
    _of_levels,
)
COUNTS: Kind[CountReading] = Kind(
    lambda rows, chosen: count_reading(_known(rows.counts), chosen, rows.blocks),
    lambda rows, groups: by_group(lambda chosen: count_reading(_known(rows.counts), chosen, rows.blocks), groups, 1),
    lambda reading: reading.is_off,
    lambda reading: reading.size,
    count_fault,
    lambda reading, place, words, *_: count_finding(reading, place, words),
    _of_counts,
)
