"""Fitting a recalibration to half of the rows of a split."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import HoldOut, hold_out, version_blocks
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.recalibration.fit import fit_recalibration
from congruence.kernels.recalibration.recalibration_map import input_features
from congruence.kernels.rng import hashed_keys, keyed_uniforms
from congruence.tasks.data.settings import Shard, SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.recalibration.model import map_bytes
from congruence.tasks.scores.correction import in_words


def halves_of(split: Split) -> HoldOut:
    """Of each row of a split, whether a correction may see it, and whether it is held out: the same for all versions.

    Rows that the split says may depend on each other are not on both sides.
    """
    design = split.design()
    return hold_out(keys_of(split), RowDependence.of(split.rows, groups=design.groups, time=design.time))


def described(settings: SplitSettings) -> str:
    """Which rows a correction is fitted on, and which it is to be judged on, in words."""
    if settings.groups is not None:
        return f"half of them by {settings.groups}: judge it on the other half"
    if settings.time is not None:
        return f"the earlier ones by {settings.time}: judge it on the later ones"
    return "half of them by key: judge it on the other half"


def keys_of(split: Split) -> Array:
    """The key of every row of the split."""
    return split.key_values(Shard(0, 0, split.rows, "")).to_numpy()


FIT_ROWS = 50_000
"""Rows that are read into memory at the most: more of them hardly move a smooth map."""


@dataclass(frozen=True)
class FittedVersion:
    """The correction of one version.

    Attributes:
        map: of the inputs, as a file (``model.map_bytes``).
        rows: it was fitted on.
        p_value: of calibration given the input, on these rows.
        said: what it changes, in words; "" where nothing.
        depends_on_input: whether inputs must be embedded to apply it.
    """

    map: bytes = field(repr=False)
    rows: int
    p_value: float
    said: str
    depends_on_input: bool


def fit_version(
    protocol: EvaluationProtocol, rows: EvaluatedRows, version: str, *, half: bool, seed: int
) -> FittedVersion:
    """Fit the correction of a version, whose embeddings and predictions are kept.

    Args:
        protocol: whose kernel and normalisation say what is near.
        rows: labelled.
        version: its label.
        half: on the rows that ``halves_of`` its split gives to the fit alone.
        seed: of landmarks, folds and draws.

    Raises:
        InvalidInputError: vector targets, laws that have no levels, too few rows, or fewer than ten groups or runs.
    """
    keys, targets = keys_of(rows.split)[rows.valid], rows.targets()
    if targets.ndim > 1:
        raise InvalidInputError(
            f"{version}: recalibration maps the levels of one target, but the split has {targets.shape[1]}; "
            "recalibrate models of one target each"
        )
    dependence = rows.dependence()
    chosen = _chosen(keys, halves_of(rows.split).fitting[rows.valid] if half else None, seed)
    dependence = None if dependence is None else dependence.of_rows(chosen)
    predictive, keys, targets = rows.all_predictive(version)[chosen], hashed_keys(keys[chosen]), targets[chosen]
    x = protocol.apply(np.asarray(rows.embeddings_of(chosen), dtype=np.float64))
    spectrum = input_spectrum(x, protocol.input_kernel, protocol.regularization, seed=seed)
    features = input_features(spectrum, x)
    blocks = version_blocks(dependence, targets, predictive)
    fitted = fit_recalibration(features, targets, predictive, seed=seed, keys=keys, blocks=blocks)
    calibration = prepare_calibration(x, input_kernel=protocol.input_kernel, seed=seed)
    known = dependence or RowDependence()
    test = calibration.test_version(targets, predictive, keys=keys, seed=seed, groups=known.groups, time=known.time)
    return FittedVersion(
        map_bytes(fitted), len(chosen), test.p_value, in_words(fitted, x, predictive.members), fitted.depends_on_input
    )


def _chosen(keys: Array, fitting: Array | None, seed: int) -> Array:
    found = np.arange(len(keys)) if fitting is None else np.flatnonzero(fitting)
    if len(found) <= FIT_ROWS:
        return found
    order = np.argsort(keyed_uniforms(keys[found], seed, "rows that are enough for a recalibration"), kind="stable")
    return np.sort(found[order[:FIT_ROWS]])
