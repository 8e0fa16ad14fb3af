"""WebDataset tar shards: neighbouring members that share a name up to the first dot are one sample."""

import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.inputs import REASON
from congruence.tasks.data.layouts import FileLayout, joined_kinds
from congruence.tasks.data.locations import Location
from congruence.tasks.data.marked_files import MarkedFiles, Row, observed
from congruence.tasks.data.typing_rows import ColumnTypes, RawText, parse_object

KEY = "__key__"
_TEXT = ("txt", "text", "cls", "cls2", "index", "id")
_MAX_METADATA = 2**24


@dataclass
class _Sample:
    """One sample: values by column, and why it cannot be read if so."""

    key: str
    offset: int
    values: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


class WebDatasetTable(MarkedFiles):
    """The samples of tar files in the order of their paths.

    Columns are the members' extensions (``jpg``, ``cls``, ``txt``), the fields of ``.json`` members, and ``__key__``.
    Several extensions of one column are written ``jpg;jpeg;png``. Nothing is ever extracted: a member is read where it
    lies in the tar. A link, a device, or a name that climbs out of the archive makes its sample invalid.
    """

    key = KEY

    def __init__(self, location: Location, layouts: Sequence[FileLayout], alternatives: Sequence[str] = ()) -> None:
        super().__init__(location, layouts)
        self._alternatives = list(dict.fromkeys(name for name in alternatives if ";" in name))
        seen = ColumnTypes(joined_kinds(layouts)).schema()
        found = [column for column in seen if column.name not in (KEY, REASON)]
        possible = [name for name in self._alternatives if not set(name.split(";")).isdisjoint(seen.names)]
        joined = [pa.field(name, pa.binary()) for name in possible]
        self.schema = pa.schema([pa.field(KEY, pa.string()), *found, *joined, pa.field(REASON, pa.string())])

    @staticmethod
    def describe(location: Location, path: str, state: str, _: Path) -> FileLayout:
        """One pass over the headers and the small members of the file."""
        samples = _samples(location.filesystem, path, 0, contents=False)
        return observed(path, state, (((sample.offset,), sample.values) for sample in samples))

    def _read(self, path: str, place: Sequence[int], columns: Sequence[str]) -> Iterator[Row]:
        contents = any(pa.types.is_binary(self.schema.field(name).type) for name in columns)
        samples = _samples(self._filesystem, path, place[0] if place else 0, contents)
        return ((f"sample {sample.key!r}", self._row(sample)) for sample in samples)

    def _row(self, sample: _Sample) -> dict[str, Any]:
        row = {**sample.values, KEY: sample.key, REASON: sample.reason}
        for name in self._alternatives:
            row[name] = next((row[part] for part in name.split(";") if row.get(part) is not None), None)
        return row


def _samples(filesystem: Any, path: str, offset: int, contents: bool) -> Iterator[_Sample]:
    sample: _Sample | None = None
    try:
        with filesystem.open(path, "rb") as stream:
            stream.seek(offset)
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every header that it has read
                    if member.isdir():
                        continue
                    key, extension = _split_name(member.name)
                    if sample is None or sample.key != key or extension in sample.values:
                        if sample is not None:
                            yield sample
                        sample = _Sample(key, member.offset)
                    _take(sample, archive, member, extension, contents, path)
                if sample is not None:
                    yield sample
    except tarfile.TarError as error:
        raise SplitError(f"{path}: not readable as tar ({error}); write or fetch the file again") from error


def _split_name(name: str) -> tuple[str, str]:
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension.lower()


def _take(
    sample: _Sample, archive: tarfile.TarFile, member: tarfile.TarInfo, extension: str, contents: bool, path: str
) -> None:
    reason = _unreadable(member)
    metadata = member.isreg() and (extension == "json" or extension in _TEXT)
    if reason is not None:
        sample.reason = sample.reason or reason
    if not metadata and (reason is not None or not contents):
        sample.values.setdefault(extension, b"" if reason is None else None)
        return
    if metadata and member.size > _MAX_METADATA:
        raise SplitError(f"{path}: member {member.name!r} has {member.size} bytes, more than metadata may have")
    stream = archive.extractfile(member)
    data = stream.read() if stream is not None else b""
    if len(data) < member.size:
        raise SplitError(f"{path}: is cut off in member {member.name!r}; fetch the file again")
    if extension == "json":
        sample.values["json"] = None
        sample.values.update(parse_object(data, f"{path}, member {member.name!r}"))
    elif metadata:
        sample.values[extension] = RawText(data.decode(errors="replace"))
    else:
        sample.values[extension] = data


def _unreadable(member: tarfile.TarInfo) -> str | None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return f"member {member.name!r} has a name that leaves the archive"
    if member.issym() or member.islnk():
        return f"member {member.name!r} is a link to {member.linkname!r}; links are not followed"
    return None if member.isreg() else f"member {member.name!r} is not a regular file"
