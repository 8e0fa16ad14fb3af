"""Which settings, beyond split and protocol, change an evaluation's numbers: an evaluation is found by their digest.

What only decides where, how fast or how visibly it is computed (cluster, memory, shards, tracking, gate) is left out.
"""

from __future__ import annotations

from typing import Any

from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.data.settings import STORED_ROWS, SplitSettings
from congruence.tasks.runtime.files import digest_of
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.solver import SolverSettings

_DIGITS = 16


def settings_digest(settings: EvaluationSettings, split: SplitSettings) -> str:
    """16 hexadecimal digits for how models are asked and read, how exactly systems are solved, and what is drawn.

    ``split`` is the evaluated one of the file's splits.
    """
    reference = settings.reference
    return _digest(
        {
            "contract": contract_digest(settings.predictions, split),
            "reference_contract": None if reference is None else contract_digest(settings.predictions, reference),
            "solver": _exactness(settings.solver),
            "seed": settings.seed,
            "embeddings": settings.store.dtype,
        }
    )


def entry_digest(settings: EvaluationSettings, split: SplitSettings, uri: str) -> str:
    """16 hexadecimal digits for how one version is read and asked in a way of its own; "" for as all are.

    Of one whose predictions are stored in ``split`` they are those of the predictions, after ``STORED_ROWS``.
    """
    if (stored := split.stored.get(uri)) is not None:
        return STORED_ROWS + _digest({"stored": stored.digest})
    entry = settings.model_entries.get(uri)
    if entry is None or (entry.predictions is None and entry.model_inputs is None):
        return ""
    said = None if entry.predictions is None else entry.predictions.digested()
    return _digest({"predictions": said, "model_inputs": entry.model_inputs})


def contract_digest(predictions: PredictionSettings | None, split: SplitSettings) -> str:
    """16 hexadecimal digits for what a model is given of ``split`` and how its output is read.

    Without ``predictions`` the output is read as the version's own metadata say, which never change.
    """
    said = None if predictions is None else predictions.digested()
    return _digest({"predictions": said, "model_inputs": split.model_input_columns})


_EXACT = {"exact": True, "tolerance": 3e-7}  # as runs that are already logged have it


def _exactness(solver: SolverSettings) -> dict[str, Any]:
    """Whether long splits are asked for exactly, or on landmarks that are named."""
    if solver.kind == "cholesky":
        return {**_EXACT, "kind": "cholesky"}
    return _EXACT if solver.landmarks is None else {**_EXACT, "landmarks": solver.landmarks}


def _digest(parts: dict[str, Any]) -> str:
    return digest_of(parts)[:_DIGITS]
