"""Mean and scale of tabular features, of one split for every split of an evaluation: its index knows them."""

from __future__ import annotations

from functools import reduce
from operator import add

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.features import statistics
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.runtime.errors import SplitError


def with_statistics(settings: EncoderSettings, *splits: Split) -> EncoderSettings:
    """The settings with mean and scale of the valid rows of ``splits`` where they are not given.

    They enter the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Raises:
        SplitError: no row of the splits can be used.
    """
    if not settings.needs_statistics:
        return settings
    moments = [each.facts.present if settings.takes_missing else each.facts.complete for each in splits]
    known = [each for each in moments if each is not None]
    found = reduce(add, known) if known else None
    try:
        mean, scale = statistics(found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {splits[0].name!r}: {error}") from error
    return settings.model_copy(update={"mean": mean, "scale": scale})


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the rows of ``split`` have another number of features than ``dimension``.

    ``fitted_on`` names the split that statistics are fitted to where they are not given.
    """
    found = split.facts.present
    size = dimension if found is None else len(found.count)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )
