"""What a version's scores would be on held-out rows if it were recalibrated where it is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.input_features import InputFeatures, input_features
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.recalibration import fit_recalibration
from congruence.kernels.conditional_calibration.recalibration_map import RecalibrationMap
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.scores import pair_blocks, version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.difference import difference_of_influences
from congruence.kernels.engine.driver import Accuracy, Ask
from congruence.kernels.engine.measure import HeldSplit, measure_held
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.scores import crps, matched_targets, negative_log_likelihood


@dataclass(frozen=True)
class Change:
    """A mean over the rows, lower is better, before and after, and the standard error of their paired difference."""

    before: float
    after: float
    standard_error: float


@dataclass(frozen=True)
class RecalibrationRehearsal:
    """What a recalibration that was fitted on some rows changes on others, which it has not seen.

    Attributes:
        changes: of "nll", "crps", "cce" and "mae" on the held-out rows, of draws as they are, not the fair one.
        p_values: of calibration given the input on them, before and after.
        rows: how many they are.
        fitted_on: rows of the fit.
        map: what was fitted.
    """

    changes: dict[str, Change]
    p_values: tuple[float, float]
    rows: int
    fitted_on: int
    map: RecalibrationMap = field(repr=False)


@dataclass(frozen=True)
class RehearsalSplit:
    """What a rehearsal needs of the inputs alone, made once for all versions of a split; see ``rehearsal_split``.

    Attributes:
        for_fitting: which rows the fit sees, (n,) booleans.
        dependence: which of the n rows depend on each other.
        features: of those.
        points: inputs of the others, (m, d).
        protocol: kernel and lambda of their system, which has seen nothing of the fit's.
        calibration: bases and null of the test on them.
    """

    for_fitting: Array = field(repr=False)
    dependence: RowDependence | None = field(repr=False)
    features: InputFeatures = field(repr=False)
    points: Array = field(repr=False)
    protocol: EvaluationProtocol = field(repr=False)
    calibration: PreparedCalibration = field(repr=False)
    systems: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def held_out(self) -> RowDependence | None:
        """Which of the rows that the fit does not see depend on each other."""
        return None if self.dependence is None else self.dependence.of_rows(~self.for_fitting)


def rehearsal_split(
    x: Any,
    for_fitting: Any,
    *,
    input_kernel: Kernel,
    regularization: float = 0.1,
    seed: int = 0,
    dependence: RowDependence | None = None,
) -> RehearsalSplit:
    """Systems of the rows for fitting and of the others, each its own, so that nothing of one is seen by the other.

    Args:
        x: inputs (n, d), normalised as the protocol says.
        for_fitting: which rows the fit sees, (n,).
        input_kernel: of the protocol.
        regularization: lambda.
        seed: of landmarks and draws.
        dependence: which of the n rows depend on each other; none on both sides (``kernels.dependence.hold_out``).

    Raises:
        InvalidInputError: fewer than two rows held out.
    """
    points, fitting = np.asarray(x), np.asarray(for_fitting, dtype=bool)
    fit = input_spectrum(points[fitting], input_kernel, regularization)
    held_out = points[~fitting]
    protocol = EvaluationProtocol("rehearsal", False, input_kernel, regularization=regularization)
    calibration = prepare_calibration(held_out, input_kernel=input_kernel, regularization=regularization, seed=seed)
    features = input_features(fit, points[fitting])
    return RehearsalSplit(fitting, dependence, features, held_out, protocol, calibration)


def recalibration_rehearsal(
    split: RehearsalSplit, y: Any, predictive: Distribution, *, seed: int = 0, keys: Any | None = None
) -> RecalibrationRehearsal:
    """Fit on some rows and score on the others.

    Cross-fitting would score every row but flatter what smooths targets over neighbours, CCE and the tests of
    calibration: a row's neighbours were in the fit.

    Args:
        split: of the n rows.
        y: targets (n,).
        predictive: n distributions of one target.
        seed, keys: see ``fit_recalibration``.

    Raises:
        InvalidInputError: see ``fit_recalibration``.
    """
    targets = matched_targets(predictive, y)
    names = np.arange(len(targets)) if keys is None else np.asarray(keys)
    fitting, held_out = np.flatnonzero(split.for_fitting), np.flatnonzero(~split.for_fitting)
    known = None if split.dependence is None else split.dependence.of_rows(fitting)
    own = version_blocks(known, targets[fitting], predictive[fitting])
    found = fit_recalibration(
        split.features, targets[fitting], predictive[fitting], seed=seed, keys=names[fitting], blocks=own
    )
    before, targets = predictive[held_out], targets[held_out]
    after = before if found.changes_nothing else found(split.points, before)
    blocks = pair_blocks(split.held_out, targets, before, after)
    changes = _scored(targets, before, after, blocks)
    changes["cce"] = _congruence(split, targets, before, after, seed, blocks)
    laws = [before] if after is before else [before, after]
    judged = split.held_out or RowDependence()
    design = {"keys": names[held_out], "groups": judged.groups, "time": judged.time}
    tests = [split.calibration.test_version(targets, law, seed=seed, **design) for law in laws]
    p_values = (tests[0].p_value, tests[-1].p_value)
    return RecalibrationRehearsal(changes, p_values, len(held_out), len(fitting), found)


def _scored(y: Array, before: Distribution, after: Distribution, blocks: DependentBlocks | None) -> dict[str, Change]:
    """The changes of CRPS, of the absolute error of the mean and, where both laws have a finite one, of NLL."""
    changes = {
        "crps": _paired(_crps(before, y), _crps(after, y), blocks),
        "mae": _paired(np.abs(y - before.mean()), np.abs(y - after.mean()), blocks),
    }
    if before.has_density() and after.has_density():
        scores = [negative_log_likelihood(y, law, infinite="keep") for law in (before, after)]
        if all(np.isfinite(score).all() for score in scores):
            changes["nll"] = _paired(scores[0], scores[1], blocks)
    return changes


def _crps(law: Distribution, y: Array) -> Array:
    """The CRPS; of draws that of their empirical law, as the fair one flatters draws that are no longer independent."""
    draws = law.draws
    if draws is None:
        return crps(y, law)
    size = draws.shape[1]
    half_difference = np.sort(draws, axis=1) @ ((2.0 * np.arange(1, size + 1) - size - 1.0) / size**2)
    return np.asarray(np.mean(np.abs(draws - y[:, None]), axis=1) - half_difference)


def _paired(before: Array, after: Array, blocks: DependentBlocks | None) -> Change:
    difference = after - before
    error = float(np.std(difference, ddof=1) / np.sqrt(len(difference)))
    if blocks is not None:
        error = blocks.standard_error(difference)
    return Change(float(np.mean(before)), float(np.mean(after)), error)


def _congruence(
    split: RehearsalSplit,
    y: Array,
    before: Distribution,
    after: Distribution,
    seed: int,
    blocks: DependentBlocks | None,
) -> Change:
    versions = {"before": before} if after is before else {"before": before, "after": after}
    held = HeldSplit(split.points, y, dependence=split.held_out, systems=split.systems)
    found = measure_held(held, split.protocol, versions, Ask(list(versions), tested=False), Accuracy(), seed)
    results = {name: each.result for name, each in found.items()}
    influences = [result.uncertainty.influence for result in results.values()]
    if after is before:
        return Change(results["before"].mean, results["before"].mean, 0.0)
    difference = difference_of_influences(influences[1], influences[0], blocks, shares_signs=blocks is None)
    return Change(results["before"].mean, results["after"].mean, difference.mean_standard_error)
