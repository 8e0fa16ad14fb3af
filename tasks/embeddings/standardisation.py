"""Mean and scale of tabular features, of one split for every split of an evaluation: its index knows them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.moments import Statistics, statistics
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.runtime.sealed_records import DamagedError, unsealed

_FORMAT = 1


def with_statistics(settings: EncoderSettings, split: Split, folder: Path) -> EncoderSettings:
    """The settings with mean and scale of the valid rows of ``split`` where they are not given.

    They enter the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Args:
        settings: the encoder's.
        split: that they are fitted to.
        folder: where earlier releases kept what they found, which stands: it differs in the last digits.

    Raises:
        SplitError: no row of the split can be used.
    """
    if not settings.needs_statistics:
        return settings
    found = split.facts.present if settings.takes_missing else split.facts.complete
    try:
        mean, scale = _kept(_path(settings, split, folder)) or statistics(found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {split.name!r}: {error}") from error
    return settings.model_copy(update={"mean": mean, "scale": scale})


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the rows of ``split`` have another number of features than ``dimension``.

    Args:
        split: a split of tabular features.
        dimension: what the encoder standardises.
        fitted_on: name of the split that statistics are fitted to where they are not given.
    """
    found = split.facts.present
    size = dimension if found is None else len(found.count)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def _path(settings: EncoderSettings, split: Split, folder: Path) -> Path:
    of_all = " with missing" if settings.takes_missing else ""
    fitted = f"{_FORMAT} {split.digest} {settings.dimension} {split.settings.input_columns}{of_all}"
    named = sha256(fitted.encode()).hexdigest()
    return folder / f"{named[:32]}.json"


def _kept(path: Path) -> Statistics | None:
    try:
        content: dict[str, Any] = unsealed(path.read_bytes())
        return tuple(content["mean"]), tuple(content["scale"])
    except (OSError, DamagedError, KeyError, TypeError):
        return None
