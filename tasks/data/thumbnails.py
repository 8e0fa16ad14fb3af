"""Small pictures of a split's rows, read only when a plot or a report asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image

from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.images import decode_image

PIXELS = 96
_MOST_PIXELS = 2**28  # more than any encoder is allowed


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
    """As the encoder sees it: of 16 bits the high byte, palettes expanded."""
    try:
        picture = decode_image(read(), _MOST_PIXELS).convert("RGB")
    except InvalidRow:
        return Image.new("RGB", (PIXELS, PIXELS), "lightgrey")
    picture.thumbnail((PIXELS, PIXELS))
    return picture
