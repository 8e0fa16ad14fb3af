"""Tables of an evaluation: the small one that MLflow's page can show, whatever the number of rows, and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.metrics.registry import explained_columns

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LONGEST_TEXT = 120
_WRITTEN_ROWS = 2**20  # of a row group
_MOST_SLICE_COLUMNS = 8


def points_table(evaluation: Evaluation, rows: int) -> pd.DataFrame:
    """The ``rows`` highest and lowest CCE and every column's quantiles, one table with a column ``part``."""
    scores = evaluation.valid_scores
    explained = explained_columns()
    columns = [name for name in explained if name in scores and name not in ("valid", "reason")]
    extra = [name for name in scores.columns if name not in explained][:_MOST_SLICE_COLUMNS]
    count = min(rows, len(scores) // 2)
    from congruence.tasks.plots.evaluation import extreme_rows  # and with it Matplotlib, which no other table needs

    highest, lowest = extreme_rows(evaluation, count)
    worst, best = (scores.loc[list(chosen), columns + extra] for chosen in (highest, lowest))
    with np.errstate(invalid="ignore"):  # between two infinite scores lies no number, and none is shown
        numeric = [name for name in columns if pd.api.types.is_numeric_dtype(scores[name])]
        # Column by column: all at once would be copied, and copied again in order.
        numbers = pd.DataFrame({name: scores[name].quantile(list(QUANTILES)) for name in numeric})
    parts = [
        worst.assign(row=worst.index, part=[f"highest CCE {i + 1}" for i in range(count)]),
        best.assign(row=best.index, part=[f"lowest CCE {i + 1}" for i in range(count)]),
        numbers.assign(part=[f"quantile {q:g} of each column" for q in QUANTILES]),
    ]
    return pd.DataFrame(
        [record for part in parts for record in part.to_dict("records")], columns=["part", "row", *columns, *extra]
    )


def table_json(table: pd.DataFrame) -> str:
    """A table in the form that MLflow's page renders: columns and data, no NaN, numbers at six digits."""
    data = [[_cell(value) for value in record] for record in table.itertuples(index=False)]
    return json.dumps({"columns": [str(name) for name in table.columns], "data": data}, allow_nan=False)


def _cell(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        if not np.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def write_parquet(table: pd.DataFrame, path: Path, *, single: Sequence[str] = ()) -> None:
    """Write a table with a checksum of each page, a million rows at a time, so that no copy of all of it is made.

    Args:
        table: its index is not written; texts by their code are texts.
        path: of the file.
        single: columns whose numbers of double precision are written in single precision, which takes half the place.
    """
    narrow: dict[str, Any] = {name: "float32" for name in single if table[name].dtype == np.float64}
    narrow |= dict.fromkeys(table.select_dtypes("category").columns, str)
    # A column of reasons may have its first one in the last part.
    first = {name: table[name].dropna().head(1) for name in table.columns}
    types = pa.schema([pa.field(str(name), pa.array(_narrow(first[name], narrow)).type) for name in table.columns])
    with pq.ParquetWriter(path, types, write_page_checksum=True) as writer:
        for start in range(0, max(len(table), 1), _WRITTEN_ROWS):
            part = table.iloc[start : start + _WRITTEN_ROWS].astype(narrow)
            writer.write_table(pa.Table.from_pandas(part, types, preserve_index=False))


def read_parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Returns columns of a file of ``write_parquet``.

    Raises:
        OSError: the file is damaged.
    """
    table: pd.DataFrame = pq.read_table(path, columns=list(columns), page_checksum_verification=True).to_pandas()
    return table


def _narrow(column: pd.Series[Any], types: dict[str, Any]) -> pd.Series[Any]:
    return column.astype(types[str(column.name)]) if column.name in types else column
