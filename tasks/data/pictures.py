"""The pictures of a split as numbers: what ``congruence.kernels.support.pictures`` measures of each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.kernels.support.pictures import PICTURE_COLUMNS, PICTURE_SIDE, picture_statistics
from congruence.kernels.threads import available_threads
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.images import decode_image


def picture_table(split: Split, max_pixels: int) -> pd.DataFrame:
    """Brightness, contrast, detail, roughness and colourfulness of every picture of a split, (rows, 5).

    A row that holds no picture, or one of more than ``max_pixels``, has missing values.
    """

    def measured(read: Callable[[], object]) -> Array:
        try:
            return measured_picture(decode_image(read(), max_pixels))
        except InvalidRow:
            return np.full(len(PICTURE_COLUMNS), np.nan)

    with ThreadPoolExecutor(available_threads()) as threads:
        rows = [row for shard in split.shards for row in threads.map(measured, split.input_readers(shard))]
    return pd.DataFrame(np.reshape(rows, (-1, len(PICTURE_COLUMNS))), columns=list(PICTURE_COLUMNS))


def measured_picture(picture: Image.Image) -> Array:
    """The same of one picture, (5,)."""
    scaled = picture.convert("RGB").resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BOX)
    return picture_statistics(np.asarray(scaled))
