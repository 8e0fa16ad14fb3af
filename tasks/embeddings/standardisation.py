"""Mean and scale of tabular features, of one split for every split of an evaluation: its index knows them."""

from __future__ import annotations

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.moments import statistics
from congruence.tasks.encoders.settings import EncoderSettings


def with_statistics(settings: EncoderSettings, split: Split) -> EncoderSettings:
    """The settings with mean and scale of the valid rows of ``split`` where they are not given.

    They enter the encoder's preprocessing digest, so that embeddings by other statistics never meet these.

    Raises:
        SplitError: no row of the split can be used.
    """
    if not settings.needs_statistics:
        return settings
    found = split.facts.present if settings.takes_missing else split.facts.complete
    try:
        mean, scale = statistics(found, settings.dimension)
    except InvalidInputError as error:
        raise SplitError(f"split {split.name!r}: {error}") from error
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
