"""From a URI to the files behind it: a file, a folder or a glob on any fsspec file system, with dates in it or not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import fsspec

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.files import is_local

_STATES = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


_FIELD = re.compile(r"\{date(?::(?P<format>[^}]*))?\}")


_PARTS = {"%Y": r"\d{4}", "%m": r"\d{2}", "%d": r"\d{2}", "%j": r"\d{3}"}


@dataclass(frozen=True)
class DatedPath:
    """A path with ``{date}`` (``2026-03-01``) or ``{date:%Y/%m/%d}`` in it, and other wildcards beside.

    Attributes:
        path: as it is written.
        form: of the date, as ``strptime`` reads it.
    """

    path: str
    form: str

    @classmethod
    def of(cls, path: str) -> DatedPath | None:
        """The dates of a path, None where it has none.

        Raises:
            SplitError: several dates, or a date without year, month or day.
        """
        fields = list(_FIELD.finditer(path))
        if not fields:
            return None
        form = fields[0]["format"] or "%Y-%m-%d"
        if len(fields) > 1:
            raise SplitError(f"{path}: has {{date}} twice; write it once, for example {{date:%Y/%m/%d}}")
        if "%Y" not in form or not ("%j" in form or ("%m" in form and "%d" in form)):
            raise SplitError(f"{path}: {{date:{form}}} names no day; write for example {{date:%Y-%m-%d}}")
        return cls(path, form)

    @property
    def glob(self) -> str:
        """The pattern of all dates."""
        return _FIELD.sub(lambda _: re.sub(r"(%[Ymdj])+", "*", self.form), self.path)

    def date_of(self, path: str) -> date:
        """The date that a path begins with which this pattern matches.

        Raises:
            SplitError: none.
        """
        match = self._expression.match(path)
        try:
            return datetime.strptime(match["date"] if match else "", self.form).date()
        except ValueError:
            raise SplitError(
                f"{path}: has no date of the form {self.form} where {self.path} has one; rename it, or make the "
                "pattern of uri narrower"
            ) from None

    def within(self, paths: Sequence[str], window: SplitSettings | None) -> list[str]:
        """Returns the paths whose dates are those that ``last``, ``since`` and ``until`` of a split leave."""
        dates = [self.date_of(path) for path in paths]
        if not dates or window is None:
            return list(paths)
        first, last = window.since or date.min, window.until or date.max
        if window.last is not None:
            first = max(first, max(dates) - timedelta(days=window.last - 1))
        return [path for path, when in zip(paths, dates, strict=True) if first <= when <= last]

    @property
    def _expression(self) -> re.Pattern[str]:
        before, after = _FIELD.split(self.path)[0], self.path[_FIELD.search(self.path).end() :]  # type: ignore[union-attr]
        form = re.escape(self.form).replace("\\%", "%")
        for part, digits in _PARTS.items():
            form = form.replace(part, digits)
        return re.compile(f"{_as_expression(before)}(?P<date>{form}){_as_expression(after)}")


@dataclass(frozen=True)
class Location:
    """A URI, its file system, and its path there."""

    uri: str
    filesystem: Any
    path: str
    options: Mapping[str, Any] = field(repr=False)
    dates: DatedPath | None = None
    window: SplitSettings | None = None
    """Says which dates are read: all by default."""

    @classmethod
    def of(cls, uri: str, storage_options: Mapping[str, Any], window: SplitSettings | None = None) -> Location:
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

    @cached_property
    def is_glob(self) -> bool:
        """Whether the path is a pattern: what exists under that name is taken as it is."""
        if self.dates is not None:
            return True
        return any(character in self.path for character in "*?[") and not self.filesystem.exists(self.path)

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

    def partitions(self, path: str) -> dict[str, str | None]:
        """The columns that folders between here and a file say, as in ``country=de/part.parquet``."""
        fixed = re.split(r"[^/]*[*?\[{]", self.path, maxsplit=1)[0] if self.is_glob else self.path
        folders = path[len(fixed) :].split("/")[:-1] if path.startswith(fixed) else []
        named = (folder.partition("=") for folder in folders if "=" in folder)
        return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in named}


def file_state(filesystem: Any, path: str, local: bool) -> str:
    """The state of a file as its file system tells it, to every machine alike; raises OSError where there is none.

    Size, times and inode, which a file renamed over it does not share; of an object its size and ETag, or where its
    store has none what else it says of the content.
    """
    if local:
        found = os.stat(path)
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
    info = filesystem.info(path)  # a listing says less than a request of its own: only what both say is compared
    name = next((name for name in _STATES if info.get(name)), None)
    return f"{info['size']} {info[name]}" if name is not None else str(filesystem.ukey(path))


def _is_marker(path: str, folder: str) -> bool:
    return any(part.startswith((".", "_")) for part in path[len(folder) :].strip("/").split("/"))


def _as_expression(glob: str) -> str:
    text = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return re.sub(r"\\\[(.*?)\\\]", r"[\1]", text)
