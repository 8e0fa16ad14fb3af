"""How far targets lie from what was predicted, in their own unit: bias, ratio, factor, and powers of the spread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from scipy.special import gammaln

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks, t_quantile
from congruence.kernels.resampling import Estimate

Power = Literal["square", "root"]

_TINY = 1e-140  # whose inverse has a square
_INSIDE = 0.6827  # of a normal law, within one spread
_ALMOST, _APART = 0.08, 0.25  # of the logarithm of a spread
_VARIES, _SLOPE = 0.2, 0.15  # predicted spreads from which a power shows in the rows, and how nearly it does
_FEWEST = 50


@dataclass(frozen=True)
class TargetRows:
    """Targets, predicted means and spreads, and PIT values of rows, (n,) each.

    ``blocks`` of the rows, where they depend on each other. Estimates have 95 % intervals. ``are_amounts`` is false of
    some of a split's rows where another target of it is below 0. ``members`` of an ensemble, whose mean and spread are
    those of so few draws: its factor is that of the distribution behind them.
    """

    y: Array = field(repr=False)
    mean: Array = field(repr=False)
    std: Array = field(repr=False)
    pit: Array = field(repr=False)
    blocks: DependentBlocks | None = field(default=None, repr=False)
    are_amounts: bool = True
    members: int | None = None

    def __getitem__(self, rows: Array) -> TargetRows:
        blocks = None if self.blocks is None else self.blocks.of_rows(rows)
        parts = {name: getattr(self, name)[rows] for name in ("y", "mean", "std", "pit")}
        return replace(self, **parts, blocks=blocks, are_amounts=self.are_amounts and bool(np.min(self.y) >= 0.0))

    @property
    def bias(self) -> Estimate | None:
        """The mean of predicted mean less target; None where there is none."""
        return self._mean(self.mean - self.y)

    @property
    def ratio(self) -> Estimate | None:
        """The sum of the predicted means over that of the targets; None where these are not amounts (none below 0)."""
        if not self.are_amounts or np.min(self.y) < 0.0 or np.min(self.mean) <= 0.0 or not np.sum(self.y) > 0.0:
            return None
        ratio = float(np.sum(self.mean) / np.sum(self.y))
        apart = self._mean((self.mean - ratio * self.y) / (ratio * float(np.mean(self.y))))
        if apart is None:
            return None
        return Estimate(ratio, ratio * float(np.exp(apart.low)), ratio * float(np.exp(apart.high)))

    @property
    def factor(self) -> Estimate | None:
        """The spread of the targets about the predicted means over the predicted one, a shift taken out: of one size
        in their unit, in predicted spreads or as a factor of the mean, whichever leaves the least."""
        if not np.all(self.std > 0.0):
            return None
        std, apart = np.maximum(self.std, _TINY), self.y - self.mean
        of_mean = np.mean(apart * self.mean) / max(float(np.mean(self.mean**2)), _TINY)
        noise = [0.0, 0.0, 0.0]
        if self.members is None:
            left = [apart - np.mean(apart), apart - np.mean(apart / std) * std, apart - of_mean * self.mean]
        else:  # rows together: of few draws one spread that is too small by chance decides a mean of ratios
            size, of_spread = self.members, float(np.sum(apart) / np.sum(std))
            left = [apart - np.mean(apart), apart - of_spread * std, apart - of_mean * self.mean]
            # (E s)^2 of so many normal draws with variance 1
            known = 2.0 / (size - 1) * float(np.exp(2.0 * (gammaln(size / 2.0) - gammaln((size - 1) / 2.0))))
            noise = [1.0 / size, 1.0 / size + of_spread**2 * (1.0 - known), 1.0 / size]
            std = np.full(len(std), np.sqrt(np.mean(std**2)))
        squares = [(each / std) ** 2 for each in left]
        least = min(range(3), key=lambda k: float(np.mean(squares[k])) - noise[k])
        found = self._mean(squares[least])
        if found is None or found.value <= noise[least]:
            return None
        spread = (found.high - found.value) / (found.value - noise[least])
        value = float(np.sqrt(found.value - noise[least]))
        return Estimate(value, value * float(np.exp(-spread / 2.0)), value * float(np.exp(spread / 2.0)))

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
            fits = abs(_log(np.quantile(apart / self.std**power, _INSIDE))) <= _ALMOST + noise
            if self.spreads_vary:
                slope = float(np.polyfit(logs, np.log(np.maximum(apart, _TINY)), 1)[0])
                error = 2.2 / (varies * n**0.5)
                fits &= abs(slope - power) <= _SLOPE * power + error < abs(slope - 1.0)
            else:
                fits &= abs(_log(np.quantile(apart / self.std, _INSIDE))) > _APART
            if fits:
                return name
        return None

    def gain_of_power(self, power: Power) -> float:
        """The log-likelihood of a normal distribution, by row, that the power has beyond spreads as they are scaled."""
        exponent = {"square": 0.5, "root": 2.0}[power]
        as_power = _log_of_squares((self.y - self.mean) / self.std**exponent)
        return (1.0 - exponent) * float(np.mean(np.log(self.std))) + self._log_of_squares - as_power

    def gain_of_part(self, rows: Array) -> float:
        """The same of a shift and a scale for some rows and others for all others, beyond one of each for all rows."""
        inside = np.zeros(len(self.y), dtype=bool)
        inside[rows] = True
        z = (self.y - self.mean) / np.maximum(self.std, _TINY)
        parts = [z[some] for some in (inside, ~inside) if some.any()]
        apart = sum(len(part) / len(z) * _log_of_squares(part - np.mean(part)) for part in parts)
        return _log_of_squares(z - np.mean(z)) - apart

    @property
    def _log_of_squares(self) -> float:
        return _log_of_squares((self.y - self.mean) / np.maximum(self.std, _TINY))

    def share_outside(self, level: float) -> float:
        """Of the targets beyond the predicted quantile of ``level``: above it, or below it where it is a lower one."""
        return float(np.mean(self.pit > level if level > 0.5 else self.pit < level))

    def share_beyond(self, level: float) -> float:
        """Of the targets outside the predicted central interval of probability ``level``."""
        return float(np.mean(np.abs(self.pit - 0.5) > level / 2.0))

    def _mean(self, values: Array) -> Estimate | None:
        n = len(values)
        if n < 2 or not np.all(np.isfinite(values)):
            return None
        value, own = float(np.mean(values)), self.blocks
        error = float(np.std(values, ddof=1)) * n**0.5 if own is None else float(own.error_of_sum(values - value))
        reach = t_quantile(None if own is None else own.effective) * error / n
        return Estimate(value, value - reach, value + reach)


def _log_of_squares(z: Array) -> float:
    return 0.5 * _log(np.mean(z**2))


def _log(value: float | np.floating) -> float:
    return float(np.log(max(float(value), _TINY)))
