"""The index of a split: made file by file, kept by the state of the files, merged into shards and digests.

What is kept in a folder, each by a name of its own:

    layouts/    where the rows of a file lie; a text file is read once for it, of others a footer
    parts/      the rows of a file (see ``parts``), by the columns that settings name
    splits/     the shards of a split in the present state of all its files
    arrays/     copies of arrays of which not any rows can be read in place

Every function takes plain addresses, so that it can run anywhere that sees the source and the folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path

from congruence.tasks.data.digests import ROW_BYTES, combine
from congruence.tasks.data.errors import SplitChangedError, SplitError
from congruence.tasks.data.formats import Format
from congruence.tasks.data.inputs import InputColumns
from congruence.tasks.data.layouts import FileLayout, joined_kinds, layout_name
from congruence.tasks.data.locations import Location
from congruence.tasks.data.merging import merged
from congruence.tasks.data.parquet import ParquetTable
from congruence.tasks.data.parts import (
    PATH,
    STATE,
    PartFacts,
    fixed_bytes,
    is_whole,
    read_facts,
    write_part,
)
from congruence.tasks.data.roles import checked_inputs, described_columns
from congruence.tasks.data.settings import WINDOW_KEYS, SplitSettings
from congruence.tasks.data.tables import Table
from congruence.tasks.runtime.files import load_record, save_record

_FORMAT = "5"
_PART_FORMATS = {"image": "4", "text": "4", "features": "5"}


def source_files(settings: SplitSettings) -> list[str]:
    """The files of a split, each of which is indexed alone: arrays that are read side by side count as one.

    Raises:
        SplitError: no such file or folder, or its format cannot be inferred.
    """
    return Format.of(settings).paths()


def describe_file(settings: SplitSettings, file: str, folder: str | Path) -> FileLayout:
    """Where the rows of one of ``source_files`` lie, as kept in ``folder`` for as long as the file does not change.

    Raises:
        SplitError: the file is not of its format.
    """
    form = Format.of(settings)
    return _layout(form, file, form.state(file), Path(folder))


def check_files(settings: SplitSettings, folder: str | Path) -> dict[str, str]:
    """The kinds of the columns of all files together, which ``index_file`` asks for; empty where files have types.

    Raises:
        SplitError: files of unlike columns, a column that does not exist or of another type, no rows.
    """
    return _Plan.of(settings, Path(folder)).kinds


def require_columns(settings: SplitSettings, folder: str | Path) -> None:
    """Refuse a split whose first file lacks a column: it alone is looked at, as ``describe_file`` does.

    Raises:
        SplitError: no such file, a file that is not of its format, a column that does not exist or of another type.
    """
    form, folder = Format.of(settings), Path(folder)
    first, *others = form.paths()
    if form.joins_types and others:
        return  # the types of its columns follow from all files
    layout = _layout(form, first, form.state(first), folder)
    table = form.table([layout], folder)
    if table.rows:  # an empty file may be one of many
        checked_inputs(settings, table, form.location)


def index_file(settings: SplitSettings, file: str, folder: str | Path, kinds: Mapping[str, str] | None = None) -> str:
    """Index one of ``source_files``, unless that was done in its present state; returns the path of its part.

    ``folder`` keeps the index and is seen by all that share the work; ``kinds`` are those of ``check_files``.

    Raises:
        SplitError: an empty key, or a damaged file.
    """
    form = Format.of(settings)
    layout = _typed(_layout(form, file, form.state(file), Path(folder)), kinds or {})
    return str(_part(settings, form, layout, Path(folder))[0])


@dataclass(frozen=True)
class SplitIndex:
    """A split that was indexed: where its rows lie, its shards, and what is known of them.

    Attributes:
        table: the rows in the source.
        form: how its files are read.
        layouts: of the files, as they were indexed: with their size and times, or an object's ETag.
        inputs: how the encoder's inputs are read from it.
        rows: the index of the rows, see ``parts``.
        shard_rows: of each shard but the last.
        shard_digests: of each shard's inputs.
        digest: of every row's content.
        facts: of all rows.
    """

    table: Table
    form: Format
    layouts: Sequence[FileLayout]
    inputs: InputColumns
    rows: ParquetTable
    shard_rows: int
    shard_digests: list[str]
    digest: str
    facts: PartFacts

    def require_unchanged(self, start: int, stop: int) -> None:
        """To be asked after rows ``start`` to ``stop`` were read and before they are used.

        Raises:
            SplitChangedError: a file that holds some of them is another one, or gone.
        """
        if start >= stop:
            return
        first, last = bisect_right(self._starts, start) - 1, bisect_left(self._starts, stop)
        for layout in self.layouts[first:last]:
            self.form.require_unchanged(layout)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(layout.rows for layout in self.layouts)]


def split_index(settings: SplitSettings, folder: Path) -> tuple[str, SplitIndex]:
    """The name under which the split's index is kept in its present state, and the index: found, or made now.

    Raises:
        SplitError: what makes a split unusable, see ``open_split``.
    """
    name, found = kept_index(settings, folder)
    return name, found or _make(settings, folder, name)


def kept_index(settings: SplitSettings, folder: Path) -> tuple[str, SplitIndex | None]:
    """The name of the split's index in its present state, and the index where it is kept."""
    form = Format.of(settings)
    states = [(path, form.state(path)) for path in form.paths()]
    name = _name(_FORMAT, _described(settings), str(settings.shard_rows), *(text for pair in states for text in pair))
    found = load_index(settings, folder, name)
    return name, found if found is not None and _as_indexed(found.rows, found.inputs) else None


def load_index(settings: SplitSettings, folder: Path, name: str) -> SplitIndex | None:
    """The index of that name as it is kept, whatever has become of the source; None where it is not, or damaged."""
    said = load_record(folder / "splits" / f"{name}.json")
    if said is None or settings.shard_rows not in (None, said["shard_rows"]):
        return None
    form = Format.of(settings)
    kept = [_kept_layout(form, layout, folder) for layout in said["layouts"]]
    parts = [folder / "parts" / part for part in said["parts"]]
    if any(one is None for one in kept) or any(read_facts(part) is None for part in parts):
        return None
    layouts = [_typed(one, said["kinds"]) for one in kept if one is not None]
    table = form.table(layouts, folder)
    inputs = checked_inputs(settings, table, form.location)
    shards = [said["shards"][at : at + 2 * ROW_BYTES] for at in range(0, len(said["shards"]), 2 * ROW_BYTES)]
    facts = PartFacts.from_json(said["facts"])
    return SplitIndex(table, form, layouts, inputs, _rows(parts), said["shard_rows"], shards, said["digest"], facts)


def discard_damaged(rows: ParquetTable) -> int:
    """Remove the parts of an index that cannot be read from end to end, and return their number.

    The next opening makes them again.
    """
    damaged = [path for path in map(Path, rows.paths_of_files) if not is_whole(path)]
    for path in damaged:
        path.unlink(missing_ok=True)
    return len(damaged)


@cache
def own_folder() -> Path:
    """A folder for indexes that nobody asked to keep: it goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="congruence-index-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


@dataclass(frozen=True)
class _Plan:
    """All files of a split, described and checked together."""

    form: Format
    layouts: list[FileLayout]
    kinds: dict[str, str]
    table: Table
    inputs: InputColumns

    @classmethod
    def of(cls, settings: SplitSettings, folder: Path) -> _Plan:
        form = Format.of(settings)
        layouts = [_layout(form, path, form.state(path), folder) for path in form.paths()]
        kinds = joined_kinds(layouts)
        layouts = [_typed(layout, kinds) for layout in layouts]
        table = form.table(layouts, folder)
        inputs = checked_inputs(settings, table, form.location)
        if table.rows == 0:
            raise SplitError(f"{table.location}: holds no rows; give at least one")
        return cls(form, layouts, kinds, table, inputs)


def _make(settings: SplitSettings, folder: Path, name: str) -> SplitIndex:
    plan = _Plan.of(settings, folder)
    parts, facts = [], PartFacts()
    for layout in plan.layouts:
        path, found = _part(settings, plan.form, layout, folder)
        parts.append(path)
        facts.join(found)
    if settings.weight is not None and facts.weights[0] == 0.0:
        raise SplitError(
            f"{plan.table.location}: column {settings.weight!r} (weight) is 0 in all {facts.rows:,} rows; at least one "
            "row must count: name another column, or leave weight out"
        )
    rows = _rows(parts)
    try:
        shards, digest = merged(settings, plan.table, plan.inputs, rows)
    except SplitError:
        if not discard_damaged(rows):
            raise
        return _make(settings, folder, name)
    shard_rows = settings.rows_of_a_shard(plan.table.rows)
    content = {
        "shard_rows": shard_rows,
        "layouts": [layout_name(layout.path, layout.state) for layout in plan.layouts],
        "kinds": plan.kinds,
        "parts": [path.name for path in parts],
        "shards": "".join(shards),
        "digest": digest,
        "facts": facts.to_json(),
    }
    save_record(folder / "splits" / f"{name}.json", content)
    return SplitIndex(plan.table, plan.form, plan.layouts, plan.inputs, rows, shard_rows, shards, digest, facts)


def _layout(form: Format, file: str, state: str, folder: Path) -> FileLayout:
    kept = _kept_layout(form, layout_name(file, state), folder)
    if kept is not None:
        return kept
    layout = form.describe(file, folder)
    save_record(folder / "layouts" / f"{layout_name(file, layout.state)}.json", layout.to_json())
    return layout


def _kept_layout(form: Format, name: str, folder: Path) -> FileLayout | None:
    said = load_record(folder / "layouts" / f"{name}.json")
    layout = None if said is None else FileLayout.from_json(said)
    return layout if layout is not None and form.has_copies(layout, folder) else None


def _typed(layout: FileLayout, kinds: Mapping[str, str]) -> FileLayout:
    return replace(layout, kinds=dict(kinds)) if kinds else layout


def _part(settings: SplitSettings, form: Format, layout: FileLayout, folder: Path) -> tuple[Path, PartFacts]:
    """The part of a file and what it says, made where it is missing, damaged, or of images that changed."""
    table = form.table([layout], folder)
    inputs = checked_inputs(settings, table, form.location)
    kinds = (f"{name} {table.schema.field(name).type}" for name in described_columns(settings, table, inputs))
    name = _name(_PART_FORMATS[settings.input_kind], _described(settings), layout.path, layout.state, *kinds)
    path = folder / "parts" / f"{name}.parquet"
    facts = read_facts(path)
    if facts is None or not _as_indexed(_rows([path]), inputs):
        facts = write_part(path, settings, table, inputs, path if facts is not None else None)
        try:
            form.require_unchanged(layout)
        except SplitChangedError:  # its rows may be of two files
            path.unlink(missing_ok=True)
            raise
    return path, facts


def _rows(parts: Sequence[Path]) -> ParquetTable:
    location = Location.of(str(parts[0].parent), {})
    return ParquetTable(location, [ParquetTable.describe(location, str(part), "", parts[0].parent) for part in parts])


def _as_indexed(rows: ParquetTable, inputs: InputColumns) -> bool:
    """Whether the part can be read, and the files that its rows point to are as they were."""
    if not inputs.lie_outside:
        return True
    try:
        for batch in rows.batches([PATH, STATE], 0, rows.rows):
            if inputs.outer_states(batch.column(PATH)) != fixed_bytes(batch.column(STATE)):
                return False
    except SplitError:
        return False
    return True


def _described(settings: SplitSettings) -> str:
    return settings.model_dump_json(exclude={"name", "uri", "storage_options", "shard_rows", *WINDOW_KEYS})


def _name(*parts: str) -> str:
    return combine(part.encode() for part in parts)
