"""Rows that have no embedding or cannot be asked for; new inputs, some rows as a split; what pictures are like."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.kernels.threads import available_threads
from congruence.kernels.trust.columns import PICTURE_COLUMNS, PICTURE_SIDE, picture_statistics
from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SplitSource
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.runtime.errors import SplitError, TooManyInvalidRowsError
from congruence.tasks.runtime.files import whole_file, write_whole

Shown = TypeVar("Shown")


def new_inputs(labelled: SplitSettings, uri: str, *, name: str = "inputs") -> SplitSettings:
    """Settings of the inputs at ``uri``, read as ``labelled`` is. Columns that only labelled rows
    need are left out where they are not there.
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


def split_of_rows(split: Split, rows: npt.NDArray[np.int64], path: Path, name: str) -> SplitSettings:
    """The split of these rows, each under the key or number that it has, written to ``path`` unless it is there.

    The numbers of the rows ascend; the name of the Parquet file tells split and rows.
    """
    if not path.exists():
        with whole_file(path) as stream:
            _write(split, rows, stream)
    at = {"name": name, "uri": str(path), "format": "parquet", "key": split.key_column}
    return split.settings.model_copy(update={**at, "image_root": None, "last": None, "new_dates_only": False})


def _write(split: Split, rows: npt.NDArray[np.int64], stream: BinaryIO) -> None:
    """Shard by shard, so that few rows are in memory."""
    writer: pq.ParquetWriter | None = None
    for shard in split.shards:
        first, last = np.searchsorted(rows, [shard.start, shard.stop])
        if first < last:
            frame = split.frame(shard, split.row_columns).loc[rows[first:last]]
            if writer is None:
                writer = pq.ParquetWriter(stream, _schema(split, frame))
            writer.write_table(pa.Table.from_pandas(frame, writer.schema, preserve_index=False))
    if writer is None:
        raise SplitError(f"split {split.name!r}: none of its {split.rows} rows is chosen; give more rows")
    writer.close()


def _schema(split: Split, frame: pd.DataFrame) -> pa.Schema:
    """The types of the first shard's columns; of one without a value there, that of the source."""
    found = pa.Schema.from_pandas(frame, preserve_index=False)
    types = {each.name: split.column_type(each.name) if pa.types.is_null(each.type) else each.type for each in found}
    return pa.schema(list(types.items()))


PIXELS = 96
_MOST_PIXELS = 2**28  # more than any encoder is allowed


def picture_table(split: Split, max_pixels: int) -> pd.DataFrame:
    """Brightness, contrast, detail, roughness and colourfulness of every picture of a split, (rows, 5).

    A row that holds no picture, or one of more than ``max_pixels``, has missing values.
    """

    def measured(read: Callable[[], object]) -> Array:
        try:
            return measured_picture(decode_image(read(), max_pixels))
        except InvalidRow:
            return np.full(len(PICTURE_COLUMNS), np.nan)

    with ThreadPoolExecutor(available_threads()) as threads:
        rows = [row for shard in split.shards for row in threads.map(measured, split.input_readers(shard))]
    return pd.DataFrame(np.reshape(rows, (-1, len(PICTURE_COLUMNS))), columns=list(PICTURE_COLUMNS))


def measured_picture(picture: Image.Image) -> Array:
    """The same of one picture, (5,)."""
    scaled = picture.convert("RGB").resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BOX)
    return picture_statistics(np.asarray(scaled))


LETTERS = 1_000


def thumbnails(split: Split) -> Callable[[Sequence[int]], list[Image.Image]]:
    """A function from row numbers to pictures of at most 96 pixels a side; a row without a picture is grey."""
    return lambda rows: _shown(split, rows, _picture)


def beginnings(split: Split) -> Callable[[Sequence[int]], list[str]]:
    """A function from the numbers of rows that have a text to its first 1,000 letters."""
    return lambda rows: _shown(split, rows, lambda read: str(read())[:LETTERS])


def _shown(split: Split, rows: Sequence[int], show: Callable[[Reader], Shown]) -> list[Shown]:
    wanted = set(rows)
    found: dict[int, Shown] = {}
    for shard in split.shards:
        if not wanted.intersection(range(shard.start, shard.stop)):
            continue
        for row, read in enumerate(split.input_readers(shard), shard.start):
            if row in wanted:
                found[row] = show(read)
    return [found[row] for row in rows]


def _picture(read: Reader) -> Image.Image:
    """As the encoder sees it."""
    try:
        picture = decode_image(read(), _MOST_PIXELS).convert("RGB")
    except InvalidRow:
        return Image.new("RGB", (PIXELS, PIXELS), "lightgrey")
    picture.thumbnail((PIXELS, PIXELS))
    return picture


_LISTED = 5
_REMEDY = "Repair these inputs, or raise max_invalid if the evaluation may leave them out."
LOOKED_AT = 300
"""Pictures, evenly spaced, that are decoded before an evaluation is said to be possible."""


def require_few_invalid(
    reasons: Mapping[int, str], split: Split, max_invalid: float = 0.01, folder: Path | None = None
) -> str | None:
    """What there is to say of the rows that have no embedding; None where all have one.

    Args:
        reasons: why, by row of the split.
        split: their split.
        max_invalid: the fraction of rows that may be left out.
        folder: where all of them are listed, one JSON object a line, when the message does not hold them.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows.
    """
    if not reasons:
        return None
    said = f"{len(reasons)} of {split.rows} rows have no embedding"
    return _left_out(split, said, len(reasons), max_invalid, _listed(reasons, split, folder))


def require_pictures(split: Split, max_invalid: float, max_pixels: int) -> str | None:
    """What there is to say of pictures that cannot be shown, before all are read: files of all, content of hundreds."""
    if split.settings.input_kind != "image":
        return None
    absent = split.rows_without_file()
    reasons = dict.fromkeys(absent, "its file does not exist")
    step = max(1, split.rows // LOOKED_AT)
    for shard in split.shards:
        chosen = set(range(-(-shard.start // step) * step, shard.stop, step)).difference(absent)
        for row, read in enumerate(split.input_readers(shard) if chosen else (), shard.start):
            if row in chosen:
                try:
                    decode_image(read(), max_pixels)
                except InvalidRow as invalid:
                    reasons[row] = invalid.reason
    if not reasons:
        return None
    expected = min(split.rows, len(absent) + step * (len(reasons) - len(absent)))
    said = f"{'about ' if step > 1 else ''}{expected} of {split.rows} rows have no picture"
    return _left_out(split, said, expected, max_invalid, _listed(reasons, split, None))


def _left_out(split: Split, said: str, rows: int, max_invalid: float, listed: str) -> str:
    said = f"split {split.name!r}: {said} ({rows / split.rows:.2%}"
    if rows <= max_invalid * split.rows:
        return f"{said}) and are left out:\n{listed}"
    raise TooManyInvalidRowsError(f"{said}, allowed {max_invalid:.2%}):\n{listed}\n{_REMEDY}")


def _listed(reasons: Mapping[int, str], split: Split, folder: Path | None) -> str:
    rows = sorted(reasons)
    lines = [f"  row {row} ({split.place(row)}): {reasons[row]}" for row in rows[:_LISTED]]
    if len(rows) > _LISTED:
        commonest = Counter(reasons.values()).most_common(1)[0][0]
        where = "" if folder is None else f"; all of them: {_all_of_them(reasons, split, folder)}"
        lines.append(f"  and {len(rows) - _LISTED} more, most often: {commonest}{where}")
    return "\n".join(lines)


def _all_of_them(reasons: Mapping[int, str], split: Split, folder: Path) -> Path:
    path = folder / f"{split.name.replace('/', '_')}-{split.digest[:8]}.jsonl"
    rows = ({"row": row, "place": split.place(row), "reason": reasons[row]} for row in sorted(reasons))
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path


def dates_of(settings: SplitSettings) -> list[date]:
    """Returns the dates of the files of a split, in order; none where its uri has no ``{date}``. No file is opened.

    Raises:
        SplitError: no such file or folder, or a name without a date where the uri has one.
    """
    source = SplitSource.of(settings)
    dates = source.location.dates
    return [] if dates is None else sorted({dates.date_of(path) for path in source.paths()})


def first_rows(uri: str, rows: int) -> pa.Table:
    """At most so many rows of the first file at ``uri``, before anything is said about its columns.

    Raises:
        SplitError: no such file or folder, or its format cannot be inferred.
    """
    source = SplitSource.of(SplitSettings(uri=uri, input="-"))
    held: list[pa.RecordBatch] = []
    for batch in source.batches(source.paths()[0], only_first=True):
        held.append(batch)
        if sum(each.num_rows for each in held) >= rows:
            break
    found = pa.Table.from_batches(held).slice(0, rows)
    return found.select([name for name in found.column_names if not name.startswith("__")])
