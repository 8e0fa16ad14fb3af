"""The contract of a predictive model, tried on a few rows before the long work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.contract.model import PredictiveModel
from congruence.tasks.contract.settings import AUTO
from congruence.tasks.readers.base import Spec


@dataclass(frozen=True)
class ContractReport:
    """What the trial showed: the family and how it was found, the rows tried, and what is allowed but worth knowing."""

    label: str
    family: str
    rows: int
    warnings: tuple[str, ...] = ()


def check_contract(model: PredictiveModel, frame: pd.DataFrame, targets: Any = None) -> ContractReport:
    """Ask ``model`` for the distributions of a few rows (8 to 100 are plenty) and check what comes back.

    Beyond what ``PredictiveModel.predict`` refuses, a count family must face whole, non-negative targets, targets and
    predictions must have one dimension, and the prediction of a row must not depend on the other rows of its batch.

    Raises:
        ContractError: names the column, shape, row or value, and the remedy.
    """
    if len(frame) == 0:
        raise ContractError(f"{model.identity.label}: there is no row to check the contract on")
    predictive = model.predict(frame)
    warnings = []
    if len(frame) > 1:
        alone = model.predict(frame.iloc[::-1].iloc[: (len(frame) + 1) // 2])
        warnings += _row_dependence(model, predictive, alone)
    if targets is not None:
        warnings += _check_targets(model, predictive, require_targets(targets, "targets", len(frame)))
    family, found = _found(model, frame, predictive)
    return ContractReport(model.identity.label, family, len(frame), (*found, *model.casts.values(), *warnings))


def _found(model: PredictiveModel, frame: pd.DataFrame, predictive: Distribution) -> tuple[str, list[str]]:
    """The family that was read, and what a reader of native objects noted."""
    if model.settings.family != AUTO and model.settings.method is None:
        return model.settings.family, []
    output = model.output(frame.iloc[:1])
    note = [output.note] if isinstance(output, Spec) and output.note else []
    how = model.asked_by()
    return predictive.family + (f", read from {how}" if how else ""), note


def _row_dependence(model: PredictiveModel, together: Distribution, apart: Distribution) -> list[str]:
    """The last half of the rows, in reverse, must have the means they have in the whole."""
    expected = np.asarray(together.mean())[::-1][: len(apart)]
    found = np.asarray(apart.mean())
    scale = float(np.mean(np.asarray(together.std()))) + float(np.ptp(expected)) + 1e-12
    difference = np.abs(found - expected).reshape(len(found), -1).max(axis=1)
    worst = int(np.argmax(difference))
    if difference[worst] <= 1e-3 * scale:
        return []
    values = f"mean {np.ravel(expected[worst])[0]:.6g} in one batch and {np.ravel(found[worst])[0]:.6g} in another"
    if together.draws is not None:
        return [f"row {len(together) - 1 - worst} has {values}: the samples are redrawn at every call"]
    raise ContractError(
        f"{model.identity.label}: row {len(together) - 1 - worst} has {values}: its prediction depends on the rest "
        "of the batch or on chance; put the network into evaluation mode, standardise with constants from training, "
        "fix seeds"
    )


def _check_targets(model: PredictiveModel, predictive: Distribution, targets: Array) -> list[str]:
    means = np.asarray(predictive.mean())
    if means.shape != targets.shape:
        raise ContractError(
            f"{model.identity.label}: predicts shape {means.shape} for targets of shape {targets.shape}; the target "
            "and the distribution must have the same dimension"
        )
    if predictive.is_discrete:
        wrong = (targets != np.round(targets)) | (targets < 0)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ContractError(
                f"{model.identity.label}: family {predictive.family} is for counts, but the target of row "
                f"{row} is {targets[row]:g}; choose a continuous family or another target column"
            )
    distance = np.abs(targets - means) / np.maximum(np.asarray(predictive.std()), 1e-300)
    if float(np.median(distance)) > 100:
        return [
            f"the typical target is {float(np.median(distance)):.3g} predicted standard deviations from its predicted "
            "mean: target and prediction may have different units"
        ]
    return []
