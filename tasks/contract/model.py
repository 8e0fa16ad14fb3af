"""A loaded model that predicts distributions: asked row by row, and its contract tried before the long work.

A count over an exposure e (insured years, kilometres) of a rate r has the mean e r: the exposure multiplies the mean of
a distribution of counts. The dispersion of a negative binomial and the inflation of zeros stay: a policy's own rate is
gamma about the predicted one, and which policies never claim is no matter of time.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PyFuncModel
from mlflow.types.schema import Schema

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.contract.settings import (
    AUTO,
    RATES,
    PredictionSettings,
    families,
)
from congruence.tasks.contract.signature import pictures_as_files, to_signature, to_tensor
from congruence.tasks.readers.base import Spec, UnreadableOutputError
from congruence.tasks.readers.read import answer_of, said_of
from congruence.tasks.runtime.errors import ContractError, trouble
from congruence.tasks.settings.sections import ModelVersion


@dataclass(frozen=True)
class PredictiveModel:
    """A model version with the settings that turn its output into distributions."""

    identity: ModelVersion
    settings: PredictionSettings
    pyfunc: Any = field(repr=False)
    """MLflow's ``PyFuncModel``, or what has its ``metadata`` and ``predict``: a model in a process of its own."""
    given: tuple[str, ...] | None = None
    """The columns that it is given, where that is said; its signature chooses among them, else it has all."""
    casts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """How columns were converted to the types of the signature, as far as the model was asked, in words by column."""

    @property
    def input_columns(self) -> tuple[str, ...] | None:
        """The columns that the model's signature asks for; None where it has no signature or takes a matrix."""
        schema = self._input_schema
        return tuple(map(str, schema.input_names())) if schema is not None and schema.has_input_names() else None

    def predict(self, frame: pd.DataFrame, *, start: int = 0) -> Distribution:
        """The predictive distributions of the rows of ``frame``, in order.

        Only the columns of the model's signature are handed over, so a target in the frame stays unseen. A model
        without a signature gets every column.

        Args:
            frame: the input rows.
            start: the number of the first row in the split, for errors.

        Raises:
            ContractError: a column is missing, the model raised, or its output is not what the settings promise.
        """
        output = self.output(frame, start=start)
        try:
            found = read_distribution(output, self.settings, len(frame), start=start)
            if self.settings.exposure is None:
                return found
            exposure = exposure_in(frame, self.settings.exposure, start)
            return exposed(found, found.family, exposure)
        except ContractError as error:
            raise ContractError(f"{self.identity.label}: {error}") from error
        except Exception as error:  # so may the objects that it returns
            raise ContractError(
                f"{self.identity.label}: its output on {_rows(start, frame)} cannot be read: {failure_text(error)}"
            ) from error

    def output(self, frame: pd.DataFrame, *, start: int = 0) -> Any:
        """What the model returns for the rows of ``frame``: columns, or a ``Spec`` read from its own objects.

        See ``predict``.
        """
        label, rows = self.identity.label, _rows(start, frame)
        with ExitStack() as opened:
            holds_bytes = len(frame) > 0 and any(isinstance(cell, bytes) for cell in frame.iloc[0])
            folder = Path(opened.enter_context(TemporaryDirectory())) if holds_bytes else None
            try:
                inputs = self._inputs(frame, folder)
            except Exception as error:  # values of any kind, in conversions of pandas
                why = (
                    str(error) if isinstance(error, ContractError) else f"{rows} cannot be given: {failure_text(error)}"
                )
                raise ContractError(f"{label}: {why}") from error
            try:
                return self._asked(inputs)
            except UnreadableOutputError as error:
                raise ContractError(f"{label}: {error}") from error
            except MlflowException as error:
                raise ContractError(
                    f"{label}: {rows} do not fit the model's signature: {str(error).rsplit('Error: ', 1)[-1]}; it asks "
                    f"for {self._input_schema}"
                ) from error
            except (Exception, SystemExit) as error:  # the model's own code may raise anything
                raise ContractError(f"{label}: predict failed on {rows}: {failure_text(error)}") from error

    def asked_by(self) -> str:
        """What of the native model is asked, in words; "" where that is its logged ``predict``."""
        if self.settings.method is not None:
            return self.settings.method
        if isinstance(self.pyfunc, PyFuncModel):
            return said_of(self.pyfunc)
        return str(getattr(self.pyfunc, "said", ""))

    def _asked(self, inputs: Any) -> Any:
        settings = self.settings
        as_spec = settings.family == AUTO
        if settings.method is None and not as_spec:
            return self.pyfunc.predict(inputs)
        ask = getattr(self.pyfunc, "answer_of", None)  # of a model in a process of its own
        if ask is not None:
            return ask(inputs, settings.method, as_spec=as_spec, levels=settings.levels)
        return answer_of(self.pyfunc, inputs, settings.method, as_spec=as_spec, levels=settings.levels)

    @property
    def _input_schema(self) -> Schema | None:
        signature = self.pyfunc.metadata.signature
        return signature.inputs if signature is not None else None

    def _inputs(self, frame: pd.DataFrame, folder: Path | None) -> Any:
        schema = self._input_schema
        if EXPOSURE in frame.columns:
            frame = frame.drop(columns=EXPOSURE)
        if self.given is not None:
            absent = [name for name in self.given if name not in frame.columns]
            if absent:
                raise ContractError(f"model_inputs: there is no column {absent[0]!r}; the split gives {_listed(frame)}")
            frame = frame[list(self.given)]
        if schema is None:
            return frame
        if schema.has_input_names():
            given, required = set(frame.columns), set(schema.required_input_names())
            names = [name for name in schema.input_names() if name in given or name in required]
            missing = [name for name in names if name not in given]
            if missing:
                raise ContractError(
                    f"the model asks for input column {missing[0]!r}, but the split gives "
                    f"{_listed(frame)}; add it to the split's model inputs"
                )
            inputs, notes = to_signature(frame[names], schema)
            if folder is not None:
                inputs, more = pictures_as_files(inputs, schema, folder)
                notes |= more
            self.casts.update(notes)
            return inputs
        return to_tensor(frame, schema.numpy_types()[0]) if schema.is_tensor_spec() else frame


def failure_text(error: BaseException) -> str:
    """What the code of a model raised, for a ContractError, which masks its secrets."""
    text = str(error).strip()
    if isinstance(error, ContractError):  # of a process that said more
        return text
    why = trouble(error) if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else None
    return ": ".join([type(error).__name__, *filter(None, (text, why))])


def _listed(frame: pd.DataFrame) -> str:
    return ", ".join(map(repr, frame.columns))


def _rows(start: int, frame: pd.DataFrame) -> str:
    return f"rows {start} to {start + len(frame) - 1}"


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
    family, notes = model.settings.family, list(model.casts.values())
    if family == AUTO or model.settings.method is not None:
        output, how = model.output(frame.iloc[:1]), model.asked_by()
        family = predictive.family + (f", read from {how}" if how else "")
        notes[:0] = [output.note] if isinstance(output, Spec) and output.note else []
    return ContractReport(model.identity.label, family, len(frame), (*notes, *warnings))


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


_CLEARLY = 1.2
"""A mean prediction within this factor of the mean count is one of counts."""


_REACH = 3.0


def require_counts(label: str, predictive: Distribution, frame: pd.DataFrame, targets: Any) -> None:
    """Refuse predicted rates that are read as counts, on rows whose split names an exposure.

    Raises:
        ContractError: the mean prediction is not the mean count, and nearer to the mean rate, sum y / sum e.
    """
    if EXPOSURE not in frame.columns or not predictive.is_discrete or np.ndim(targets) != 1:
        return
    exposure, total = frame[EXPOSURE].to_numpy(np.float64), float(np.sum(targets))
    predicted = float(np.mean(predictive.mean()))
    if total <= 0.0 or not predicted > 0.0:
        return
    count, rate = total / len(exposure), total / float(np.sum(exposure))
    from_count, from_rate = abs(np.log(predicted / count)), abs(np.log(predicted / rate))
    # The total is known to some 1 / sqrt(total) of itself.
    if from_count > max(np.log(_CLEARLY), _REACH / np.sqrt(total)) and from_rate < from_count:
        raise ContractError(
            f"{label}: predicts rates that are read as counts: its mean prediction {predicted:.3g} is "
            f"{predicted / count:.3g} times the mean count {count:.3g}, and {predicted / rate:.3g} times the mean rate "
            f"{rate:.3g} per unit of exposure, on {len(exposure):,} rows; add exposure: to predictions: in the "
            "evaluation file, or log it with log_predictive_model(..., exposure=...); a model that does predict counts "
            "is evaluated where the split names no exposure"
        )


EXPOSURE = "__exposure__"
"""Column of a frame of model inputs, which no model is given: the exposure of each row, where the split names one."""


def exposed(law: Distribution, family: str, exposure: Array) -> Distribution:
    """The law of the counts over ``exposure`` (n,), from that of counts over an exposure of 1.

    Raises:
        ContractError: a family that an exposure does not multiply.
    """
    if family not in RATES:
        raise ContractError(
            f"exposure: multiplies the mean of a distribution of counts, and {family} is none that has one; leave it "
            f"out, or read the output as one of {', '.join(RATES)}"
        )
    name = RATES[family]
    return families()[family](**{**law.parameters(), name: law.parameters()[name] * exposure})


def exposure_in(frame: pd.DataFrame, column: str, start: int = 0) -> Array:
    """The exposure of each row of model inputs: what their split names, else the column of that name.

    Raises:
        ContractError: neither is there, or a value that is not a number above 0.
    """
    given = EXPOSURE if EXPOSURE in frame.columns else column
    if given not in frame.columns:
        raise ContractError(
            f"its predictions are rates, to be multiplied by the exposure {column!r}, which the rows do not give; add "
            f"exposure: {column} to the split"
        )
    values = pd.to_numeric(frame[given], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    bad = ~(np.isfinite(values) & (values > 0.0))
    if bad.any():
        row = int(np.argmax(bad))
        raise ContractError(
            f"row {start + row}: exposure {column!r} is {frame[given].iloc[row]}; give a number above 0"
        )
    return values
