"""Whole objects at a URI, written so that a reader or a kill never sees half of one."""

import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import fsspec

_STALE_SECONDS = 24 * 3600
_INCOMING = ".incoming"


class ObjectStore:
    """Objects named by ``/``-separated keys below ``uri``, on a disk or in an S3-compatible store.

    ``put`` replaces an object at once and whole: an object store does so by itself, on a disk the bytes go to a file in
    ``.incoming`` that is renamed when it is complete. What a killed writer leaves there is swept by the next one.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, Any]) -> None:
        self.uri = uri.rstrip("/")
        self._filesystem, path = fsspec.core.url_to_fs(uri, **{"use_listings_cache": False, **storage_options})
        self._root = path.rstrip("/")
        protocol = self._filesystem.protocol
        self._local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        self.sweep()

    def get(self, key: str) -> bytes | None:
        """The object's bytes, None where there is none."""
        try:
            return bytes(self._filesystem.cat_file(f"{self._root}/{key}"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def sizes(self, folder: str, depth: int | None = None) -> dict[str, int]:
        """Keys of all objects below ``folder`` with their sizes in bytes, found by one listing.

        Args:
            folder: a key without its last part; "" for everything.
            depth: how many parts of a key may follow ``folder``; any number by default.
        """
        path = f"{self._root}/{folder}".rstrip("/")
        found = self._filesystem.find(path, maxdepth=depth, detail=True)
        start = len(self._root) + 1
        return {name[start:]: int(entry["size"] or 0) for name, entry in found.items() if entry["type"] == "file"}

    def put(self, key: str, data: bytes) -> None:
        """Write the object whole, in place of any other under this key."""
        path = f"{self._root}/{key}"
        if not self._local:
            self._filesystem.pipe_file(path, data)
            return
        os.replace(self._write_incoming(path, data), path)

    def put_if_other(self, key: str, data: bytes) -> None:
        """Write the object unless these very bytes lie there already."""
        if self.get(key) != data:
            self.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Write the object whole unless there is one under this key; of several writers the first one wins.

        Where the object store knows no conditional write, or the disk no hard links, writers at the same moment may
        replace each other: read what stands.
        """
        path = f"{self._root}/{key}"
        if self.get(key) is not None:
            return
        if not self._local:
            try:
                self._filesystem.pipe_file(path, data, mode="create")
            except (OSError, NotImplementedError, ValueError):
                # Another writer was first, for which object stores have various errors, or this one knows no such call.
                if self.get(key) is None:
                    self._filesystem.pipe_file(path, data)
            return
        temporary = self._write_incoming(path, data)
        try:
            os.link(temporary, path)
            os.unlink(temporary)
        except FileExistsError:
            os.unlink(temporary)
        except OSError:
            os.replace(temporary, path)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are gone already do not matter."""
        for key in keys:
            try:
                self._filesystem.rm_file(f"{self._root}/{key}")
            except FileNotFoundError:
                continue

    def _write_incoming(self, path: str, data: bytes) -> str:
        incoming = os.path.join(self._root, _INCOMING)
        os.makedirs(incoming, exist_ok=True)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = os.path.join(incoming, f"{socket.gethostname()}~{os.getpid()}~{uuid.uuid4().hex}")
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        return temporary

    def sweep(self) -> None:
        """Remove what killed writers of this machine left, and what those of others left a day ago."""
        incoming = os.path.join(self._root, _INCOMING)
        if not self._local or not os.path.isdir(incoming):
            return
        for name in os.listdir(incoming):
            path = os.path.join(incoming, name)
            try:
                if _is_abandoned(name, os.stat(path).st_mtime):
                    os.unlink(path)
            except FileNotFoundError:
                continue


def _is_abandoned(name: str, modified: float) -> bool:
    host, _, rest = name.partition("~")
    process = rest.partition("~")[0]
    if host != socket.gethostname() or not process.isdigit():
        return time.time() - modified > _STALE_SECONDS
    return not os.path.exists(f"/proc/{process}")
