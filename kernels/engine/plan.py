"""What is fixed of a version before its rows are summed: k_Y, its features, and what is drawn for it.

psi must be the same for every block, so it is chosen before the pass that uses it: its range from the extremes of all
targets and predictions, its nodes (for vector targets) from pilot rows. What it misses is then measured on all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.engine.blocks import (
    BlockRows,
    BlockSums,
    Pass,
    chosen_in,
    evenly_spaced,
)
from congruence.kernels.engine.congruence_test import null_draw_count
from congruence.kernels.engine.landmarks import EXACT_ROWS
from congruence.kernels.engine.null import (
    PILOT_ROWS,
    TABLE_TAIL,
    NullFeatures,
    SimulatedVersion,
    drawn_features,
    row_draws,
    tested_directions,
)
from congruence.kernels.engine.system import System
from congruence.kernels.engine.targets import (
    TargetErrors,
    features_of_errors,
    gamma_of_variance,
    kernel_at_scale,
    output_features,
    placed_targets,
    require_share,
    stated_kernel,
    target_errors,
)
from congruence.kernels.engine.uncertainty import FittedRows
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.fourier import TAILS, FeatureMap
from congruence.kernels.kernel_functions import RBF, Kernel, OutputScale
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.rng import row_signs

PROBES = 16
ALL_TAILS = (1e-12, *TAILS)
FIRST_TAILS = (1e-12, TABLE_TAIL)


class MissingTailError(Exception):
    """Features need a tail of the predictions that no pass has looked for yet."""


@dataclass(frozen=True)
class DrawnSamples:
    """Which draws stand for a version's distribution: ``count`` a row, by the number of the repeat."""

    count: int
    repeat: int
    seed: int

    def of(self, predictive: Distribution, positions: Array) -> Samples:
        """Returns the draws of the rows at some positions of the split."""
        purpose = f"samples of predictions, repeat {self.repeat}"
        return Samples(row_draws(predictive, positions, self.count, self.seed, purpose))


@dataclass(frozen=True)
class PlannedVersion:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        kernel: the k_Y of its CCE.
        features: psi of it.
        seed: of probes, signs and draws.
        blocks: of all rows of the split, where they depend on each other.
        is_uncertain: whether its standard errors are asked for.
        simulated: what is drawn for the version; None where neither its test nor its band is asked for.
        samples: draws that stand for the version's distribution; None for exact kernel means.
        label: by which its sums go: the name, and the repeat.
    """

    name: str
    kernel: Kernel
    features: FeatureMap = field(repr=False)
    seed: int
    blocks: DependentBlocks | None = field(default=None, repr=False)
    is_uncertain: bool = True
    simulated: SimulatedVersion | None = None
    samples: DrawnSamples | None = None
    label: str = ""

    def fitted(self, positions: Array) -> FittedRows:
        """Returns, of rows at some positions of the split, which share a sign, and which a fit."""
        return FittedRows.at(positions, self.blocks)

    def probes(self, variance: Array, positions: Array) -> Array:
        """Returns probes z (rows, 16) of variances v (rows,) of the noise floor, others for every repeat."""
        use = "" if self.samples is None else f", repeat {self.samples.repeat}"
        signs = row_signs(positions, PROBES, self.seed, f"noise floor probes{use}").astype(np.float64)
        signs *= np.sqrt(variance)[:, None]
        return signs

    def errors(
        self,
        targets: Array,
        predictive: Distribution,
        positions: Array,
        roots: Array | None,
        *,
        measured: bool = False,
    ) -> TargetErrors:
        """Returns Delta and v of the rows at some positions, of the version's distributions or draws of them.

        By the features that are fixed for all; see ``placed_targets`` and ``target_errors``. ``roots``: of their
        weights in the reference.
        """
        given = predictive if self.samples is None else self.samples.of(predictive, positions)
        targets = placed_targets(targets, predictive, positions, self.seed)
        return target_errors(targets, given, self.kernel, features=self.features, measured=measured).weighted(roots)


def look_pass(rows: BlockRows, versions: list[str], n: int, tails: tuple[float, ...], ends_only: bool) -> Pass:
    """The pass over targets and predictions: between what ends they lie, their moments, and the pilot rows."""
    targets, pilot = rows.targets(), chosen_in(evenly_spaced(n, PILOT_ROWS), rows.first, len(rows))
    sums = BlockSums()
    sums.spread("targets", targets)
    sums.raise_to("high", float(np.max(targets)))
    sums.raise_to("-low", -float(np.min(targets)))
    sums.keep("pilot targets", targets[pilot])
    found = {"": sums}
    for name in versions:
        predictive = rows.predictive(name)
        if len(predictive) != len(targets):
            raise InvalidInputError(
                f"predictive: {len(predictive)} distributions for {len(targets)} targets in the block that begins at "
                f"row {rows.first}; give one distribution per row"
            )
        require_dimension(predictive, targets)
        found[f"version {name}"] = _prediction_sums(targets, predictive, pilot, tails, ends_only=ends_only)
    return found


def _prediction_sums(
    targets: Array, predictive: Distribution, pilot: Array, tails: Sequence[float], *, ends_only: bool
) -> BlockSums:
    sums = BlockSums()
    for tail in tails if targets.ndim == 1 else ():
        low, high = predictive.interval(tail)
        sums.raise_to(f"high {tail}", high)
        sums.raise_to(f"-low {tail}", -low)
    if ends_only:
        return sums
    pooled = predictive.exchangeable(targets)
    if pooled is not None:
        sums.add("within", float(np.sum(np.var(pooled, axis=1, ddof=1))))
        sums.spread("between", pooled.reshape(-1, *pooled.shape[2:]))
    else:
        sums.add("within", float(np.sum(predictive.std() ** 2)))
        sums.spread("between", predictive.mean())
    sums.keep("pilot", predictive[pilot])
    return sums


@dataclass(frozen=True)
class _Reach:
    """Predictions known by their tails alone, as ``output_features`` asks for them."""

    ends: dict[float, tuple[float, float]]
    is_discrete: bool

    @classmethod
    def of(cls, predictions: BlockSums, is_discrete: bool) -> _Reach:
        """From what the passes found."""
        names = [name for name in predictions.largest if name.startswith("high ")]
        high = {name.removeprefix("high "): predictions.largest[name] for name in names}
        return cls(
            {float(tail): (-predictions.largest[f"-low {tail}"], end) for tail, end in high.items()}, is_discrete
        )

    def interval(self, tail: float) -> tuple[float, float]:
        """See Distribution."""
        if tail not in self.ends:
            raise MissingTailError(f"{tail}")
        return self.ends[tail]


@dataclass(frozen=True)
class SeenSplit:
    """What the passes that look at targets and predictions found.

    Attributes:
        n: rows.
        targets: sums of targets.
        predictions: sums by version.
    """

    n: int
    targets: BlockSums
    predictions: dict[str, BlockSums]

    @classmethod
    def of(cls, n: int, found: Pass) -> SeenSplit:
        """From ``look_pass``."""
        predictions = {name.removeprefix("version "): sums for name, sums in found.items() if name}
        return cls(n, found[""], predictions)

    @property
    def ends(self) -> tuple[float, float]:
        """Between which all targets lie."""
        return -self.targets.largest["-low"], self.targets.largest["high"]

    @property
    def is_scalar(self) -> bool:
        """Whether there is one target a row."""
        return np.ndim(self.targets.moments["targets"][1]) == 0

    def output_kernel(self, protocol: EvaluationProtocol, system: System) -> Kernel:
        """Returns k_Y of the protocol, its bandwidth read off all targets.

        Raises:
            InvalidInputError: constant targets.
        """
        if protocol.output_kernel is not None:
            return protocol.output_kernel
        scale = protocol.output_scale
        residual = system.residual_variance(*self.targets.moments["targets"]) if scale == "residual" else 0.0
        return kernel_at_scale(scale, self.marginal_gamma(), residual)

    def marginal_gamma(self) -> float:
        """Returns 1 / (2 var) of all targets.

        Raises:
            InvalidInputError: constant targets.
        """
        return gamma_of_variance(self.targets.variance("targets"), self.n, max(self.ends, key=abs))

    def plan(
        self,
        name: str,
        kernel: Kernel,
        ask: Ask,
        *,
        filters: Array,
        scale: OutputScale,
        fixed_kernel: Kernel | None,
        seed: int,
        blocks: DependentBlocks | None = None,
    ) -> PlannedVersion:
        """Returns what is fixed of a version.

        Args:
            name: of the version.
            kernel: the k_Y of the CCE.
            ask: what of it is asked for.
            filters: of the leading directions.
            scale: of the version's own kernel, by which it is tested where there is no ``fixed_kernel``.
            fixed_kernel: k_Y that the protocol names.
            seed: of probes, signs and draws.
            blocks: of rows that depend on each other.

        Raises:
            BudgetError: k_Y needs too many features on the range of the targets.
            MissingTailError: look for ``ALL_TAILS``.
        """
        predictions = self.predictions[name]
        y, pilot = self.targets.rows("pilot targets"), predictions.rows("pilot")
        reach = _Reach.of(predictions, pilot.is_discrete)
        features = self._features(kernel, y, pilot, reach)
        if y.ndim == 2 and features.is_sampled:
            error = target_errors(y, pilot, kernel, features=features)
            assert error.missed is not None
            missed = float(np.sum(error.missed.rows))
            require_share(missed, missed + float(np.sum(error.delta**2)), self.n, features.rank)
        simulated, draws_band = None, ask.band and blocks is None  # of blocks, the band is that of their residuals
        if ask.tested or draws_band:
            known = {} if y.ndim == 2 else {kernel: features}
            given = y, pilot, reach, predictions, scale, known
            simulated = SimulatedVersion(
                self._null_features(kernel, *given) if draws_band else None,
                self._null_features(fixed_kernel, *given) if ask.tested else None,
                null_draw_count(self.n, ask.draws) if ask.tested else 0,
                tested_directions(filters, self.n),
                seed,
                blocks,
            )
        is_uncertain = ask.uncertainty or (ask.band and not draws_band)
        return PlannedVersion(name, kernel, features, seed, blocks, is_uncertain, simulated, label=name)

    def repeated(self, plan: PlannedVersion, samples: DrawnSamples) -> PlannedVersion:
        """Returns the plan of a repeat in which some draws stand for the version's distribution."""
        y, features = self.targets.rows("pilot targets"), plan.features
        if y.ndim == 2 and len(y) == self.n:
            drawn = samples.of(self.predictions[plan.name].rows("pilot"), np.arange(self.n))
            features = features_of_errors(plan.kernel, y, drawn)
        return replace(plan, samples=samples, features=features, label=f"{plan.name}, repeat {samples.repeat}")

    def _features(self, kernel: Kernel, y: Array, pilot: Distribution, reach: Any) -> FeatureMap:
        if y.ndim == 2:
            return features_of_errors(kernel, y, pilot) if len(y) == self.n else output_features(kernel, y, pilot)
        return output_features(kernel, np.concatenate([y, self.ends]), reach)

    def _drawn(self, kernel: Kernel, y: Array, pilot: Distribution, reach: Any) -> FeatureMap:
        return drawn_features(kernel, y, pilot) if y.ndim == 2 else self._features(kernel, y, pilot, reach)

    def _null_features(
        self,
        kernel: Kernel | None,
        y: Array,
        pilot: Distribution,
        reach: _Reach,
        predictions: BlockSums,
        scale: OutputScale,
        known: dict[Kernel, FeatureMap],
    ) -> NullFeatures:
        """Returns psi of simulated targets, by ``kernel`` or the version's own at ``scale``."""
        try:
            own = kernel or _stated(predictions, self.n, scale) or RBF(self.marginal_gamma())
            features = known.get(own) or self._drawn(own, y, pilot, reach)
        except BudgetError:
            if kernel is not None:
                raise
            # Targets a thousand bandwidths from all predictions: no draw of the model gets there: the level is safe.
            features = self._drawn(RBF(self.marginal_gamma()), y, pilot, reach)
        ends = self.ends
        if y.ndim == 1:
            low, high = reach.interval(TABLE_TAIL)
            ends = min(low, ends[0]), max(high, ends[1])
        return NullFeatures.of(features, y, pilot, ends, is_discrete=pilot.is_discrete)


def _stated(predictions: BlockSums, n: int, scale: OutputScale) -> Kernel | None:
    """Returns the version's own kernel (``targets.model_output_kernel``)."""
    within = predictions.added["within"] / n
    count, _, squares = predictions.moments["between"]
    pooled = count > n  # an ensemble's values, whose variance has its mean variance in it
    between = float(np.sum(squares)) / (count - 1.0) - within if pooled else float(np.sum(squares)) / count
    return stated_kernel(within, between, scale)


@dataclass(frozen=True)
class Accuracy:
    """How many landmarks an answer stands on: all rows of a short split, else as its certificate needs.

    Tries begin with ``first`` and go on until the bound on the error of every version's mean CCE is at most ``share``
    of it (of its noise floor, where that is larger), or shows that ``largest`` would not bring it there.

    Attributes:
        share: of the mean CCE or its noise floor that its certificate may reach.
        first: landmarks to begin with.
        largest: landmarks to end with; their work grows with the square.
        exact_rows: up to so many rows all are landmarks.
    """

    share: float = 1e-3
    first: int = 512
    largest: int = 4096
    exact_rows: int = EXACT_ROWS

    @classmethod
    def of(cls, landmarks: int | None) -> Accuracy:
        """Returns so many landmarks, taken as they are; the default for None.

        Raises:
            InvalidInputError: fewer than one.
        """
        if landmarks is None:
            return cls()
        if landmarks < 1:
            raise InvalidInputError(f"landmarks: {landmarks} were asked for; give at least 1")
        return cls(first=landmarks, largest=landmarks, exact_rows=0)

    @classmethod
    def exact(cls) -> Accuracy:
        """Returns all rows as landmarks, whatever their number."""
        return cls(exact_rows=2**62)

    def counts(self, n: int) -> list[int]:
        """Returns the landmark counts that n rows may be given, each at most 1.4 times the one before."""
        if n <= self.exact_rows:
            return [n]
        largest = min(self.largest, n)
        steps = range(int(np.ceil(2.0 * np.log2(max(largest / self.first, 1.0)))))
        return [*(round(self.first * 2.0 ** (step / 2.0)) for step in steps), largest]

    def next_count(self, n: int, tries: Sequence[tuple[int, float]]) -> int | None:
        """Returns the next of the counts to try, at most twice the last one; None where none promises to be enough.

        A certificate is expected to go on falling at the rate of the last two tries, after one try as 1 / landmarks; a
        second one is made in any case.

        Args:
            n: rows.
            tries: landmarks and the certificate that they left, as a share of the mean CCE.
        """
        (fewer, before), (landmarks, worst) = [(0, np.inf), (0, np.inf), *tries][-2:]
        rate = np.log(before / worst) / np.log(landmarks / fewer) if fewer else 1.0
        more = [count for count in self.counts(n) if count > landmarks]
        enough = [count for count in more if worst * (landmarks / count) ** rate <= self.share]
        if fewer and not enough:
            return None
        return max((count for count in more if count <= min([2 * landmarks, *enough])), default=None)


@dataclass(frozen=True)
class Ask:
    """What is asked of versions.

    Attributes:
        versions: by name.
        tested: with the test of congruence.
        draws: of it; see ``null_draw_count``.
        samples: draws a row that stand for a version's distribution; None for exact kernel means.
        repeats: numbers of the repeats of such draws.
        band: with the mean CCE that a true version would have.
        uncertainty: with standard errors, and what each reference row contributes.
    """

    versions: Sequence[str]
    tested: bool = True
    draws: int | None = None
    samples: int | None = None
    repeats: Sequence[int] = (0,)
    band: bool = True
    uncertainty: bool = True
