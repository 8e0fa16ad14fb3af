"""From a URI to the files behind it: one file, a folder or a glob, on any fsspec file system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec

from congruence.tasks.data.dates import ALL_DATES, DatedPath, DateWindow
from congruence.tasks.data.errors import SplitError
from congruence.tasks.runtime.files import is_local


@dataclass(frozen=True)
class Location:
    """A URI, its file system, and its path there."""

    uri: str
    filesystem: Any
    path: str
    options: Mapping[str, Any] = field(repr=False)
    dates: DatedPath | None = None
    window: DateWindow = ALL_DATES

    @classmethod
    def of(cls, uri: str, storage_options: Mapping[str, Any], window: DateWindow = ALL_DATES) -> "Location":
        """The location of ``uri``; raises SplitError where no installed file system answers to its protocol."""
        try:
            filesystem, path = fsspec.core.url_to_fs(uri, **storage_options)
        except (ImportError, ValueError) as error:
            raise SplitError(f"{uri}: {error}; use a path or install the file system, for example s3fs") from error
        path = path.rstrip("/") or path
        return cls(uri, filesystem, path, dict(storage_options), DatedPath.of(path), window)

    @property
    def is_local(self) -> bool:
        """Whether the files lie in this machine's own file system."""
        return is_local(self.filesystem)

    @property
    def is_glob(self) -> bool:
        """Whether the path is a pattern."""
        return self.dates is not None or any(character in self.path for character in "*?[")

    def is_folder(self) -> bool:
        """Whether a folder lies here."""
        return bool(self.filesystem.isdir(self.path))

    def child(self, name: str) -> str:
        """The path of ``name`` in the folder that lies here."""
        return f"{self.path.rstrip('/')}/{name}"

    def folder_of(self, paths: Sequence[str]) -> str:
        """The folder that lies here, or that the first of its files lies in."""
        folder: str = self.path if self.is_folder() else self.filesystem._parent(paths[0])
        return folder

    def files(self, suffixes: Sequence[str]) -> list[str]:
        """The file, or the folder's or glob's files that end in one of ``suffixes``, sorted by path.

        Hidden files and those that begin with an underscore are markers of other programs and do not count.
        Raises SplitError where nothing lies.
        """
        if not self.is_local:
            self.filesystem.invalidate_cache()  # files are known by their state, so that must not be one of before
        if self.is_glob:
            pattern = self.path if self.dates is None else self.dates.glob
            found = [path for path in self.filesystem.glob(pattern) if not self.filesystem.isdir(path)]
            found = found if self.dates is None else self.dates.within(found, self.window)
        elif self.filesystem.isdir(self.path):
            found = [path for path in self.filesystem.find(self.path) if path.endswith(tuple(suffixes))]
            found = [path for path in found if not _is_marker(path, self.path)]
        elif self.filesystem.exists(self.path):
            return [self.path]
        else:
            raise SplitError(f"{self.uri}: no such file or folder; check the split's uri")
        if not found:
            raise SplitError(f"{self.uri}: holds no file that ends in {' or '.join(suffixes)}; check uri and format")
        return sorted(found)


def _is_marker(path: str, folder: str) -> bool:
    return any(part.startswith((".", "_")) for part in path[len(folder) :].strip("/").split("/"))
