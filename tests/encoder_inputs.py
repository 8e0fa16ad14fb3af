"""The encoder's inputs of a shard, row by row, as embedding reads them."""

from __future__ import annotations

from collections.abc import Iterator

from congruence.tasks.data.inputs import RawInput
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow


def encoder_inputs(split: Split, shard: Shard) -> Iterator[RawInput | InvalidRow]:
    """The encoder's input of each row, or why there is none: encoded image bytes, a text, or a float64 vector."""
    for read in split.input_readers(shard):
        try:
            yield read()
        except InvalidRow as invalid:
            yield invalid
