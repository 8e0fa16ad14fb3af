"""Targets far out and values that many targets share: a version's metrics, and what is found of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.rare import Extremes, Masses, extremes, masses
from congruence.kernels.conditional_calibration.reading import GroupReading
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.dependence import FoundBlocks
from congruence.kernels.scores import resolution
from congruence.tasks.scores.evaluation import MetricValue, finite_metrics
from congruence.tasks.sentences.calibration import is_off
from congruence.tasks.sentences.counts import MOST_NAMED, extremes_finding, mass_finding
from congruence.tasks.sentences.findings import Finding

NOT_STATED = "Targets far out were not counted: what was predicted states no probability as small as 0.001."

FEW = 0.1
"""Share of the targets: of more far out, the spread or the mean is what is wrong."""

COUNTED = (0.0, 1.0)
"""Values whose masses the finding on counts with many zeros has anyway."""


@dataclass(frozen=True)
class RareTargets:
    """The targets of a version far out, and the values that many share; None of either where it was not looked for."""

    far: Extremes | None = None
    shared: Masses | None = None

    @classmethod
    def of(cls, targets: Array, predictive: Distribution, found: FoundBlocks) -> RareTargets:
        """Of targets (v,); nothing of vectors, and of rows that depend on each other in too few blocks."""
        if targets.ndim != 1 or found.refused:
            return cls()
        step = resolution(targets)
        shared = masses(targets, predictive, step, found.blocks)
        told = () if shared is None else shared.faults()
        return cls(extremes(targets, predictive, step, found.blocks, told), shared)

    def metrics(self) -> dict[str, MetricValue]:
        """The p-values of both, and what the most is wrong with: numbers of targets, and shares of a value."""
        known: dict[str, float] = {}
        if self.far is not None and self.far.p_value is not None and (most := self.far.most) is not None:
            known |= {"extremes_p_value": self.far.p_value, "extremes_level": most.level}
            known |= {"extremes_observed": most.observed, "extremes_expected": most.expected}
        if self.shared is not None and self.shared.p_value is not None:
            known["masses_p_value"] = self.shared.p_value
            for mass in self.shared.faults()[:1]:
                known |= {"mass_value": mass.value, "mass_observed": mass.observed_share}
                known["mass_expected"] = mass.expected_share
        return finite_metrics(known)

    @property
    def method(self) -> str:
        """What was not looked at, if anything was not."""
        return NOT_STATED if self.far is not None and not self.far.counts else ""

    def findings(
        self, overall: GroupReading | None, names: Callable[[Array], list[str]], *, of_counts: bool
    ) -> list[Finding]:
        """The largest fault of a single value, and targets far out beyond what the fault of all rows explains.

        Args:
            overall: the reading of all rows by their PIT values; None of versions that are read in their own terms.
            names: of rows by their numbers.
            of_counts: whether counts with many zeros are read, whose finding speaks of 0 and 1.
        """
        at = () if self.shared is None else self.shared.faults()
        found = [mass_finding(mass) for mass in at if not (of_counts and mass.value in COUNTED)][:1]
        shift, factor = (overall.shift, overall.factor) if overall is not None and is_off(overall) else (0.0, 1.0)
        beyond = None if self.far is None else self.far.beyond(shift, factor)
        if self.far is not None and beyond is not None and beyond.observed <= FEW * self.far.rows:
            found.append(extremes_finding(self.far, beyond, names(self.far.farthest[:MOST_NAMED])))
        return found
