"""Splits of features, and the encoder's inputs of a shard, row by row, as embedding reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from congruence.tasks.data.inputs import RawInput
from congruence.tasks.data.settings import Shard, SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow


def of_features(uri: Path | str, inputs: str | list[str], **changes: Any) -> SplitSettings:
    """Settings of rows whose inputs are numbers, and whose targets are ``y``."""
    base = {"uri": str(uri), "input": inputs, "input_kind": "features", "target": "y"}
    return SplitSettings.model_validate(base | changes)


def encoder_inputs(split: Split, shard: Shard) -> Iterator[RawInput | InvalidRow]:
    """The encoder's input of each row, or why there is none: encoded image bytes, a text, or a float64 vector."""
    for read in split.input_readers(shard):
        try:
            yield read()
        except InvalidRow as invalid:
            yield invalid
