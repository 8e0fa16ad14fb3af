"""The pass over right-hand sides: what the Delta, probes and drawn targets of a block add to the m x m system.

The congruence test draws from pools, as in memory (``congruence.test``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.block_sums import BlockSums, chosen_in
from congruence.kernels.congruence.coded_draws import ENTRY_BITS, POOL_BITS, SimulatedSplits
from congruence.kernels.congruence.expected import SPLITS, signed_sums
from congruence.kernels.congruence.influence_sums import add_coefficients
from congruence.kernels.congruence.noise_floor import add_floor, probes_of
from congruence.kernels.congruence.null_draws import PURPOSE
from congruence.kernels.congruence.signed_splits import signed_sums as block_sums_of_signs
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.gram.thin_products import projected, weighted_squares
from congruence.kernels.mean_embeddings.residuals import TargetErrors, target_errors
from congruence.kernels.resampling.keyed import row_choices, row_draws
from congruence.kernels.row_blocks.inputs import BlockDirections
from congruence.kernels.row_blocks.versions import BlockVersion


def right_hand_side_sums(
    system: BlockDirections,
    inputs: Array,
    targets: Array,
    predictive: Mapping[str, Distribution],
    versions: Sequence[BlockVersion],
    first: int,
    residual_positions: Array,
) -> dict[str, BlockSums]:
    """What the rows of a block that begins at row ``first`` add for every version.

    Args:
        system: the inputs' side, with its leading directions.
        inputs: embeddings (rows, d), as the encoder gave them.
        targets: (rows,) or (rows, q).
        predictive: by version.
        versions: those to add up.
        first: position of the block's first row in the split.
        residual_positions: sorted positions at which Delta is kept, to read the residual on.
    """
    points, _ = system.points(inputs, first)
    sums = {version.name: BlockSums() for version in versions}
    for rows, columns, vectors in system.tiles(points):
        positions = np.arange(first + rows.start, first + rows.stop)
        kept = chosen_in(residual_positions, first + rows.start, len(positions))
        for version in versions:
            law, y, added = predictive[version.name][rows], targets[rows], sums[version.name]
            error = errors_of(version, y, law)
            probes = probes_of(error.variance, positions, version.seed)
            added.add("projections", projected(columns, np.hstack([error.delta, probes])))
            add_coefficients(added, vectors, error.delta, version.rows(positions))
            add_floor(added, vectors, error.variance, probes)
            added.keep("residual", error.delta[kept])
            _add_scalars(added, error, vectors)
            _add_draws(added, version, y, law, vectors, positions)
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


def _add_draws(
    sums: BlockSums, version: BlockVersion, targets: Array, law: Distribution, vectors: Array, positions: Array
) -> None:
    """U'Delta* of targets drawn from the version, for its expected mean CCE and for its test.

    Of rows that depend on each other, U'Delta of the observed targets by the signs of blocks, for the test alone.
    """
    if version.blocks is not None:
        if version.tested is not None:
            observed, labels = version.tested.draws(targets, law).observed(), version.blocks.labels[positions]
            leading = np.ascontiguousarray(vectors[:, : version.directions])
            sums.add("null", block_sums_of_signs(leading, observed, labels, version.draws, version.seed))
        return
    expected = version.expected.draws(targets, law)
    if isinstance(law, Samples):
        members = np.concatenate([targets[:, None], law.values], axis=1)
        chosen = row_choices(positions, SPLITS, members.shape[1], version.seed, PURPOSE)
        drawn = members[np.arange(len(members))[:, None], chosen]
    else:
        drawn = row_draws(law, positions, SPLITS, version.seed, PURPOSE)
    sums.add("expected", signed_sums(vectors, expected.of_values(drawn), positions, version.seed))
    if version.tested is None:
        return
    simulated = simulated_splits(version)
    pool = np.concatenate([targets[:, None], drawn[:, : 2**POOL_BITS - 1]], axis=1)
    features = version.tested.draws(targets, law).of_values(pool)
    vectors = np.ascontiguousarray(vectors[:, : version.directions])
    shape = (2**simulated.bits, vectors.shape[1], features.shape[2])
    simulated.add(sums.sum_of("null", shape), vectors, features, positions)


def simulated_splits(version: BlockVersion) -> SimulatedSplits:
    """Of the version's test."""
    return SimulatedSplits(version.draws, POOL_BITS, ENTRY_BITS, version.seed)
