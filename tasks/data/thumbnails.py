"""Small pictures of a split's rows, read only when a plot or a report asks for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from PIL import Image

from congruence.tasks.data.split import Split
from congruence.tasks.encoders.errors import InvalidRow

PIXELS = 96


def thumbnails(split: Split) -> Callable[[Sequence[int]], list[Image.Image]]:
    """A function from row numbers to pictures of at most 96 pixels a side; a row without a picture is grey."""

    def draw(rows: Sequence[int]) -> list[Image.Image]:
        wanted = set(rows)
        pictures: dict[int, Image.Image] = {}
        for shard in split.shards:
            if not wanted.intersection(range(shard.start, shard.stop)):
                continue
            for row, raw in enumerate(split.read_encoder_inputs(shard), shard.start):
                if row in wanted:
                    pictures[row] = _picture(raw)
        return [pictures[row] for row in rows]

    return draw


def _picture(raw: object) -> Image.Image:
    if isinstance(raw, InvalidRow) or not isinstance(raw, bytes):
        return Image.new("RGB", (PIXELS, PIXELS), "lightgrey")
    with Image.open(io.BytesIO(raw)) as image:
        picture = image.convert("RGB")
    picture.thumbnail((PIXELS, PIXELS))
    return picture
