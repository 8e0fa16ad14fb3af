"""Which format a split has, by its settings or by what lies at its address."""

from pathlib import Path

from congruence.tasks.sources.arrays import open_npy, open_npz, open_zarr
from congruence.tasks.sources.errors import SplitError
from congruence.tasks.sources.huggingface import HuggingFaceTable, is_saved_dataset
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.manifest import ManifestTable
from congruence.tasks.sources.parquet import ParquetTable
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.tables import Table
from congruence.tasks.sources.webdataset import WebDatasetTable

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".tar": "webdataset",
    ".npz": "npz",
    ".npy": "npy",
}


def open_table(settings: SplitSettings, location: Location, copies: Path | None = None) -> Table:
    """The table at ``location``, with ``copies`` as the folder for decompressed arrays.

    Raises:
        SplitError: the format cannot be told, or what lies there is not of that format.
    """
    form = _detect(location) if settings.format == "auto" else settings.format
    match form:
        case "parquet":
            return ParquetTable(location)
        case "csv" | "jsonl":
            return ManifestTable(location, f".{form}")
        case "webdataset":
            return WebDatasetTable(location, [*settings.input_columns, *settings.model_input_columns])
        case "npz":
            return open_npz(location, copies)
        case "npy":
            return open_npy(location)
        case "zarr":
            return open_zarr(location)
        case _:
            return HuggingFaceTable(location)


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
