"""Mean and scale of tabular features, fitted once to one split and kept: every split of an evaluation is given them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders import EncoderSettings, InvalidRow, standardisation
from congruence.tasks.sources import Split
from congruence.tasks.sources.errors import SplitError
from congruence.tasks.whole_files import write_whole

logger = logging.getLogger(__name__)

_FORMAT = 1


def with_statistics(settings: EncoderSettings, split: Split, folder: Path) -> EncoderSettings:
    """The settings with mean and scale, fitted to the valid rows of ``split`` where they are not given.

    One stream over the split; what is found is kept in ``folder`` under the digest of the split's content, and enters
    the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Raises:
        SplitError: no row of the split can be used.
    """
    if not settings.needs_statistics:
        return settings
    named = sha256(f"{_FORMAT} {split.digest} {settings.dimension} {split.settings.input_columns}".encode()).hexdigest()
    path = folder / f"{named[:32]}.json"
    found = _kept(path)
    if found is None:
        try:
            mean, scale = standardisation(_valid_inputs(split), settings.dimension)
        except InvalidInputError as error:
            raise SplitError(f"split {split.name!r}: {error}") from error
        found = {"split": split.name, "digest": split.digest, "mean": mean, "scale": scale}
        _keep(path, found)
        logger.info("standardising by the %d features of split %s: %s", len(mean), split.name, path)
    update = {"mean": tuple(found["mean"]), "scale": tuple(found["scale"])}
    return settings.model_copy(update=update)


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the first valid row of ``split`` has another number of features than ``dimension``.

    Args:
        split: a split of tabular features.
        dimension: what the encoder standardises.
        fitted_on: name of the split that statistics are fitted to where they are not given.
    """
    size = next((part.shape[-1] for part in _valid_inputs(split) if len(part)), dimension)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def _valid_inputs(split: Split) -> Iterator[Any]:
    """Vectors of features, or matrices of them."""
    for shard in split.shards:
        matrix, reasons = split.features(shard)
        valid = np.ones(len(matrix), dtype=bool)
        valid[list(reasons)] = False
        if np.isfinite(matrix[valid]).all():
            yield matrix[valid]
        else:  # vectors of several lengths
            yield from (row for row in split.read_encoder_inputs(shard) if not isinstance(row, InvalidRow))


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        checksum = content.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return content if checksum == _checksum(content) else None


def _keep(path: Path, found: dict[str, Any]) -> None:
    write_whole(path, json.dumps(found | {"checksum": _checksum(found)}, indent=1).encode())


def _checksum(found: dict[str, Any]) -> str:
    return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]
