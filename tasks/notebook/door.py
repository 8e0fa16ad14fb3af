"""What is called in a notebook or a script: ``evaluate``, ``compare``, ``report`` and ``scorer``."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd

from congruence.kernels import scores
from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import PROTOCOLS, EvaluationProtocol
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.versions import compare_versions
from congruence.tasks.notebook.answers import ComparedPredictions, EvaluatedPrediction, EvaluatedPredictions, with_unit
from congruence.tasks.notebook.rows import MemoryRows, distribution_of, model_distribution, named, whole_distribution
from congruence.tasks.notebook.table import Given, require_same_order, rows_of
from congruence.tasks.scores.metrics.registry import metric_names
from congruence.tasks.scores.reading import WEIGHTED
from congruence.tasks.scores.version import score_version
from congruence.tasks.settings.parts import ProtocolSettings, checked
from congruence.tasks.settings.sections import ModelVersion
from congruence.tasks.solving.solve import measure

BEFORE = 2.0
"""Seconds that pass in silence."""
_WIDTH = 24


class Progress:
    """A bar on the standard error of a terminal or a notebook, drawn twice a second by a thread of its own.

    Args:
        total: how much work there is, in steps of any size.
        shown: whether to draw; by default where somebody looks.
    """

    def __init__(self, total: float, *, shown: bool | None = None) -> None:
        self._total, self._done, self._said = total, 0.0, ""
        self._started, self._ended = time.monotonic(), Event()
        looked_at = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._thread = Thread(target=self._draw, daemon=True) if (looked_at if shown is None else shown) else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def say(self, what: str, done: float = 0.0) -> None:
        """What is done next, after so many more steps."""
        self._said, self._done = what, self._done + done

    def _draw(self) -> None:
        drawn = 0
        while not self._ended.wait(0.5 if drawn else BEFORE):
            filled = int(_WIDTH * min(1.0, self._done / self._total))
            passed = time.monotonic() - self._started
            line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._said} ({passed:.0f} s)"
            sys.stderr.write("\r" + line.ljust(drawn))
            sys.stderr.flush()
            drawn = len(line)
        if drawn:
            sys.stderr.write("\r" + " " * drawn + "\r")
            sys.stderr.flush()


def evaluate(
    X: Any,
    y: Any,
    predicted: Any,
    *,
    groups: Any = None,
    time: Any = None,
    weights: Any = None,
    slices: Any = None,
    target_name: str | None = None,
    unit: str = "",
    inputs: Sequence[str] | None = None,
    missing: str = "leave_out",
    levels: Sequence[float] | None = None,
    method: str | None = None,
    protocol: Any = "exact",
    metrics: Sequence[str] | None = None,
    name: str = "test",
    seed: int = 0,
    progress: bool | None = None,
) -> Any:
    """Returns how far predictive distributions are from the truth: verdict, p-value, sentences, metrics, rows, report.

    Args:
        X: inputs, a frame or a matrix (n, d). Numbers are standardised; each value of a column of at most 30 words is a
            column of 0 and 1; dates and longer texts say nothing of which rows are near, and that is said.
        y: targets (n,), or (n, q) for several a row, or the name of their column in X, or of several in a list.
        predicted: one prediction for the n rows, or several by name. A prediction is a distribution of
            ``congruence.kernels``; a pair (mean, std); an array or frame of quantiles with ``levels``, or a frame whose
            columns name them (``q0.1``); draws (n, k); a distribution of scipy, torch, skpro, NGBoost or TensorFlow
            Probability; or a fitted model, which is asked with X. Of q targets mean and std are (n, q), draws
            (n, k, q).
        groups: values of the rows, or the name of a column of X: rows of one group may depend on each other.
        time: the same: rows near in time may depend on each other.
        weights: the same: what each row counts in means.
        slices: names of columns of X, or columns by name: parts of the rows that are reported one by one.
        target_name: of the targets, for sentences and labels.
        unit: of the targets, for sentences, scores and labels.
        inputs: the columns of X that say which rows are near; by default all that can.
        missing: what nearness makes of a missing number: "leave_out" the row (up to 1 % of them), "mean" or
            "indicator".
        levels: of quantiles in an array or a frame.
        method: of a fitted model whose class does not tell how it is asked, such as "predict(return_std=True)".
        protocol: its name, ``exact`` or ``preprint``; a ``congruence.kernels.EvaluationProtocol``; or what the
            evaluation file has under ``protocol:``. By default ``exact``: inputs of unit norm, a polynomial kernel of
            degree 3, lambda .1.
        metrics: names of metrics, to narrow them.
        name: of the rows.
        seed: of everything that is drawn.
        progress: whether a bar shows how far it is; by default where somebody looks, after two seconds.

    Returns:
        An ``EvaluatedPrediction``; of several predictions ``EvaluatedPredictions``, these by name.

    Raises:
        InvalidInputError: rows or predictions that cannot be evaluated, by column, row and value, with the remedy.
    """
    given = Given(X, y, groups, time, weights, slices, target_name, unit, name, missing, inputs)
    found = evaluated(
        given, predicted, levels=levels, method=method, protocol=protocol, metrics=metrics, seed=seed, progress=progress
    )
    is_named = isinstance(predicted, dict) and list(found) == list(predicted)
    return EvaluatedPredictions(found) if is_named or len(found) > 1 else next(iter(found.values()))


def report(X: Any, y: Any, predicted: Any, **settings: Any) -> Any:
    """Returns the report of one prediction, or, of several by name, their comparison, to be shown in the cell.

    Arguments and errors are those of ``evaluate``, and ``baseline`` as in ``compare``.
    """
    baseline = settings.pop("baseline", None)
    _require_baseline(baseline, predicted)
    found = evaluate(X, y, predicted, **settings)
    if isinstance(found, EvaluatedPrediction):
        return found
    return found.popitem()[1] if len(found) == 1 else _compared(found, baseline, settings.get("seed", 0))


def compare(X: Any, y: Any, predicted: Any, *, baseline: str | None = None, **settings: Any) -> ComparedPredictions:
    """Returns which of several predictions is nearer to the truth, by paired differences with intervals.

    Args:
        X: inputs, as in ``evaluate``.
        y: targets, as in ``evaluate``.
        predicted: at least two predictions by name.
        baseline: the name of that with which the others are compared; by default the one that ranks first.
        settings: the other arguments of ``evaluate``.

    Raises:
        InvalidInputError: fewer than two predictions, an unknown baseline, or what ``evaluate`` refuses.
    """
    if not isinstance(predicted, Mapping) or len(predicted) < 2:
        raise InvalidInputError("predicted: one prediction; give at least two by name, {'a': ..., 'b': ...}")
    _require_baseline(baseline, predicted)
    found = evaluate(X, y, predicted, **settings)
    if isinstance(found, EvaluatedPrediction):
        raise InvalidInputError("predicted: the columns of one prediction; give two by name, {'a': ..., 'b': ...}")
    return _compared(found, baseline, settings.get("seed", 0))


def _require_baseline(baseline: str | None, predicted: Any) -> None:
    """Raise InvalidInputError, before anything is computed, where none of several predictions has that name."""
    if baseline is not None and isinstance(predicted, Mapping) and baseline not in predicted:
        names = ", ".join(map(repr, predicted))
        raise InvalidInputError(f"baseline: {baseline!r} is not among the predictions {names}")


def _compared(found: EvaluatedPredictions, baseline: str | None, seed: int) -> ComparedPredictions:
    versions = [ComparedVersion.of(each.evaluation) for each in found.values()]
    return ComparedPredictions(compare_versions(versions, baseline=baseline, seed=seed), found)


def evaluated(
    given: Given,
    predicted: Any,
    *,
    levels: Sequence[float] | None = None,
    method: str | None = None,
    protocol: Any = "exact",
    metrics: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> dict[str, EvaluatedPrediction]:
    """Each prediction on the rows of a call, by name; see ``evaluate``."""
    metrics = [metrics] if isinstance(metrics, str) else metrics
    unknown = [name for name in metrics or () if name not in metric_names()]
    if unknown:
        raise InvalidInputError(f"metrics: {unknown[0]!r} is no metric; choose from {', '.join(metric_names())}")
    rows = rows_of(given)
    by_name = named(predicted, rows.split.rows)
    for label, one in by_name.items():
        parts = one.values() if isinstance(one, Mapping) else one if isinstance(one, (tuple, list)) else [one]
        for part in parts:
            if isinstance(part, (pd.Series, pd.DataFrame)) and given.index is not None:
                require_same_order(part.index, given.index, f"predicted: {label}")
    with Progress(2.0 + 2.0 * len(by_name), shown=progress) as bar:
        bar.say("reading predictions")
        laws = {
            label: distribution_of(label, one, rows, levels=levels, method=method) for label, one in by_name.items()
        }
        rows = replace(rows, predictions=laws)
        chosen, design = _protocol(protocol, rows), rows.design()
        bar.say(f"measuring {rows.valid.sum():,} rows", 1.0)
        found = measure(
            chosen, rows.embeddings(), rows.targets(), laws,
            metrics=metrics, seed=seed, keys=rows.keys(), weights=design.weight, dependence=design.dependence(),
        )  # fmt: skip
        notes = rows.notes if design.weight is None else (*rows.notes, WEIGHTED)
        evaluated = {}
        done = 1.0 + len(laws)
        for label, law in laws.items():
            bar.say(f"scoring {label}", done)
            version = ModelVersion(label, "", f"predictions:/{label}/{_digest(law)}")
            made = score_version(rows, rows.encoder, version, chosen, found.pop(label), metrics=metrics, seed=seed)
            evaluated[label] = EvaluatedPrediction(with_unit(made, given.unit), notes, _said(chosen), given.unit)
            done = 1.0
    return evaluated


def _protocol(protocol: Any, rows: MemoryRows) -> EvaluationProtocol:
    """The protocol as a value, with the encoder that standardises.

    Raises:
        InvalidInputError: it needs a reference split, or is none.
    """
    if isinstance(protocol, str) and protocol not in PROTOCOLS:
        raise InvalidInputError(f"protocol: {protocol!r} is none; choose from {', '.join(PROTOCOLS)}")
    chosen: EvaluationProtocol = protocol
    if not isinstance(protocol, EvaluationProtocol):
        chosen = checked(ProtocolSettings, protocol, "protocol").protocol()
    if chosen.reference != "test":
        raise InvalidInputError(
            f"protocol: '{chosen.name}' estimates on a validation split, which an evaluation file names; "
            "give protocol='exact'"
        )
    return replace(chosen, encoder=f"{rows.encoder.id} {rows.encoder.preprocessing_digest}")


def _said(protocol: EvaluationProtocol) -> str:
    norm = "inputs of unit norm, " if protocol.normalize else ""
    kernel, shrinkage = protocol.input_kernel, protocol.regularization
    return f"Protocol {protocol.name} ({protocol.digest}): {norm}{kernel}, lambda {shrinkage:g}."


def _digest(law: Distribution) -> str:
    """Of all parameters: two predictions of one name are told apart where they are logged."""
    found = hashlib.sha256(type(law).__name__.encode())
    mixture = law.mixture
    parts = [law.parameters()] if mixture is None else [{"weights": mixture[0]}, *(p.parameters() for p in mixture[1])]
    for part in parts:
        for key, values in part.items():
            found.update(key.encode())
            found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


SCORES: dict[str, Callable[[Array, Distribution], Array]] = {
    "crps": scores.crps,
    "nll": scores.negative_log_likelihood,
    "mae": scores.absolute_error,
    "mse": scores.squared_error,
}
"""A number a row by name, the less the better."""


@dataclass(frozen=True)
class Scorer:
    """Minus the mean score of a fitted model on rows with targets: as scikit-learn has it, more is better.

    ``score``, ``method`` and ``levels`` are those of ``scorer``.
    """

    score: str
    method: str | None = None
    levels: Sequence[float] | None = None

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the score of ``model`` for the rows of X with targets y."""
        predictive = model_distribution(model, X, levels=self.levels, method=self.method)
        return -self.of(y, predictive, sample_weight)

    def of(self, y: Any, predicted: Any, weights: Any = None) -> float:
        """Returns the mean score of predictions, whatever ``congruence.evaluate`` takes as one: less is better."""
        y = require_targets(y, "y")
        predictive = whole_distribution(predicted, len(y), levels=self.levels)
        return float(np.average(SCORES[self.score](y, predictive), weights=weights))


def scorer(score: str = "crps", *, method: str | None = None, levels: Sequence[float] | None = None) -> Scorer:
    """Returns a scorer for ``GridSearchCV``, ``cross_val_score`` and whatever else takes ``scoring=``.

    Args:
        score: ``crps``, ``nll``, ``mae`` or ``mse`` of the predictive mean.
        method: of models whose class does not tell how they are asked, such as "predict(return_std=True)".
        levels: of quantiles, where models answer with an array of them.

    Raises:
        InvalidInputError: another score.
    """
    if score not in SCORES:
        raise InvalidInputError(f"score: {score!r} is none; choose from {', '.join(SCORES)}")
    return Scorer(score, method, levels)
