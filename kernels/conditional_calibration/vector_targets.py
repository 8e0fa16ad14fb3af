r"""The test for vector targets, which have no PIT: features of the whitened targets take the place of scores.

z_i = S_i^{-1/2} (y_i - mu_i) with mean and covariance of the prediction, Delta_i = psi(z_i) - E psi(Z_i) for RBF
kernels at several output scales, and

.. math::  T_{h, w, s} = \sum_l w_l \| U_{hl}' \Delta_s \|^2.

The null is drawn from the version itself (``NullFeatures``), and each form is put on the common scale by its own
moments over observation and draws together, which are exchangeable: exact at every n. Of rows that depend on each other
it is Delta with one random sign a block of rows, and holds in the limit of many blocks. In y-space the neighbours of a
row have other predictions, and errors of shape would cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, row_slices
from congruence.kernels.conditional_calibration.bases import (
    TILE_ROWS,
    Basis,
    KernelColumns,
    own_basis,
    sample_positions,
)
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest, outcome_of_evidence
from congruence.kernels.conditional_calibration.null import CalibrationSettings, evidence_by_others, weights_of
from congruence.kernels.dependence.blocks import DependentBlocks, enlargements
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.engine.null import MAX_DIRECTIONS, exchangeable_targets, features_of_split
from congruence.kernels.engine.targets import in_cells
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.pit import cell_steps
from congruence.kernels.rng import stream
from congruence.kernels.scores import matched_targets
from congruence.kernels.threads import map_on_threads

VECTOR_ROWS = 4_000
"""Of more rows with vector targets, so many are tested: their null is drawn from each version by itself, 3 ms a row."""

VECTOR_DRAWS = 199

SCALES = {"1 spread": 1.0, "1/2 spread": 0.5, "1/4 spread": 0.25}
MEMBERS = 32  # drawn from distributions that have no closed form of their covariance
BLOCK_BYTES = 2**26
_ROWS = 8192
_ROWS_OF_MANY_DRAWS = 2_000
_DRAWS = (999, 199)


def vector_rows(n: int, seed: int) -> Array:
    """Returns sorted numbers of the rows that are tested."""
    return np.sort(stream(seed, "rows of vector targets").choice(n, min(n, VECTOR_ROWS), replace=False))


Directions = tuple[Basis, Array]
"""A basis and its directions U of the inputs in memory, (n, k)."""


def whitened_targets(y: Array, predictive: Distribution, *, seed: int) -> tuple[Array, Distribution, Array]:
    """Targets y (n, q) and predictions whitened by the model's mean and covariance: z, its distribution if the model is
    the truth, and what the version says of each row, (n, 2 q): means and standard deviations.

    Of draws, by those of target and draws together, which tell the target from no draw. Other distributions are given
    by draws.
    """
    if (whitened := predictive.whitened(y)) is not None:
        return *whitened, np.column_stack([predictive.mean(), predictive.std()])
    draws = predictive.draws
    if draws is None:
        draws = predictive.sample(MEMBERS, seed=stream(seed, "members of whitened laws"))
    together = np.concatenate([y[:, None], draws], axis=1)
    _, m, q = together.shape
    mean = np.mean(together, axis=1)
    centred = together - mean[:, None]
    covariance = np.einsum("nlp,nlq->npq", centred, centred) / (m - 1)
    # Shrunk towards the variances as far as draws are few for q: never singular.
    diagonal, share = np.einsum("nqq->nq", covariance), q / (m + q)
    floor = 1e-12 * np.maximum(np.mean(diagonal, axis=0), np.finfo(np.float64).tiny)  # each in its own unit
    covariance = (1.0 - share) * covariance + np.eye(q) * (share * diagonal + floor)[:, None, :]
    z = np.einsum("npq,nlq->nlp", np.linalg.inv(np.linalg.cholesky(covariance)), centred)
    spread = np.sqrt(np.einsum("nqq->nq", covariance))
    return z[:, 0], Samples(z[:, 1:]), np.column_stack([mean, spread])


def vector_test(
    bases: Sequence[Directions],
    y: Any,
    predictive: Distribution,
    settings: CalibrationSettings,
    *,
    seed: int,
    blocks: DependentBlocks | None = None,
) -> ConditionalCalibrationTest:
    """Test one version of vector targets (n, q) on the bases of a split; of rows that depend on each other by blocks.

    ``by_order`` of the result holds p-values by output scale, of ``SCALES``; it has no effects and no mean scores. By
    default 999 draws up to 2,000 rows and 199 above.

    Raises:
        InvalidInputError: y does not fit the predictions.
    """
    y = matched_targets(predictive, y)
    targets, predictive = in_cells(y, predictive, np.arange(len(y)), seed, cell_steps(y, predictive))
    z, law, said = whitened_targets(targets, predictive, seed=seed)
    spread = np.std(said, axis=0)
    said = (said - np.mean(said, axis=0)) / np.where(spread > 0, spread, 1.0)
    own = _own_basis(said, settings, seed) if settings.levels else None
    bases = bases if own is None else [*bases, own]
    draws = settings.draws or _DRAWS[len(targets) > _ROWS_OF_MANY_DRAWS]
    by_scale = [_evidence(bases, z, law, scale, draws, seed, blocks) for scale in SCALES.values()]
    evidence, names = np.stack(by_scale, axis=1), [basis.name for basis, _ in bases]
    count = None if blocks is None else blocks.count
    observed, null = np.split(evidence, [1], axis=2)
    return outcome_of_evidence(names, observed, null, effects={}, means={}, blocks=count, orders=tuple(SCALES))


def _own_basis(said: Array, settings: CalibrationSettings, seed: int) -> Directions | None:
    n = len(said)
    basis = own_basis(said[sample_positions(n, seed)], settings, dtype=np.float64, seed=seed)
    if basis is None:
        return None
    columns, tiles = KernelColumns(said, [basis]), row_slices(n, TILE_ROWS)
    held = np.concatenate([columns.at(rows)[0] for rows in tiles])
    own = basis.spanned(held.T @ held, n, settings.own_directions)
    return own, (held @ own.coordinates).astype(np.float32)


def _evidence(
    bases: Sequence[Directions],
    z: Array,
    law: Distribution,
    scale: float,
    draws: int,
    seed: int,
    blocks: DependentBlocks | None,
) -> Array:
    """max over w of s + log prior at one output scale, (bases, 1 + draws): the observation first."""
    n, q = z.shape
    features = features_of_split(z, law, RBF(0.5 / (q * scale**2)))
    delta = features.against(z, law)
    observed = delta(z[:, None])
    apart = observed if blocks is None else observed * enlargements(blocks.sums(observed[:, 0]))
    # Blocks of draws of equal size at every scale: a draw is then the same targets at all of them.
    per_block = int(np.clip(BLOCK_BYTES // (4 * n * MAX_DIRECTIONS), 1, 64))

    def drawn(start: int) -> list[Array]:
        count = min(per_block, draws - start)
        if blocks is not None:
            signs = blocks.signs(count, seed, start)[blocks.labels]
            return _energies(bases, signs[:, :, None] * apart)
        rng = stream(seed, "null vector targets", start)
        return _energies(bases, delta(exchangeable_targets(z, law, count, rng)))

    parts = [_energies(bases, observed), *map_on_threads(drawn, range(0, draws, per_block))]
    found = []
    for b, (basis, _) in enumerate(bases):
        weights = weights_of(basis.eigenvalues)
        forms = weights @ np.concatenate([part[b] for part in parts], axis=1)
        found.append(np.max(evidence_by_others(forms), axis=0) - np.log(len(weights)))
    return np.stack(found)


def _energies(bases: Sequence[Directions], delta: Array) -> list[Array]:
    """|U_l' Delta|^2 of every direction and draw, (k, D) for each basis, for Delta (n, D, r)."""
    _, draws, rank = delta.shape
    flat = delta.reshape(len(delta), -1)
    found = []
    for _, vectors in bases:
        total = np.zeros((vectors.shape[1], draws * rank))
        for rows in row_slices(len(flat), _ROWS):
            total += vectors[rows].T @ flat[rows]
        found.append(np.sum(total.reshape(-1, draws, rank) ** 2, axis=2))
    return found
