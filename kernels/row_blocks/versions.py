"""The targets' side of a split in blocks: where targets and predictions lie, and the features that are fixed from it.

psi must be the same for every block, so it is chosen before the pass that uses it: its range from the extremes of all
targets and predictions, its nodes (for kernels without a spectral rule, and vector targets) from pilot rows. What it
misses is then measured on all targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.bandwidths import OutputScale, gamma_of_variance
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.congruence.influence_sums import FittedRows
from congruence.kernels.congruence.null_draws import TABLE_TAIL, SeenTargets, pilot_rows
from congruence.kernels.congruence.simulated import SimulatedVersion
from congruence.kernels.congruence.test import null_draw_count, tested_directions
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.distributions.base import require_dimension
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.spectrum import target_filters
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.mean_embeddings.feature_maps import FeatureMap
from congruence.kernels.mean_embeddings.gram import require_share
from congruence.kernels.mean_embeddings.model_scales import stated_kernel
from congruence.kernels.mean_embeddings.residuals import target_errors
from congruence.kernels.protocol.output_scales import kernel_at_scale
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.system import BlockSystem

FIRST_TAILS = (1e-12, TABLE_TAIL)
ALL_TAILS = (1e-12, 1e-9, TABLE_TAIL, 1e-4, 1e-3)


class MissingTailError(Exception):
    """Features need a tail of the predictions that no pass has looked for yet."""


@dataclass(frozen=True)
class BlockVersion:
    """What every block needs to know of a version.

    Attributes:
        name: of the version.
        kernel: the protocol's k_Y.
        features: psi of it.
        simulated: what is drawn for the version, by its own seed, which the probes share.
    """

    name: str
    kernel: Kernel
    features: FeatureMap = field(repr=False)
    simulated: SimulatedVersion

    @property
    def blocks(self) -> DependentBlocks | None:
        """Of all rows of the split, where they depend on each other."""
        return self.simulated.blocks

    def rows(self, positions: Array) -> FittedRows:
        """Of rows at some positions of the split: which share a sign, and which a fit."""
        return FittedRows.at(positions, self.blocks)


def target_sums(targets: Array, first: int, n: int) -> BlockSums:
    """Range and moments of the targets of a block, and those of the pilot rows."""
    sums = BlockSums()
    sums.spread("targets", targets)
    sums.raise_to("high", float(np.max(targets)))
    sums.raise_to("-low", -float(np.min(targets)))
    sums.keep("pilot targets", targets[chosen_in(pilot_rows(n), first, len(targets))])
    return sums


def prediction_sums(
    targets: Array, predictive: Distribution, first: int, n: int, tails: Sequence[float], *, ends_only: bool = False
) -> BlockSums:
    """Range and moments of the predictions for a block, and those of the pilot rows.

    Raises:
        InvalidInputError: another number of predictions, or of targets per row.
    """
    if len(predictive) != len(targets):
        raise InvalidInputError(
            f"predictive: {len(predictive)} distributions for {len(targets)} targets in the block that begins at row "
            f"{first}; give one distribution per row"
        )
    require_dimension(predictive, targets)
    sums = BlockSums()
    if targets.ndim == 1:
        for tail in tails:
            low, high = predictive.interval(tail)
            sums.raise_to(f"high {tail}", high)
            sums.raise_to(f"-low {tail}", -low)
    if ends_only:
        return sums
    if isinstance(predictive, Samples):
        pooled = np.concatenate([targets[:, None], predictive.values], axis=1)
        sums.add("within", float(np.sum(np.var(pooled, axis=1, ddof=1))))
        sums.spread("between", pooled.reshape(-1, *pooled.shape[2:]))
    else:
        sums.add("within", float(np.sum(predictive.std() ** 2)))
        sums.spread("between", predictive.mean())
    sums.keep("pilot", predictive[chosen_in(pilot_rows(n), first, len(targets))])
    return sums


@dataclass(frozen=True)
class _Reach:
    """Predictions known by their tails alone, as ``output_features`` asks for them."""

    ends: dict[float, tuple[float, float]]
    is_discrete: bool

    def interval(self, tail: float) -> tuple[float, float]:
        """See Distribution."""
        if tail not in self.ends:
            raise MissingTailError(f"{tail}")
        return self.ends[tail]


def resolved_kernel(protocol: EvaluationProtocol, targets: BlockSums, system: BlockSystem) -> Kernel:
    """k_Y of the protocol, its bandwidth read off all targets (``protocol.output_scales.output_kernel``).

    Raises:
        InvalidInputError: constant targets.
    """
    if protocol.output_kernel is not None:
        return protocol.output_kernel
    gamma, scale = _marginal_gamma(targets), protocol.output_scale
    return kernel_at_scale(scale, gamma, _residual_variance(targets, system) if scale == "residual" else 0.0)


def _marginal_gamma(targets: BlockSums) -> float:
    ends = -targets.largest["-low"], targets.largest["high"]
    return gamma_of_variance(targets.variance("targets"), int(targets.moments["targets"][0]), max(ends, key=abs))


def _residual_variance(targets: BlockSums, system: BlockSystem) -> float:
    """``gram.spectrum.residual_variance`` from C'[1, y]: no row is read again."""
    n, mean, squares = targets.moments["targets"]
    total, basis = float(np.sum(squares)), system.coordinates
    centred = system.targets[:, 1:] - system.targets[:, :1] * np.atleast_1d(mean)
    coefficients = basis.T @ centred
    largest = min(float(system.eigenvalues[0]), n * system.mean_diagonal)
    chosen, freedom = target_filters(system.eigenvalues, coefficients, total, int(n), largest)
    fit = chosen[:, None] * coefficients
    spread = basis.T @ system.gram @ basis
    return max(total - 2.0 * float(np.sum(fit * coefficients)) + float(np.sum(fit * (spread @ fit))), 0.0) / freedom


def planned_version(
    name: str,
    targets: BlockSums,
    predictions: BlockSums,
    kernel: Kernel,
    *,
    n: int,
    filters: Array,
    scale: OutputScale,
    fixed_kernel: Kernel | None,
    tested: bool,
    draws: int | None,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> BlockVersion:
    """The features of a version, from its sums.

    Args:
        name: of the version.
        targets, predictions: of all blocks, from ``target_sums`` and ``prediction_sums``.
        kernel: the protocol's k_Y.
        n: rows of the split.
        filters: of the leading directions.
        scale: of the version's own kernel, by which it is tested where there is no ``fixed_kernel``.
        fixed_kernel: k_Y that the protocol names.
        tested: with the congruence test.
        draws: of the test; ``null_draw_count`` by default.
        seed: of probes, signs and draws.
        blocks: of rows that depend on each other.

    Raises:
        BudgetError: k_Y needs too many features on the range of the targets.
        MissingTailError: look for ``ALL_TAILS``.
    """
    pilot, y = predictions.rows("pilot"), targets.rows("pilot targets")
    assert isinstance(pilot, Distribution)

    def marginal() -> Kernel:
        return RBF(_marginal_gamma(targets))

    seen = SeenTargets(
        y,
        pilot,
        (-targets.largest["-low"], targets.largest["high"]),
        _known_by(predictions, pilot),
        lambda scale: _own_kernel(predictions, n, scale) or marginal(),
        marginal,
    )
    features = seen.features(kernel)
    if y.ndim == 2:
        _require_seen(kernel, features, y, pilot)
    return BlockVersion(
        name,
        kernel,
        features,
        SimulatedVersion(
            seen.null_features(kernel),
            seen.null_features(fixed_kernel, scale) if tested else None,
            (null_draw_count(n) if draws is None else draws) if tested else 0,
            tested_directions(filters, n),
            seed,
            blocks,
        ),
    )


def _require_seen(kernel: Kernel, features: FeatureMap, y: Array, pilot: Distribution) -> None:
    """Before any pass: of all targets the share is known after it."""
    error = target_errors(y, pilot, kernel, features=features)
    missed = float(np.sum(error.feature_error.rows))
    require_share(missed / max(missed + float(np.sum(error.delta**2)), np.finfo(float).tiny), len(y), features.rank)


def _known_by(predictions: BlockSums, pilot: Distribution) -> _Reach:
    names = [name for name in predictions.largest if name.startswith("high ")]
    ends = {
        float(name.removeprefix("high ")): (
            -predictions.largest[name.replace("high", "-low", 1)],
            predictions.largest[name],
        )
        for name in names
    }
    return _Reach(ends, pilot.is_discrete)


def _own_kernel(predictions: BlockSums, n: int, scale: OutputScale) -> Kernel | None:
    within = predictions.added["within"] / n
    count, _, squares = predictions.moments["between"]
    pooled = count > n  # an ensemble's values, whose variance has its mean variance in it
    between = float(np.sum(squares)) / (count - 1.0) - within if pooled else float(np.sum(squares)) / count
    return stated_kernel(within, between, scale)
