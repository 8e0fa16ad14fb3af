"""WebDataset tar shards: neighbouring members that share a name up to the first dot are one sample."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from congruence.tasks.data.sources import BATCH_ROWS, REASON, SourceFile, source
from congruence.tasks.data.sources.text import RawText, kind_of_values, parse_object, rows_as, widen
from congruence.tasks.runtime.errors import SplitError

KEY = "__key__"
_TEXT = ("txt", "text", "cls", "cls2", "index", "id")
_MAX_METADATA = 2**24
_BATCH = 16 * BATCH_ROWS


@dataclass
class _Sample:
    """One sample: values by column, and why it cannot be read if so."""

    key: str
    values: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


@source("webdataset", suffixes=(".tar",), key=KEY, has_types=False)
def read_tar(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The samples of a tar file in two passes over its headers and small members.

    Columns are the members' extensions (``jpg``, ``cls``, ``txt``), the fields of ``.json`` members, and ``__key__``.
    Several extensions of one column are written ``jpg;jpeg;png``. Nothing is ever extracted: a member is read where it
    lies in the tar. A link, a device, or a name that climbs out of the archive makes its sample invalid.
    """
    kinds = {KEY: "text"}
    for samples in _batches(file):
        for name in dict.fromkeys(name for sample in samples for name in sample.values):
            widen(kinds, name, kind_of_values([sample.values.get(name) for sample in samples]))
    for name in file.columns or ():
        if not set(name.split(";")).isdisjoint(kinds):
            kinds[name] = "reference" if ";" in name else kinds[name]
    kinds.update(dict.fromkeys(file.as_text.intersection(kinds), "text"))
    kinds[REASON] = "text"
    names = [KEY, *(name for name in file.wanted(list(kinds)) if name not in (KEY, REASON)), REASON]
    yield rows_as([], kinds, names)
    for samples in _batches(file):
        yield rows_as([_row(sample, names) for sample in samples], kinds, names)


def _batches(file: SourceFile) -> Iterator[list[_Sample]]:
    samples = _samples(file)
    while batch := list(islice(samples, _BATCH)):
        yield batch
        if file.only_first:
            return


def _row(sample: _Sample, names: list[str]) -> dict[str, Any]:
    row = {**sample.values, KEY: sample.key, REASON: sample.reason}
    for name in names:
        if ";" in name:
            row[name] = next((row[part] for part in name.split(";") if row.get(part) is not None), None)
    return row


def _samples(file: SourceFile) -> Iterator[_Sample]:
    sample: _Sample | None = None
    try:
        with file.open() as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every header that it has read
                key, extension = _split_name(member.name)
                if member.isdir() or posixpath.basename(member.name).startswith("._"):  # of macOS, beside each member
                    continue
                if sample is None or sample.key != key or extension in sample.values:
                    if sample is not None:
                        yield sample
                    sample = _Sample(key)
                _take(sample, archive, member, extension, file.path)
            if sample is not None:
                yield sample
    except tarfile.TarError as error:
        raise SplitError(f"{file.path}: not readable as tar ({error}); write or fetch the file again") from error


def _split_name(name: str) -> tuple[str, str]:
    folder, base = posixpath.split(name)
    stem, _, extension = base.partition(".")
    return posixpath.join(folder, stem), extension.lower()


def _take(sample: _Sample, archive: tarfile.TarFile, member: tarfile.TarInfo, extension: str, path: str) -> None:
    reason = _unreadable(member)
    sample.reason = sample.reason or reason
    if not (member.isreg() and (extension == "json" or extension in _TEXT)):
        place = (path, member.offset_data, member.size)
        sample.values.setdefault(extension, place if reason is None else None)
        return
    if member.size > _MAX_METADATA:
        raise SplitError(f"{path}: member {member.name!r} has {member.size} bytes, more than metadata may have")
    stream = archive.extractfile(member)
    data = stream.read() if stream is not None else b""
    if len(data) < member.size:
        raise SplitError(f"{path}: is cut off in member {member.name!r}; fetch the file again")
    if extension == "json":
        sample.values["json"] = None
        sample.values.update(parse_object(data, f"{path}, member {member.name!r}"))
    else:
        sample.values[extension] = RawText(data.decode(errors="replace"))


def _unreadable(member: tarfile.TarInfo) -> str | None:
    if member.name.startswith("/") or ".." in member.name.split("/"):
        return f"member {member.name!r} has a name that leaves the archive"
    if member.issym() or member.islnk():
        return f"member {member.name!r} is a link to {member.linkname!r}; links are not followed"
    return None if member.isreg() else f"member {member.name!r} is not a regular file"
