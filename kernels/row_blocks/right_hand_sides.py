"""The pass over right-hand sides: what the Delta, probes and drawn targets of a block add to the m x m system."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.congruence.influence_sums import add_coefficients
from congruence.kernels.congruence.noise_floor import add_floor, probes_of
from congruence.kernels.distributions import Distribution
from congruence.kernels.gram.thin_products import projected, weighted_squares
from congruence.kernels.mean_embeddings.residuals import TargetErrors, target_errors
from congruence.kernels.row_blocks.inputs import BlockDirections
from congruence.kernels.row_blocks.rows import BlockRows, Pass, RowBlocks
from congruence.kernels.row_blocks.versions import BlockVersion


def right_hand_sides_pass(
    block: BlockRows[RowBlocks], system: BlockDirections, versions: Sequence[BlockVersion], residual_positions: Array
) -> Pass:
    """What the rows of a block add for every version: C'[Delta, probes] and its draws.

    Args:
        block: its rows.
        system: the inputs' side, with its leading directions.
        versions: those to add up.
        residual_positions: sorted positions at which Delta is kept, to read the residual on.
    """
    predictive = {version.name: block.predictive(version.name) for version in versions}
    targets, first = block.targets(), block.first
    points, _ = system.points(block.inputs(), first)
    sums = {version.name: BlockSums() for version in versions}
    for rows, columns, vectors in system.tiles(points):
        positions = np.arange(first + rows.start, first + rows.stop)
        kept = chosen_in(residual_positions, first + rows.start, len(positions))
        for version in versions:
            law, y, added = predictive[version.name][rows], targets[rows], sums[version.name]
            error = errors_of(version, y, law)
            probes = probes_of(error.variance, positions, version.simulated.seed)
            added.add("projections", projected(columns, np.hstack([error.delta, probes])))
            add_coefficients(added, vectors, error.delta, version.rows(positions))
            add_floor(added, vectors, error.variance, probes)
            added.keep("residual", error.delta[kept])
            _add_scalars(added, error, vectors)
            version.simulated.add(added, vectors, y, law, positions)
    return sums


def errors_of(version: BlockVersion, targets: Array, predictive: Distribution) -> TargetErrors:
    """Delta and v of some rows, by the features that were fixed for all."""
    return target_errors(targets, predictive, version.kernel, features=version.features)


def _add_scalars(sums: BlockSums, error: TargetErrors, vectors: Array) -> None:
    if error.sampling_variance is not None:
        sums.add("sampling variance", weighted_squares(vectors, error.sampling_variance))
    missed = error.feature_error
    sums.add("missed", float(np.sum(missed.rows)))
    # ``shared`` of n rows is c sqrt(n sum p_i^2), see FourierFeatures.missed.
    sums.add("shared", missed.shared**2 / len(error.delta))
    if missed.displaced is not None:
        sums.add("displaced", float(np.sum(missed.displaced)))
    sums.raise_to("sampled", float(missed.kind == "sampled"))
