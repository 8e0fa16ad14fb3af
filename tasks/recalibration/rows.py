"""Which rows a correction is fitted on, and which it is judged on: never the same."""

from __future__ import annotations

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import HoldOut, hold_out
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.shards import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.models.version import ModelVersion

FITTED_ON = "congruence.fitted_on"
"""Tag of a version: the digest of the split of which it has seen targets."""

FITTED_UNTIL = "congruence.fitted_until"
"""Tag of a version: the last date of the rows it was fitted on, where these come by date. Looks at it begin after."""

_DIGITS = 32


def halves_of(split: Split) -> HoldOut:
    """Of each row of a split, whether a correction may see it, and whether it is held out: the same for all versions.

    Rows that the split says may depend on each other are not on both sides.
    """
    design = split.design()
    return hold_out(keys_of(split), RowDependence.of(split.rows, groups=design.groups, time=design.time))


def described(settings: SplitSettings) -> str:
    """Which rows a correction is fitted on, and which it is to be judged on, in words."""
    if settings.groups is not None:
        return f"half of them by {settings.groups}: judge it on the other half"
    if settings.time is not None:
        return f"the earlier ones by {settings.time}: judge it on the later ones"
    return "half of them by key: judge it on the other half"


def fitted_on(split_digest: str) -> str:
    """The value of ``FITTED_ON`` for a split."""
    return split_digest[:_DIGITS]


def has_seen(version: ModelVersion, split_digest: str) -> bool:
    """Whether a version was fitted on targets of this split, so that it is not to be judged on all of it."""
    return version.tags.get(FITTED_ON) == fitted_on(split_digest)


def keys_of(split: Split) -> Array:
    """The key of every row of the split."""
    return split.key_values(Shard(0, 0, split.rows, "")).to_numpy()
