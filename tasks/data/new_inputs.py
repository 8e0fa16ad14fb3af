"""New inputs beside a labelled split: the same columns at another address, with or without targets."""

from __future__ import annotations

import pyarrow as pa

from congruence.tasks.data.formats import SplitSource
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split


def new_inputs(labelled: SplitSettings, uri: str, *, name: str = "inputs") -> SplitSettings:
    """Settings of the inputs at ``uri``, read as ``labelled`` is. Columns that only labelled rows
    need are left out where they are not there.

    Raises:
        SplitError: nothing that can be read at ``uri``.
    """
    read = labelled.model_copy(update={"uri": uri, "format": "auto", "name": name})
    source = SplitSource.of(read)
    present = set(source.full_schema(source.paths()[0]).names)
    return read.model_copy(
        update={
            "key": read.key if read.key in present else None,
            "target": read.target if set(read.target_columns) <= present else None,
            "slices": [column for column in read.slices if column in present],
            **{role: column if column in present else None for role, column in read.design_columns.items()},
        }
    )


def rows_without_integers(labelled: Split, fresh: Split) -> dict[int, str]:
    """Rows of ``fresh`` that lack a model input which is a whole number in ``labelled``, and why, by row.

    No model that takes integers can be asked for them: one such row would have all rows of its batch refused.
    """
    names = [name for name in labelled.settings.model_input_columns if pa.types.is_integer(labelled.column_type(name))]
    found: dict[int, str] = {}
    for shard in fresh.shards if names else ():
        frame = fresh.frame(shard, names)
        for name in names:
            for row in frame.index[frame[name].isna()]:
                found.setdefault(int(row), f"model input {name!r} is missing, where the labelled split has integers")
    return dict(sorted(found.items()))


def rows_without_features(fresh: Split) -> dict[int, str]:
    """Rows of a split of tabular features that lack one, and why, by row: they have no embedding."""
    if fresh.settings.input_kind != "features":
        return {}
    found = {shard.start + row: reason for shard in fresh.shards for row, reason in fresh.features(shard)[1].items()}
    return dict(sorted(found.items()))


def in_words(fresh: Split, lacking: dict[int, str], others: str = "the others are scored") -> str:
    """What is said of rows that are left out, before the work on the others."""
    first, why = next(iter(lacking.items()))
    rows = "1 row is" if len(lacking) == 1 else f"{len(lacking):,} rows are"
    return f"{rows} left out of {fresh.rows:,}: {fresh.place(first)}: {why}; {others}"
