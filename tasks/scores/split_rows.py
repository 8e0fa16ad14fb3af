"""What scores read of a split and of a version's rows, wherever these lie: in a store, or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from congruence.kernels.arrays import Array
    from congruence.kernels.dependence.blocks import RowDependence
    from congruence.kernels.distributions import Distribution
    from congruence.tasks.data.columns import SampleDesign
    from congruence.tasks.data.settings import SplitSettings
    from congruence.tasks.data.split import Shard


class SplitRows(Protocol):
    """Labelled rows in a fixed order, see ``tasks.data.split.Split``."""

    name: str
    digest: str
    rows: int
    settings: SplitSettings

    @property
    def key_column(self) -> str:
        """The name of the key's column in frames."""

    @property
    def period(self) -> str:
        """The first and the last date of its files; "" without any."""

    def frame(self, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """These columns of ``shard``, one row per row."""

    def key_values(self, shard: Shard) -> pd.Series[Any]:
        """The keys of ``shard``."""

    def design(self) -> SampleDesign:
        """Groups, times and weights of all rows."""


class ScoredRows(Protocol):
    """The rows of a split that are evaluated, with what versions predict for them."""

    @property
    def split(self) -> Any:
        """Their split: ``SplitRows``, or of pictures a ``tasks.data.split.Split``."""

    @property
    def valid(self) -> Array:
        """Which rows of the split are evaluated, (rows,)."""

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is not evaluated, by row of the split."""

    def embeddings(self) -> Array:
        """Of the valid rows, (v, d)."""

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, by their numbers among these in increasing order, (k, d)."""

    def all_targets(self) -> Array:
        """Of the valid rows, (v,) or (v, q)."""

    def all_predictive(self, version: str) -> Distribution:
        """The predictions of a version at the valid rows."""

    def all_keys(self) -> Array:
        """Numbers that stand for the keys of the valid rows, (v,)."""

    def all_design(self) -> SampleDesign:
        """Groups, times and weights of the valid rows."""

    def dependence(self) -> RowDependence | None:
        """Which of the valid rows may depend on each other."""
