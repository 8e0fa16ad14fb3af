"""What is fixed of a version before its rows are summed: k_Y, its features, and what is drawn for it.

psi must be the same for every block, so it is chosen before the pass that uses it: its range from the extremes of all
targets and predictions, its nodes (for vector targets) from pilot rows. What it misses is then measured on all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, chosen_in, evenly_spaced
from congruence.kernels.engine.congruence_test import null_draw_count
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
    TAILS,
    TargetErrors,
    features_of_errors,
    in_cells,
    output_features,
    require_share,
    target_errors,
)
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.finite_features import FeatureMap
from congruence.kernels.kernel_functions import RBF, Kernel, OutputScale, Sum, require_kernel
from congruence.kernels.pit import cell_steps
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.rng import row_signs

PROBES = 16
SCALES = 4
FINEST = 1e-4  # of var(y): a residual variance below it is taken as this much
ALL_TAILS = (1e-12, *TAILS)
FIRST_TAILS = (1e-12, TABLE_TAIL)


class MissingTailError(Exception):
    """Features need a tail of the predictions that no pass has looked for yet."""


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
        is_probed: whether probes show its noise floor, and what the smoother keeps beyond its leading directions.
        simulated: what is drawn for the version; None where neither its test nor its band is asked for.
        samples: draws a row that stand for the version's distribution; None for exact kernel means.
        repeat: number of the repeat of such draws.
        steps: of the cells in which its targets are judged, see ``pit.cell_steps``.
        first: errors of a first block that is one tile, which passes of this process do not make again.
    """

    name: str
    kernel: Kernel
    features: FeatureMap = field(repr=False)
    seed: int
    blocks: DependentBlocks | None = field(default=None, repr=False)
    is_uncertain: bool = True
    is_probed: bool = True
    simulated: SimulatedVersion | None = None
    samples: int | None = None
    repeat: int = 0
    steps: tuple[float | None, ...] | None = None
    first: list[TargetErrors] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        """By which its sums go."""
        return self.name + self._use

    @property
    def _use(self) -> str:
        return "" if self.samples is None else f", repeat {self.repeat}"

    def drawn(self, predictive: Distribution, positions: Array) -> Distribution:
        """Returns what stands for the predictions of the rows at some positions of the split."""
        if self.samples is None:
            return predictive
        purpose = f"samples of predictions{self._use}"
        return Samples(row_draws(predictive, positions, self.samples, self.seed, purpose))

    def probes(self, variance: Array, positions: Array) -> Array:
        """Returns probes z (rows, 16) of variances v (rows,) of the noise floor, others for every repeat.

        None, (rows, 0), where nothing reads them.
        """
        if not self.is_probed:
            return np.empty((len(variance), 0))
        signs = row_signs(positions, PROBES, self.seed, f"noise floor probes{self._use}").astype(np.float64)
        signs *= np.sqrt(variance)[:, None]
        return signs

    def errors(
        self, targets: Array, predictive: Distribution, positions: Array, roots: Array | None, *, measured: bool = False
    ) -> TargetErrors:
        """Returns Delta and v of the rows at some positions, of the version's distributions or draws of them.

        By the features that are fixed for all; see ``in_cells`` and ``target_errors``. ``roots``: of their
        weights in the reference.
        """
        targets, predictive = in_cells(targets, predictive, positions, self.seed, self.steps)
        given = self.drawn(predictive, positions)
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
class SeenVersion:
    """A version's predictions, known by their sums, tails and pilot rows: what ``output_features`` asks of them.

    Attributes:
        sums: of ``look_pass``.
    """

    sums: BlockSums

    @property
    def pilot(self) -> Distribution:
        """Predictions of the pilot rows."""
        found: Distribution = self.sums.rows("pilot")
        return found

    @property
    def is_discrete(self) -> bool:
        """See Distribution."""
        return self.pilot.is_discrete

    def interval(self, tail: float) -> tuple[float, float]:
        """See Distribution.

        Raises:
            MissingTailError: no pass has looked for it.
        """
        ends = self.sums.largest
        if f"high {tail}" not in ends:
            raise MissingTailError(f"{tail}")
        return -ends[f"-low {tail}"], ends[f"high {tail}"]

    def stated_kernel(self, n: int, scale: OutputScale) -> Kernel | None:
        """Returns k_Y at a scale as the version states it; None where it has no variance.

        See ``model_output_kernel``; ``n``: rows of the split.
        """
        variance = within = float(np.sum(self.sums.added["within"])) / n
        if scale != "residual":
            count, _, squares = self.sums.moments["between"]
            pooled = count > n  # an ensemble's values, whose variance has its mean variance in it
            variance += float(np.sum(squares)) / (count - 1.0) - within if pooled else float(np.sum(squares)) / count
        if not np.isfinite(variance) or variance <= 0.0:
            return None
        gamma = 1.0 / (2.0 * variance)
        return scaled_rbf(gamma) if scale == "multiscale" else RBF(gamma)


def variance_gamma(values: Any) -> float:
    """1 / (2 var), ddof 1 (for several columns: their summed variance): the papers' bandwidth for targets.

    Raises:
        InvalidInputError: fewer than two values, or constant ones.
    """
    targets = require_targets(values, "targets")
    if len(targets) < 2:
        raise InvalidInputError("targets: one row has no variance; give an explicit gamma or at least two rows")
    flat = np.ravel(targets)
    return gamma_of_variance(
        float(np.sum(np.var(targets, axis=0, ddof=1))), len(targets), float(flat[np.argmax(np.abs(flat))])
    )


def gamma_of_variance(variance: float, n: int, farthest: float) -> float:
    """1 / (2 var) of n targets of which ``farthest`` is the largest in size.

    Raises:
        InvalidInputError: constant targets.
    """
    # Values that differ by rounding alone are constant; a small spread far from the origin is a spread.
    if not np.sqrt(variance) > 16.0 * np.finfo(np.float64).eps * abs(farthest):
        raise InvalidInputError(
            f"targets: all {n} values are (almost) {farthest}, so gamma = 1/(2 var) is not defined; give an explicit "
            "output kernel, or check the target column"
        )
    return 1.0 / (2.0 * variance)


def multiscale_rbf(y: Array, scales: int = SCALES) -> Kernel:
    """``scaled_rbf`` at var(y): at the papers' single bandwidth, errors below the spread of the targets go unseen."""
    return scaled_rbf(variance_gamma(y), scales)


def scaled_rbf(gamma: float, scales: int = SCALES) -> Kernel:
    """The sum over k < ``scales`` of RBF kernels at gamma 4^k, each weighing the same."""
    return Sum(tuple(RBF(gamma * 4.0**k) for k in range(scales)))


def output_kernel_or_marginal(kernel: Kernel | None, y: Array) -> Kernel:
    """Returns k_Y where it is given, else the papers': RBF with gamma = 1 / (2 var(y)), ddof 1.

    Raises:
        InvalidInputError: it is no kernel; or constant targets, or one row.
    """
    return RBF(variance_gamma(y)) if kernel is None else require_kernel(kernel, "output_kernel")


def kernel_at_scale(scale: OutputScale, gamma: float, residual: float = 0.0) -> Kernel:
    """Returns k_Y at a scale from gamma = 1 / (2 var y), and for ``residual`` the variance of y given x."""
    if scale == "marginal":
        return RBF(gamma)
    if scale == "multiscale":
        return scaled_rbf(gamma)
    marginal = 1.0 / (2.0 * gamma)
    return RBF(1.0 / (2.0 * float(np.clip(residual, FINEST * marginal, marginal))))


def model_output_kernel(y: Array, predictive: Distribution, scale: OutputScale = "marginal") -> Kernel:
    """Returns k_Y at a protocol's scale as the model states it: a function of the predictions alone.

    A kernel whose bandwidth is read off y would depend on which targets are the observed ones, and the level of a test
    would hold only approximately. ``marginal``: RBF with gamma = 1 / (2 v), v the variance of a random row's target;
    ``residual``: v its mean variance given x; ``multiscale``: the sum of RBFs at the marginal v 4^-k, k = 0..3.
    Ensembles use their values and y together, which does not tell them apart. Where the model has no variance (heavy
    tails, one constant), the papers' gamma stands in.
    """
    seen = SeenVersion(_prediction_sums(y, predictive, np.empty(0, dtype=np.intp), (), ends_only=False))
    return seen.stated_kernel(len(y), scale) or RBF(variance_gamma(y))


def needs_residual(protocol: EvaluationProtocol) -> bool:
    """Whether the bandwidth of k_Y is that of targets given their inputs."""
    return protocol.output_kernel is None and protocol.output_scale == "residual"


@dataclass(frozen=True)
class SeenSplit:
    """What the passes that look at targets and predictions found.

    Attributes:
        n: rows.
        found: by ``look_pass``.
        protocol: whose k_Y is used.
    """

    n: int
    found: Pass
    protocol: EvaluationProtocol

    @property
    def targets(self) -> BlockSums:
        """Sums of targets."""
        return self.found[""]

    @property
    def ends(self) -> tuple[float, float]:
        """Between which all targets lie."""
        return -self.targets.largest["-low"], self.targets.largest["high"]

    @property
    def is_scalar(self) -> bool:
        """Whether there is one target a row."""
        return np.ndim(self.targets.moments["targets"][1]) == 0

    def output_kernel(self, system: System) -> Kernel:
        """Returns the protocol's k_Y, its bandwidth read off all targets.

        Raises:
            InvalidInputError: constant targets.
        """
        if self.protocol.output_kernel is not None:
            return self.protocol.output_kernel
        is_residual = needs_residual(self.protocol)
        residual = system.residual_variance(*self.targets.moments["targets"]) if is_residual else 0.0
        return kernel_at_scale(self.protocol.output_scale, self.marginal_gamma(), residual)

    def marginal_gamma(self) -> float:
        """Returns 1 / (2 var) of all targets.

        Raises:
            InvalidInputError: constant targets.
        """
        return gamma_of_variance(self.targets.variance("targets"), self.n, max(self.ends, key=abs))

    def plan(
        self, name: str, ask: Ask, system: System, seed: int, blocks: DependentBlocks | None, *, knows_floor: bool
    ) -> PlannedVersion:
        """Returns what is fixed of a version; ``knows_floor``: whether its noise floor is known without probes.

        Raises:
            BudgetError: k_Y needs too many features on the range of the targets.
            MissingTailError: look for ``ALL_TAILS``.
        """
        kernel, version = self.output_kernel(system), self._version(name)
        seen = self._pilot_targets
        is_tied = any(len(np.unique(column)) < len(seen) for column in seen.reshape(len(seen), -1).T)
        steps = cell_steps(seen, version.pilot, self.n) if is_tied else None  # others are not rounded
        y, pilot = self._pilot_rows(version, seed, steps)
        features = self._features(kernel, version, y, pilot)
        if y.ndim == 2 and features.is_sampled:
            error = target_errors(y, pilot, kernel, features=features)
            assert error.missed is not None
            missed = float(np.sum(error.missed.rows))
            require_share(missed, missed + float(np.sum(error.delta**2)), self.n, features.rank)
        simulated, draws_band = None, ask.band and blocks is None  # of blocks, the band is that of their residuals
        if ask.tested or draws_band:
            given = version, y, pilot, {} if y.ndim == 2 else {kernel: features}
            simulated = SimulatedVersion(
                self._null_features(kernel, *given) if draws_band else None,
                self._null_features(self.protocol.output_kernel, *given) if ask.tested else None,
                null_draw_count(self.n, ask.draws) if ask.tested else 0,
                tested_directions(system.inputs.filters, self.n),
                seed,
                blocks,
                steps,
            )
        is_uncertain = ask.uncertainty or (ask.band and not draws_band)
        is_probed = is_uncertain or not knows_floor
        draws = is_uncertain, is_probed, simulated
        return PlannedVersion(name, kernel, features, seed, blocks, *draws, steps=steps)

    def repeated(self, plan: PlannedVersion, samples: int, repeat: int) -> PlannedVersion:
        """Returns the plan of a repeat in which so many draws a row stand for the version's distribution."""
        plan = replace(plan, samples=samples, repeat=repeat)
        y, pilot = self._pilot_rows(self._version(plan.name), plan.seed, plan.steps)
        if y.ndim == 1 or len(y) < self.n:
            return plan
        drawn = plan.drawn(pilot, np.arange(self.n))
        return replace(plan, features=features_of_errors(plan.kernel, y, drawn))

    def has_signs(self, name: str) -> bool:
        """Whether each row has a random sign in the test of a version: of corrected draws, see ``engine.null``."""
        return self._version(name).pilot.independent_pairs is not None

    @property
    def _pilot_targets(self) -> Array:
        return np.asarray(self.targets.rows("pilot targets"))

    def _version(self, name: str) -> SeenVersion:
        return SeenVersion(self.found[f"version {name}"])

    def _pilot_rows(
        self, version: SeenVersion, seed: int, steps: Sequence[float | None] | None
    ) -> tuple[Array, Distribution]:
        return in_cells(self._pilot_targets, version.pilot, evenly_spaced(self.n, PILOT_ROWS), seed, steps)

    def _features(self, kernel: Kernel, version: SeenVersion, y: Array, pilot: Distribution) -> FeatureMap:
        if y.ndim == 1:
            reach: Any = version  # of scalars, tails say all that is asked
            return output_features(kernel, np.concatenate([y, self.ends]), reach)
        return (features_of_errors if len(y) == self.n else output_features)(kernel, y, pilot)

    def _null_features(
        self,
        kernel: Kernel | None,
        version: SeenVersion,
        y: Array,
        pilot: Distribution,
        known: dict[Kernel, FeatureMap],
    ) -> NullFeatures:
        """Returns psi of simulated targets, by ``kernel`` or the version's own at the protocol's scale."""

        def drawn(own: Kernel) -> FeatureMap:
            return drawn_features(own, y, pilot) if y.ndim == 2 else self._features(own, version, y, pilot)

        try:
            stated = version.stated_kernel(self.n, self.protocol.output_scale)
            own = kernel or stated or RBF(self.marginal_gamma())
            features = known.get(own) or drawn(own)
        except BudgetError:
            if kernel is not None:
                raise
            # Targets a thousand bandwidths from all predictions: no draw of the model gets there: the level is safe.
            features = drawn(RBF(self.marginal_gamma()))
        return NullFeatures.of(features, y, pilot, self.ends, version)


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
