"""A corrected law in the output columns of the version it corrects, so that a reader of the one reads the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.recalibration.recalibration_map import Form
from congruence.tasks.contract.columns import UNCORRECTED, as_frame, is_recalibrated, score_map_columns
from congruence.tasks.contract.reading import parameter_columns
from congruence.tasks.contract.settings import PredictionSettings

_UNDONE: dict[str, Callable[[Array], Array]] = {
    "exp": np.log,
    "sqrt": np.square,
    "square": np.sqrt,
    "reciprocal": np.reciprocal,
    "softplus": lambda values: values + np.log(-np.expm1(-values)),
}
"""What a transform of the contract undoes."""


def corrected_output(
    columns: Mapping[str, Array],
    settings: PredictionSettings,
    form: Form,
    base: Distribution,
    score_map: NormalScoreMap,
) -> pd.DataFrame:
    """The output columns of the corrected law.

    Normal laws whose shape stays, and draws, keep their family and are written into the parent's own columns, through
    the inverse of its transforms. Every other law is spelled by the parent's columns, renamed, beside the map
    (``contract.recalibrated_columns``). Which of the two depends on contract and map alone, never on the rows.

    Args:
        columns: the parent's output, see ``contract.columns.output_columns``.
        settings: how it is read.
        form: of the map.
        base: the laws that were read.
        score_map: of these rows.
    """
    if form.is_a_temperature:  # at which the columns are already
        return as_frame(columns)
    places = _places(columns, settings, form)
    if places is None:
        spelled = score_map_columns(score_map, with_shape=form.shape is not None)
        return as_frame({f"{UNCORRECTED}{name}": values for name, values in columns.items()} | spelled)
    written = dict(columns)
    for name, values in recalibrated(base, score_map).parameters().items():
        transform = settings.transforms.get(name)
        inner = values if transform is None else _UNDONE[transform](values)
        if len(places[name]) == 1:
            written[places[name][0]] = inner
        else:
            written |= {column: inner[:, k] for k, column in enumerate(places[name])}
    return as_frame(written)


def _places(columns: Mapping[str, Array], settings: PredictionSettings, form: Form) -> dict[str, list[str]] | None:
    """The columns of each parameter, where the corrected law is of the parent's family and all of it stands in some."""
    keeps_family = settings.family == "samples" or (settings.family == "normal" and form.shape is None)
    if not keeps_family or is_recalibrated(columns) or "softmax" in settings.transforms.values():
        return None
    places = {name: parameter_columns(name, settings, columns) for name in settings.parameters}
    found = {name: place for name, place in places.items() if place is not None}
    named = [column for place in found.values() for column in place]
    # A constant of the contract stands in no column; one column for two parameters cannot hold two corrections.
    return found if len(found) == len(places) and len(set(named)) == len(named) else None
