"""What is said of new inputs of a version by the labelled rows of a split: scores, and reasons in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import EXACT_ROWS, LEADING
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.spectrum import Spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.trust.scorer import InputScores, input_scorer
from congruence.kernels.trust.support import FEWEST_ROWS
from congruence.tasks.data.split import Split
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.sentences.inputs import Rows, reasons


def score_new_inputs(
    protocol: EvaluationProtocol,
    known: EvaluatedRows,
    asked: EvaluatedRows,
    label: str,
    result: CongruenceResult,
    *,
    pictures: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    withhold: Any | None = None,
    seed: int = 0,
) -> InputScores:
    """What is said of the valid rows of ``asked`` by the labelled rows ``known``, with reasons in sentences.

    Args:
        protocol: under which the CCE was measured.
        known, asked: with the predictions of the version ``label``.
        result: its CCE and noise floor at the valid rows of ``asked``.
        pictures: what ``picture_table`` says of the rows of both splits, where they are images.
        withhold: see ``WithholdingRule.of``.
        seed: of folds, hold-out and draws.
    """
    dtype = np.float64 if int(known.valid.sum()) <= EXACT_ROWS else np.float32
    raw, new = (rows.embeddings().astype(dtype) for rows in (known, asked))
    y = known.targets()
    driver = HeldSplit(raw, y).driver(protocol, {}, 0)
    system = driver.system(min(LEADING, driver.n))  # only the leading spectrum is read
    x, query = protocol.apply(raw), protocol.apply(new)
    if pictures is None:
        columns, new_columns = table_columns(known), table_columns(asked)
    else:
        columns, new_columns = (
            table[rows.valid].reset_index(drop=True) for table, rows in zip(pictures, (known, asked), strict=True)
        )
    design = known.split.design().rows(known.valid)
    spectrum = Spectrum.of(system)
    scorer = input_scorer(
        x,
        spectrum,
        spectrum.smoother(x),
        y,
        known.all_predictive(label),
        raw=raw,
        columns=columns,
        withhold=withhold,
        groups=design.groups,
        time=design.time,
        output_kernel=driver.look_at([]).output_kernel(protocol, system),
        keys=_keys(known),
        seed=seed,
    )
    scores = scorer.score(query, raw=new, columns=new_columns, keys=_keys(asked), result=result)
    of_split, of_inputs = Rows(raw, columns, _keys(known)), Rows(new, new_columns)
    return replace(scores, reason=reasons(scorer.support, scores, of_split, of_inputs))


def table_columns(rows: EvaluatedRows) -> pd.DataFrame | None:
    """The columns of the valid rows that encoder and model read, in that order; None of images, texts and vectors."""
    settings = rows.split.settings
    if settings.input_kind != "features" or len(settings.input_columns) == 1 != rows.store.dimension:
        return None
    names = list(dict.fromkeys([*settings.input_columns, *settings.model_input_columns]))
    frames = [rows.split.frame(shard, names) for shard in rows.split.shards]
    return pd.concat(frames, ignore_index=True)[rows.valid].reset_index(drop=True)


def zero_embeddings(protocol: EvaluationProtocol, rows: EvaluatedRows) -> dict[int, str]:
    """Rows, once they are embedded, whose embedding has no direction though the protocol needs one, and why.

    Some encoders give zeros to a blank image, and standardised features are zeros at the mean of each.
    """
    if not protocol.normalize:
        return {}
    zeros = np.flatnonzero(rows.valid)[~rows.embeddings().any(axis=1)]
    why = f"its embedding is all zeros and has no direction; protocol {protocol.name!r} needs unit norm"
    return dict.fromkeys(zeros.tolist(), why)


def without_zeros(protocol: EvaluationProtocol, rows: EvaluatedRows) -> EvaluatedRows:
    """``rows`` without their ``zero_embeddings``."""
    zeros = zero_embeddings(protocol, rows)
    return replace(rows, left_out={**rows.left_out, **zeros}) if zeros else rows


def require_enough_rows(split: Split) -> None:
    """Raise InvalidInputError where a labelled split is too short to say what is usual."""
    if split.rows < FEWEST_ROWS:
        raise InvalidInputError(
            f"split {split.name!r}: {split.rows} rows; at least {FEWEST_ROWS} labelled rows must say what is usual: "
            "name a longer split with --split"
        )


def _keys(rows: EvaluatedRows) -> Any:
    return np.asarray(rows.split.keys())[rows.valid]
