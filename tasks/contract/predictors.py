"""The pyfunc models that ``log_predictive_model`` writes around callables, estimators and networks.

Each turns an input frame into named output columns. They must stay importable under these names: logged models refer
to them.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.reading import as_frame, distribution_columns, spec_distribution
from congruence.tasks.readers.base import UnreadableOutputError
from congruence.tasks.readers.read import is_columns, output_of, read_output
from congruence.tasks.runtime.errors import ContractError

Preprocess = Callable[[pd.DataFrame], Any]


class FramePredictor(PythonModel):
    """A pyfunc model that is a function of the input frame alone: subclasses say which ``columns`` it gives."""

    @abstractmethod
    def columns(self, frame: pd.DataFrame) -> Any:
        """The output columns, one row for every row of ``frame``, or a ``Distribution`` that they are made of."""

    categories: Mapping[str, Any] = {}
    """The categorical types of the columns that have one, which MLflow's signatures do not know."""
    preprocess: Preprocess | None = None
    """Makes what the model takes of the frame; without it the model takes the frame."""

    def features(self, frame: pd.DataFrame) -> Any:
        """What the model takes."""
        return frame if self.preprocess is None else self.preprocess(frame)

    def answer(self, frame: pd.DataFrame) -> Any:
        """``columns`` of a frame whose categories a signature may have turned into values."""
        kinds = {name: kind for name, kind in self.categories.items() if name in frame.columns}
        return self.columns(frame.astype(kinds) if kinds else frame)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        """MLflow's entry: the parameters of the distributions as columns by their names, or the columns as they are."""
        found = self.answer(model_input)
        return distribution_columns(found) if isinstance(found, Distribution) else found


class CallablePredictor(FramePredictor):
    """A function from the features to columns, to a ``Distribution``, or to an object that a reader knows."""

    def __init__(self, function: Callable[[Any], Any], preprocess: Preprocess | None = None) -> None:
        self.function = function
        self.preprocess = preprocess

    def columns(self, frame: pd.DataFrame) -> Any:
        """What the function returns."""
        output = self.function(self.features(frame))
        if isinstance(output, Distribution) or is_columns(output):  # whose meaning settings tell
            return output
        try:
            return spec_distribution(read_output(output, len(frame)), len(frame))
        except UnreadableOutputError:
            return output


class NativePredictor(FramePredictor):
    """A fitted model of a class that a reader knows, or one with a ``method`` to ask."""

    def __init__(self, model: Any, method: str | None = None, preprocess: Preprocess | None = None) -> None:
        self.model = model
        self.method = method
        self.preprocess = preprocess

    def columns(self, frame: pd.DataFrame) -> Distribution:
        """The predictive distributions."""
        try:
            return spec_distribution(output_of(self.model, self.features(frame), self.method), len(frame))
        except UnreadableOutputError as error:
            raise ContractError(f"{type(self.model).__name__}: {error}") from error


class EstimatorPredictor(FramePredictor):
    """A scikit-learn regressor: ``loc`` and, where its ``predict`` can return it, ``scale``.

    A regressor of several outputs gives the columns "0", "1", ....
    """

    def __init__(self, model: Any, preprocess: Preprocess | None = None) -> None:
        self.model = model
        self.preprocess = preprocess

    def columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The predictions, with standard deviations where the estimator knows them."""
        features = self.features(frame)
        if returns_std(self.model):
            loc, scale = self.model.predict(features, return_std=True)
            return pd.DataFrame({"loc": loc, "scale": scale})
        output = np.asarray(self.model.predict(features))
        if output.ndim == 1:
            return pd.DataFrame({"loc": output})
        return pd.DataFrame({str(column): output[:, column] for column in range(output.shape[1])})


class QuantilePredictor(FramePredictor):
    """One regressor per quantile level; crossing quantiles are sorted, and counted, where they are read."""

    def __init__(self, estimators: Mapping[float, Any], preprocess: Preprocess | None = None) -> None:
        self.estimators = dict(sorted(estimators.items()))
        self.preprocess = preprocess

    def columns(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The quantiles in the order of their levels, as values_0, values_1, ...."""
        features = self.features(frame)
        models = enumerate(self.estimators.values())
        return pd.DataFrame({f"values_{column}": np.asarray(model.predict(features)) for column, model in models})


class ModulePredictor(FramePredictor):
    """A torch module in evaluation mode, run on the CPU or the first GPU in batches.

    The module returns a matrix, a dict of tensors, or a ``torch.distributions`` object.
    """

    def __init__(self, model: Any, preprocess: Preprocess | None = None, batch_size: int = 1024) -> None:
        self.model = model.eval().cpu()
        self.preprocess = preprocess
        self.batch_size = batch_size

    def columns(self, frame: pd.DataFrame) -> Any:
        """The outputs of all batches as columns, or their distributions."""
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        module = self.model.to(device).eval()
        kind = next((weight.dtype for weight in module.parameters()), torch.float32)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(frame), self.batch_size):
                rows = frame.iloc[start : start + self.batch_size]
                if self.preprocess is not None:
                    features = torch.as_tensor(self.preprocess(rows))
                else:
                    features = torch.as_tensor(rows.to_numpy(dtype=np.float64, copy=True)).to(kind)
                parts.append(_of_batch(module(features.to(device)), len(rows)))
        one: Any = type(parts[0])
        return pd.concat(parts, ignore_index=True) if one is pd.DataFrame else one.concatenate(parts)


def returns_std(estimator: Any) -> bool:
    """Whether the ``predict`` of a scikit-learn regressor has the argument ``return_std``."""
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    return "return_std" in inspect.signature(last.predict).parameters


def _of_batch(output: Any, rows: int) -> Any:
    if not hasattr(output, "detach") and not isinstance(output, Mapping):
        return spec_distribution(read_output(output, rows), rows)
    if not isinstance(output, Mapping):
        matrix = output if output.ndim > 1 else output[:, None]
        output = {str(column): matrix[:, column] for column in range(matrix.shape[1])}
    arrays = {str(name): tensor.detach().cpu().double().numpy() for name, tensor in output.items()}
    return as_frame({name: v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v for name, v in arrays.items()})
