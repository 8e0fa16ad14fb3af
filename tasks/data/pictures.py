"""The pictures of a split: as numbers, which ``congruence.kernels.trust.columns`` measures, and as thumbnails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.kernels.threads import available_threads
from congruence.kernels.trust.columns import PICTURE_COLUMNS, PICTURE_SIDE, picture_statistics
from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image

PIXELS = 96
_MOST_PIXELS = 2**28  # more than any encoder is allowed


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


def thumbnails(split: Split) -> Callable[[Sequence[int]], list[Image.Image]]:
    """A function from row numbers to pictures of at most 96 pixels a side; a row without a picture is grey."""

    def draw(rows: Sequence[int]) -> list[Image.Image]:
        wanted = set(rows)
        pictures: dict[int, Image.Image] = {}
        for shard in split.shards:
            if not wanted.intersection(range(shard.start, shard.stop)):
                continue
            for row, read in enumerate(split.input_readers(shard), shard.start):
                if row in wanted:
                    pictures[row] = _picture(read)
        return [pictures[row] for row in rows]

    return draw


def _picture(read: Reader) -> Image.Image:
    """As the encoder sees it."""
    try:
        picture = decode_image(read(), _MOST_PIXELS).convert("RGB")
    except InvalidRow:
        return Image.new("RGB", (PIXELS, PIXELS), "lightgrey")
    picture.thumbnail((PIXELS, PIXELS))
    return picture
