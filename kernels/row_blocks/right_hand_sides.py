"""The pass over right-hand sides: what the Delta, probes and drawn targets of a block add to the m x m system.

The congruence test draws from a pool. A row's observed target and 15 draws from its law are exchangeable if the version
is the truth (an ensemble's target and members are, too), and each simulated split takes one of them per row, uniformly.
The observed split is then one more uniform choice, so that (1 + #{T* >= T}) / (B + 1) is a p-value for any number B of
splits (Hemerik and Goeman 2018, theorem 2): exact as with fresh draws, at a tenth of the price. The observed target is
in a sixteenth of every simulated split: of a wrong version those lie a little closer to what was observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.expected import SIGNS, SPLITS
from congruence.kernels.congruence.noise_floor import PROBES
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.mean_embeddings.residuals import TargetErrors, target_errors
from congruence.kernels.row_blocks.keyed import NIBBLES, row_choices, row_draws, row_signs
from congruence.kernels.row_blocks.sums import BlockSums, chosen_in
from congruence.kernels.row_blocks.system import BlockInputs, projected
from congruence.kernels.row_blocks.versions import BlockVersion

DRAWS_AT_ONCE = 256


def right_hand_side_sums(
    system: BlockInputs,
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
        assert vectors is not None
        positions = np.arange(first + rows.start, first + rows.stop)
        kept = chosen_in(residual_positions, first + rows.start, len(positions))
        for version in versions:
            law, y, added = predictive[version.name][rows], targets[rows], sums[version.name]
            error = errors_of(version, y, law)
            probes = row_signs(positions, PROBES, version.seed, "noise floor probes").astype(np.float64)
            probes *= np.sqrt(error.variance)[:, None]
            rhs = np.hstack([error.delta, probes])
            added.add("projections", projected(columns, rhs))
            added.add("coefficients", projected(vectors, rhs))
            added.keep("residual", error.delta[kept])
            _add_scalars(added, error, vectors)
            _add_draws(added, version, y, law, vectors, positions)
    return sums


def errors_of(version: BlockVersion, targets: Array, predictive: Distribution) -> TargetErrors:
    """Delta and v of some rows, by the features that were fixed for all."""
    return target_errors(targets, predictive, version.kernel, features=version.features)


def weighted_squares(vectors: Array, weights: Array) -> Array:
    """U' diag(w) U, (k, k)."""
    return np.asarray(vectors.T @ (vectors * weights.astype(np.float32)[:, None]), dtype=np.float64)


def _add_scalars(sums: BlockSums, error: TargetErrors, vectors: Array) -> None:
    sums.add("variance", weighted_squares(vectors, error.variance))
    if error.sampling_variance is not None:
        sums.add("sampling variance", weighted_squares(vectors, error.sampling_variance))
    sums.add("squares", float(np.sum(error.delta**2)))
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
    """U'Delta* of targets drawn from the version, for its expected mean CCE and for its test."""
    expected = version.expected.draws(targets, law)
    if isinstance(law, Samples):
        pool = np.concatenate([targets[:, None], law.values], axis=1)
        chosen = row_choices(positions, SPLITS, pool.shape[1], version.seed, "targets of a true version")
        drawn = pool[np.arange(len(pool))[:, None], chosen]
    else:
        drawn = row_draws(law, positions, SPLITS, version.seed, "targets of a true version")
        pool = np.concatenate([targets[:, None], drawn[:, : NIBBLES - 1]], axis=1)
    sums.add("expected", _signed(vectors, expected.of_values(drawn), positions, version.seed))
    if version.tested is None:
        return
    null = version.tested.draws(targets, law)
    features = null.of_values(pool)
    vectors = np.ascontiguousarray(vectors[:, : version.directions])
    sums.add("observed", np.asarray(vectors.T @ np.ascontiguousarray(features[:, 0]), dtype=np.float64))
    sums.add("null", _simulated(vectors, features, positions, version))


def _signed(vectors: Array, delta: Array, positions: Array, seed: int) -> Array:
    """U' of Delta (rows, splits, r) under signs drawn for the rows, (k, splits * SIGNS * r)."""
    splits, r = delta.shape[1], delta.shape[2]
    signs = row_signs(positions, splits * SIGNS, seed, "signs of a true version").reshape(len(delta), splits, SIGNS)
    rhs = signs[:, :, :, None] * delta.astype(np.float32)[:, :, None, :]
    return np.asarray(vectors.T @ rhs.reshape(len(delta), -1), dtype=np.float64).reshape(-1, splits * SIGNS, r)


def _simulated(vectors: Array, features: Array, positions: Array, version: BlockVersion) -> Array:
    """U'Delta* of the simulated splits, (k, draws, r), each taking one value of every row's pool (rows, pool, r)."""
    n, pool, r = features.shape
    flat = np.ascontiguousarray(features, dtype=np.float32).reshape(n * pool, r)
    chosen = row_choices(positions, version.draws, pool, version.seed, "null draws")
    chosen += (pool * np.arange(n))[:, None]
    result = np.empty((vectors.shape[1], version.draws, r))
    for start in range(0, version.draws, DRAWS_AT_ONCE):
        some = chosen[:, start : start + DRAWS_AT_ONCE]
        drawn = np.take(flat, some, axis=0)
        result[:, start : start + DRAWS_AT_ONCE] = (vectors.T @ drawn.reshape(n, -1)).reshape(-1, some.shape[1], r)
    return result
