"""What scores read of a split and of a version's rows, wherever these lie: in a store, or in memory.

Of a split also the named features of rows, which are what encoder and model are given that is not an image, a text or
a vector, and the embeddings in few dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.tasks.data.shards import Shard
from congruence.tasks.scores.segments import searched_rows

if TYPE_CHECKING:
    from congruence.kernels.dependence.blocks import RowDependence
    from congruence.kernels.distributions import Distribution
    from congruence.tasks.data.settings import SplitSettings
    from congruence.tasks.data.shards import SampleDesign

MOST_VALUES = 30
"""Distinct values of a column of text beyond which it is a name rather than a feature."""
HIGHEST, LOWEST = 2_000, 10
"""Rows of the highest CCE, and of the lowest, that a report shows."""
_ROWS_AT_ONCE = 2**16

AXES = 8
"""Two to draw, the others to tell which rows are near each other."""


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


def rows_looked_at(cce: Array, seed: int) -> tuple[Array, Array]:
    """Which of the evaluated rows features are read of: of all of them a long split of many columns has no room.

    Returns:
        Those in which places are looked for (``searched_rows``), the same for every version, and these with the rows
        of highest and of lowest CCE; both in order.
    """
    logged = cce.astype(np.float32)  # in which a report orders them: of equal ones it shows the first
    lowest, highest = (np.argsort(sign * logged, kind="stable") for sign in (1, -1))
    searched = np.sort(searched_rows(len(cce), seed))
    return searched, np.union1d(searched, np.concatenate([lowest[:LOWEST], highest[:HIGHEST]]))


def named_features(split: SplitRows, rows: Array) -> pd.DataFrame:
    """Columns of numbers, truth values or few words of some rows of the split; the index is the row number.

    They are the inputs of encoder and model and the slices, without the targets; none where these are all images, texts
    or vectors.

    Args:
        split: the split.
        rows: row numbers, in order.
    """
    settings = split.settings
    inputs = settings.input_columns if settings.input_kind == "features" else []
    given = [name for name in settings.model_input_columns if name not in settings.input_columns]
    columns = list(dict.fromkeys([*inputs, *given, *settings.slices]))
    columns = [name for name in columns if name not in settings.target_columns]
    if not columns or not len(rows):
        return pd.DataFrame(index=pd.Index(rows))
    parts = []
    for start in range(0, split.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, split.rows)
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        if len(here):
            parts.append(split.frame(Shard(0, start, stop - start, ""), columns).iloc[here - start].set_index(here))
    frame = pd.concat(parts)
    return frame[[name for name in frame if _is_feature(frame[name])]]


def numbers_of_inputs(split: SplitRows, features: pd.DataFrame) -> dict[str, Array]:
    """The columns of numbers among ``features`` that the encoder is given, by which regions of its space are named."""
    if split.settings.input_kind != "features":
        return {}
    inputs = features[[name for name in split.settings.input_columns if name in features]]
    return {str(name): inputs[name].to_numpy() for name in inputs.select_dtypes("number").columns}


def principal_axes(rows: ScoredRows, sample: Array, chosen: Array) -> pd.DataFrame:
    """Coordinates of ``chosen`` rows along the principal axes of ``sample``, (k, min(8, d)).

    At least two columns, zeros beyond d; the index is the row number in the split.

    Args:
        rows: of the split.
        sample: a random sample of the valid rows, by their numbers among these, in order.
        chosen: these and others.
    """
    x = rows.embeddings_of(chosen)
    whole = x[np.isin(chosen, sample)].astype(np.float64)
    mean = whole.mean(axis=0)
    _, axes = np.linalg.eigh(whole.T @ whole / len(whole) - np.outer(mean, mean))
    leading = axes[:, : -AXES - 1 : -1]
    picture = np.zeros((len(chosen), max(2, leading.shape[1])), dtype=np.float32)  # to look at
    picture[:, : leading.shape[1]] = (x - mean) @ leading
    return pd.DataFrame(picture, index=np.flatnonzero(rows.valid)[chosen])


def _is_feature(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return True
    known = column.dropna()
    return all(isinstance(value, (str, bool)) for value in known) and bool(known.nunique() <= MOST_VALUES)
