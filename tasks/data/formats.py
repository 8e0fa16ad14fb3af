"""Which format a split has, by its settings or by what lies at its address."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from congruence.tasks.data.arrays import describe_npy, describe_npz, describe_zarr, one_npz, open_arrays
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.files import file_state, joint_state
from congruence.tasks.data.huggingface import HuggingFaceTable, is_saved_dataset
from congruence.tasks.data.layouts import FileLayout
from congruence.tasks.data.locations import Location
from congruence.tasks.data.manifest import ManifestTable
from congruence.tasks.data.parquet import ParquetTable
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.tables import Table
from congruence.tasks.data.webdataset import WebDatasetTable
from congruence.tasks.data.zarr_array import zarr_files

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".tar": "webdataset",
    ".npz": "npz",
    ".npy": "npy",
}


@dataclass(frozen=True)
class Format:
    """How a split's files are found, described one by one, and read together."""

    form: str
    location: Location
    alternatives: tuple[str, ...]
    """Columns of tar files that are written ``jpg;jpeg``."""

    @classmethod
    def of(cls, settings: SplitSettings) -> "Format":
        """The format of the split.

        Raises:
            SplitError: it cannot be inferred, or nothing lies there.
        """
        location = Location.of(settings.uri, settings.storage_options, settings.last)
        form = _detect(location) if settings.format == "auto" else settings.format
        alternatives = [*settings.input_columns, *settings.model_input_columns] if form == "webdataset" else []
        return cls(form, location, tuple(name for name in alternatives if ";" in name))

    @property
    def joins_types(self) -> bool:
        """Whether a column's type follows from the values of all files."""
        return self.form in ("csv", "jsonl", "webdataset")

    def paths(self) -> list[str]:
        """What is described and indexed one by one: files, or the folder of arrays that are read as one."""
        match self.form:
            case "parquet":
                return ParquetTable.paths(self.location)
            case "csv" | "jsonl":
                return ManifestTable.paths(self.location, f".{self.form}")
            case "webdataset":
                return WebDatasetTable.paths(self.location)
            case "npz":
                return one_npz(self.location)
            case "npy":
                return self.location.files((".npy",))[:1]
            case "zarr":
                return [self.location.path]
            case _:
                return HuggingFaceTable.paths(self.location)

    def forget_listings(self) -> None:
        """So that the next ``state`` is that of now: object stores remember what they listed."""
        if not self.location.is_local:
            self.location.filesystem.invalidate_cache()

    def state(self, path: str) -> str:
        """What tells that a file changed, without reading it."""
        match self.form:
            case "npy":
                return joint_state(self.location, self.location.files((".npy",)))
            case "zarr":
                return joint_state(self.location, zarr_files(self.location))
            case _:
                return file_state(self.location.filesystem, path, self.location.is_local)

    def describe(self, path: str) -> FileLayout:
        """Where the rows of a file lie: of columnar files a footer is read, text and tar files once from end to end.

        Raises:
            SplitError: what lies there is not of this format.
        """
        match self.form:
            case "parquet":
                return ParquetTable.describe(self.location, path)
            case "csv" | "jsonl":
                return ManifestTable.describe(self.location, path, f".{self.form}")
            case "webdataset":
                return WebDatasetTable.describe(self.location, path)
            case "npz":
                return describe_npz(self.location, path)
            case "npy":
                return describe_npy(self.location, path)
            case "zarr":
                return describe_zarr(self.location, path)
            case _:
                return HuggingFaceTable.describe(self.location, path)

    def table(self, layouts: Sequence[FileLayout], copies: Path | None = None) -> Table:
        """The rows of files that were described, with ``copies`` as the folder for decompressed arrays. Reads nothing.

        Raises:
            SplitError: the files' columns are not alike.
        """
        match self.form:
            case "parquet":
                return ParquetTable(self.location, layouts)
            case "csv" | "jsonl":
                return ManifestTable(self.location, layouts, f".{self.form}")
            case "webdataset":
                return WebDatasetTable(self.location, layouts, self.alternatives)
            case "npz" | "npy" | "zarr":
                return open_arrays(self.location, layouts, copies)
            case _:
                return HuggingFaceTable(self.location, layouts)


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
