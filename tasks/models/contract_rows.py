"""The rows on which a version's contract is tried, before it is known which ones have an embedding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.contract.exposure import EXPOSURE
from congruence.tasks.data.shards import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.encoders.settings import EncoderSettings


def model_frame(split: Split, shard: Shard) -> pd.DataFrame:
    """The model inputs of ``shard``, predictions that are stored beside them, and the exposure of its rows if any.

    The exposure, where the split names one, is the column ``EXPOSURE``.
    """
    frame = split.frame(shard, [*split.settings.model_input_columns, *split.settings.stored_columns])
    exposure = None if split.settings.exposure is None else split.design([shard]).exposure
    return frame if exposure is None else frame.assign(**{EXPOSURE: exposure})


def contract_rows(split: Split, most: int, *, missing: bool = False) -> tuple[pd.DataFrame, Array | None]:
    """Model inputs and targets of the first rows that will be evaluated, as far as one can tell: at most ``most``.

    Left out are rows that lack a finite target or what the encoder reads (unless rows may be ``missing`` features), and
    rows whose image cannot be decoded: they will have no embedding, so no version is asked for them. Targets are None
    where the split has none.
    """
    first = split.shards[0]
    frame = model_frame(split, first)
    targets = split.targets(first) if split.settings.target_columns else None
    needed = [] if missing else [name for name in frame.columns if name in split.settings.input_columns]
    usable = frame[needed].notna().all(axis=1).to_numpy()
    if targets is not None:
        usable = usable & np.isfinite(targets.reshape(len(frame), -1)).all(axis=1)
    rows = np.flatnonzero(usable)[:most]
    if split.settings.input_kind == "image":
        rows = np.array(list(_with_image(split, first, usable, most)) or rows, dtype=np.int64)
    return frame.iloc[rows], None if targets is None else targets[rows]


def _with_image(split: Split, shard: Shard, usable: Array, most: int) -> Iterator[int]:
    most_pixels = EncoderSettings().max_pixels
    for row, read in enumerate(split.input_readers(shard)):
        if most == 0:
            return
        if usable[row]:
            try:
                decode_image(read(), most_pixels)
            except InvalidRow:
                continue
            most -= 1
            yield row
