"""Which format a split has, by its settings or by what lies at its address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from congruence.tasks.data.arrays import describe_npy, describe_npz, describe_zarr, one_npz, open_arrays
from congruence.tasks.data.dates import DateWindow
from congruence.tasks.data.errors import SplitChangedError, SplitError, changed
from congruence.tasks.data.files import file_state, joint_state
from congruence.tasks.data.huggingface import HuggingFaceTable, is_saved_dataset
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.manifest import CsvTable, JsonLinesTable
from congruence.tasks.data.parquet import ParquetTable
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.tables import Table
from congruence.tasks.data.webdataset import WebDatasetTable


@dataclass(frozen=True)
class _Reader:
    """How a format is read.

    Attributes:
        suffixes: of its files.
        describe: where the rows of a file of that state lie; copies of arrays go to the folder.
        table: the rows of files that were described, from these alone.
        paths: what is described and indexed one by one; by default the files.
        joint_files: of what is read as one, the files behind it.
        joins_types: whether a column's type follows from the values of all files.
    """

    suffixes: tuple[str, ...]
    describe: Callable[[Location, str, str, Path], FileLayout]
    table: Callable[[Location, Sequence[FileLayout]], Table] | None = None
    paths: Callable[[Location], list[str]] | None = None
    joint_files: Callable[[Location], list[str]] | None = None
    joins_types: bool = False


def _npy_files(location: Location) -> list[str]:
    return location.files((".npy",))


def _zarr_files(location: Location) -> list[str]:
    return sorted(location.filesystem.find(location.path))


_READERS = {
    "parquet": _Reader((".parquet", ".pq"), ParquetTable.describe, ParquetTable),
    "csv": _Reader((".csv",), CsvTable.describe, CsvTable, joins_types=True),
    "jsonl": _Reader((".jsonl",), JsonLinesTable.describe, JsonLinesTable, joins_types=True),
    "webdataset": _Reader((".tar",), WebDatasetTable.describe, joins_types=True),
    "npz": _Reader((".npz",), describe_npz, paths=one_npz),
    "npy": _Reader((".npy",), describe_npy, paths=lambda place: _npy_files(place)[:1], joint_files=_npy_files),
    "zarr": _Reader((), describe_zarr, paths=lambda place: [place.path], joint_files=_zarr_files),
    "huggingface": _Reader((), HuggingFaceTable.describe, HuggingFaceTable, paths=HuggingFaceTable.paths),
}
_SUFFIXES = {suffix: form for form, reader in _READERS.items() for suffix in reader.suffixes}


@dataclass(frozen=True)
class Format:
    """How a split's files are found, described one by one, and read together."""

    form: str
    location: Location
    alternatives: tuple[str, ...]
    """Columns of tar files that are written ``jpg;jpeg``."""

    @classmethod
    def of(cls, settings: SplitSettings) -> Format:
        """The format of the split.

        Raises:
            SplitError: it cannot be inferred, or nothing lies there.
        """
        window = DateWindow(settings.last, settings.since, settings.until)
        location = Location.of(settings.uri, settings.storage_options, window)
        form = _detect(location) if settings.format == "auto" else settings.format
        alternatives = [*settings.input_columns, *settings.model_input_columns] if form == "webdataset" else []
        return cls(form, location, tuple(name for name in alternatives if ";" in name))

    @property
    def joins_types(self) -> bool:
        """Whether a column's type follows from the values of all files."""
        return self._reader.joins_types

    def paths(self) -> list[str]:
        """What is described and indexed one by one: files, or the folder of arrays that are read as one."""
        find = self._reader.paths
        return self.location.files(self._reader.suffixes) if find is None else find(self.location)

    def state(self, path: str) -> str:
        """What tells that a file changed, without reading it."""
        if self._reader.joint_files is not None:
            return joint_state(self.location, self._reader.joint_files(self.location))
        return file_state(self.location.filesystem, path, self.location.is_local)

    def require_unchanged(self, layout: FileLayout) -> None:
        """The file is as its layout found it.

        Raises:
            SplitChangedError: it is another one, or gone.
        """
        if not self.location.is_local:  # object stores remember what they listed
            self.location.filesystem.invalidate_cache()
        try:
            state = self.state(layout.path)
        except FileNotFoundError:
            raise SplitChangedError(
                f"{layout.path}: is gone since the split was opened; put it back, and run again"
            ) from None
        if state != layout.state:
            raise changed(layout.path)

    def describe(self, path: str, folder: Path) -> FileLayout:
        """Where the rows of a file lie: of columnar files a footer is read, text and tar files once from end to end.

        Args:
            path: of the file.
            folder: of the index, where arrays are copied to of which not any rows can be read in place.

        Raises:
            SplitError: what lies there is not of this format.
        """
        return self._reader.describe(self.location, path, self.state(path), _copies(folder))

    def has_copies(self, layout: FileLayout, folder: Path) -> bool:
        """Whether the copies that describing made are still there."""
        return all((_copies(folder) / copy).is_file() for copy in layout.copies)

    def table(self, layouts: Sequence[FileLayout], folder: Path) -> Table:
        """The rows of files that were described, with copies in that folder. Reads nothing.

        Raises:
            SplitError: the files' columns are not alike.
        """
        if self.form == "webdataset":
            return WebDatasetTable(self.location, layouts, self.alternatives)
        table = self._reader.table
        return open_arrays(self.location, layouts, _copies(folder)) if table is None else table(self.location, layouts)

    @property
    def _reader(self) -> _Reader:
        return _READERS[self.form]


def _copies(folder: Path) -> Path:
    return folder / "arrays"


def _detect(location: Location) -> str:
    for suffix, form in _SUFFIXES.items():
        if location.path.endswith(suffix):
            return form
    if location.is_folder():
        return _detect_in_folder(location)
    if not location.is_glob and not location.filesystem.exists(location.path):
        raise SplitError(f"{location.uri}: no such file or folder; check the split's uri")
    raise SplitError(f"{location.uri}: the format does not show in the name; set format, for example to parquet or csv")


def _detect_in_folder(location: Location) -> str:
    if is_saved_dataset(location):
        return "huggingface"
    if any(location.filesystem.exists(location.child(name)) for name in ("zarr.json", ".zgroup")):
        return "zarr"
    paths = location.files(tuple(_SUFFIXES))
    found = {form for path in paths for suffix, form in _SUFFIXES.items() if path.endswith(suffix)}
    if len(found) > 1:
        raise SplitError(f"{location.uri}: the folder mixes {', '.join(sorted(found))} files; set format")
    return found.pop()
