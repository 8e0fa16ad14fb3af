"""Mean and scale of tabular features, fitted once to one split and kept: every split of an evaluation is given them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data import Shard, Split
from congruence.tasks.data.errors import SplitError
from congruence.tasks.encoders import EncoderSettings, InvalidRow
from congruence.tasks.encoders.moments import Moments, moments, origin_of, statistics
from congruence.tasks.runtime.atomic_files import write_whole

logger = logging.getLogger(__name__)

_FORMAT = 1


PART_ROWS = 2**16
"""Rows whose moments are taken together. Parts begin at the same rows however the split is cut into shards."""

Part = tuple[int, int]
"""The first row of a part, and one past its last."""
Fit = Callable[[Split, list[Part], Array, bool], list[Moments | None]]
"""Takes the moments of parts of a split seen from a row, in the parts' order; the last: may rows lack values?"""


def with_statistics(settings: EncoderSettings, split: Split, folder: Path, fit: Fit | None = None) -> EncoderSettings:
    """The settings with mean and scale, fitted to the valid rows of ``split`` where they are not given.

    One pass over the split, part by part; what is found is kept in ``folder`` under the digest of the split's content,
    and enters the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Args:
        settings: the encoder's.
        split: that they are fitted to.
        folder: where they are kept.
        fit: takes the moments of the parts; by default one after the other, here. The numbers do not depend on it.

    Raises:
        SplitError: no row of the split can be used.
    """
    known = with_kept_statistics(settings, split, folder)
    if known is not None:
        return known
    try:
        missing = settings.takes_missing
        origin = origin_of(_valid_inputs(split, split.shards, missing), settings.dimension, missing=missing)
        found = [] if origin is None else (fit or fit_here)(split, parts_of(split), origin, missing)
        mean, scale = statistics(origin, found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {split.name!r}: {error}") from error
    path = _path(settings, split, folder)
    _keep(path, {"split": split.name, "digest": split.digest, "mean": mean, "scale": scale})
    logger.info("standardising by the %d features of split %s: %s", len(mean), split.name, path)
    return settings.model_copy(update={"mean": mean, "scale": scale})


def with_kept_statistics(settings: EncoderSettings, split: Split, folder: Path) -> EncoderSettings | None:
    """The settings with the mean and scale that are given, or that ``folder`` keeps; None where neither is."""
    if not settings.needs_statistics:
        return settings
    found = _kept(_path(settings, split, folder))
    if found is None:
        return None
    return settings.model_copy(update={"mean": tuple(found["mean"]), "scale": tuple(found["scale"])})


def parts_of(split: Split) -> list[Part]:
    """Rows 0 to 65,536 of a split, those after them, and so on."""
    return [(start, min(start + PART_ROWS, split.rows)) for start in range(0, split.rows, PART_ROWS)]


def fit_here(split: Split, parts: list[Part], origin: Array, missing: bool = False) -> list[Moments | None]:
    """The moments of parts of a split, seen from a row; None of a part without a valid row."""
    rows = ([Shard(0, start, stop - start, "")] for start, stop in parts)
    return [moments(_valid_inputs(split, part, missing), origin, missing=missing) for part in rows]


def _path(settings: EncoderSettings, split: Split, folder: Path) -> Path:
    of_all = " with missing" if settings.takes_missing else ""
    fitted = f"{_FORMAT} {split.digest} {settings.dimension} {split.settings.input_columns}{of_all}"
    named = sha256(fitted.encode()).hexdigest()
    return folder / f"{named[:32]}.json"


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the first valid row of ``split`` has another number of features than ``dimension``.

    Args:
        split: a split of tabular features.
        dimension: what the encoder standardises.
        fitted_on: name of the split that statistics are fitted to where they are not given.
    """
    columns = split.settings.input_columns
    if len(columns) > 1:  # of one column a row says how long its vector is
        size = len(columns)
    else:
        size = next((part.shape[-1] for part in _valid_inputs(split, split.shards, True) if len(part)), dimension)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def _valid_inputs(split: Split, shards: Sequence[Shard], missing: bool = False) -> Iterator[Any]:
    """Vectors of features, or matrices of them."""
    for shard in shards:
        matrix, reasons = split.features(shard, missing=missing)
        usable = np.delete(matrix, list(reasons), axis=0) if reasons else matrix
        if missing or np.isfinite(usable).all():
            yield usable
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
