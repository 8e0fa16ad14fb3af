"""Whole objects at a URI, written so that a reader or a kill never sees half of one; those of embeddings by name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import fsspec
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from congruence.tasks.data.settings import Shard
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.runtime.files import is_local, write_whole

_INCOMING = ".incoming"


@dataclass(frozen=True)
class StoredObject:
    """Bytes in number, and when they were written, in seconds since 1970."""

    size: int
    modified: float


class ObjectStore:
    """Objects named by ``/``-separated keys below ``uri``, on a disk or in any store that fsspec knows.

    ``put`` replaces an object at once and whole: an object store does so by itself, on a disk the bytes go to a file in
    ``.incoming`` that is renamed when it is complete. So an object that is there is finished, and needs no marker.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, Any]) -> None:
        self.uri = uri.rstrip("/")
        self._options = {"use_listings_cache": False, **storage_options}
        self._filesystem, path = fsspec.core.url_to_fs(uri, **self._options)
        self._root = path.rstrip("/")
        self.is_local = is_local(self._filesystem)

    def get(self, key: str) -> bytes | None:
        """Returns the object's bytes, None where there is none."""
        try:
            if self.is_local:
                with open(f"{self._root}/{key}", "rb") as stream:
                    return stream.read()
            return bytes(self._filesystem.cat_file(f"{self._root}/{key}"))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def size(self, key: str) -> int | None:
        """Returns the object's bytes in number, None where there is none."""
        try:
            return int(self._filesystem.info(f"{self._root}/{key}")["size"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def objects(self, folder: str = "", depth: int | None = None) -> dict[str, StoredObject]:
        """Returns all objects below ``folder`` by their keys, found by one listing.

        Args:
            folder: a key without its last part; "" for everything.
            depth: how many parts of a key may follow ``folder``; any number by default.
        """
        path = f"{self._root}/{folder}".rstrip("/")
        found = self._filesystem.find(path, maxdepth=depth, detail=True)
        start = len(self._root) + 1
        return {
            name[start:]: StoredObject(int(entry["size"] or 0), _modified(entry))
            for name, entry in found.items()
            if entry["type"] == "file"
        }

    def finished(self, folder: str) -> set[str]:
        """Returns the keys of the objects right below ``folder``, by one listing; empty ones are what a crash left."""
        return {key for key, found in self.objects(folder, depth=1).items() if found.size}

    def put(self, key: str, data: bytes) -> None:
        """Writes the object whole, in place of any other under this key."""
        if self.is_local:
            write_whole(f"{self._root}/{key}", data, f"{self._root}/{_INCOMING}")
        else:
            self._filesystem.pipe_file(f"{self._root}/{key}", data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Writes the object whole unless there is one under this key; of several writers the first one wins.

        Where the object store knows no conditional write, or the disk no hard links, writers at the same moment may
        replace each other: read what stands.
        """
        if self.get(key) is not None:
            return
        if self.is_local:
            write_whole(f"{self._root}/{key}", data, f"{self._root}/{_INCOMING}", replace=False)
            return
        path = f"{self._root}/{key}"
        try:
            self._filesystem.pipe_file(path, data, mode="create")
        except (OSError, NotImplementedError, ValueError):
            # Another writer was first, for which object stores have various errors, or this one knows no such call.
            if self.get(key) is None:
                self._filesystem.pipe_file(path, data)

    def remove(self, keys: str | Iterable[str]) -> None:
        """Removes an object or several; those that are gone already do not matter."""
        paths = [f"{self._root}/{key}" for key in ([keys] if isinstance(keys, str) else keys)]
        if not self.is_local and paths:
            with suppress(FileNotFoundError):  # somebody else was faster with one of them
                self._filesystem.rm(paths)
                return
        for path in paths:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(path)

    def remove_empty_folders(self, keys: Iterable[str]) -> None:
        """Removes the folders that held these objects, as far as they are empty; object stores have none.

        Only for those who are alone here: a writer may be about to use its folder.
        """
        folders = {os.path.dirname(f"{self._root}/{key}") for key in keys} if self.is_local else set()
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):
                while len(folder) > len(self._root):
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)

    def zarr(self, folder: str) -> Any:
        """Returns Zarr's own store below ``folder``; it too writes each object at once and whole."""
        from zarr.storage import FsspecStore, LocalStore

        if self.is_local:
            return LocalStore(f"{self._root}/{folder}")
        return FsspecStore.from_url(f"{self.uri}/{folder}", storage_options=dict(self._options))


def _modified(entry: Mapping[str, Any]) -> float:
    """When an object was written, as file systems tell it in their own ways; now where one does not."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return time.time()


DType = Literal["float32", "float16"]
ARRAYS = ("embeddings", "valid", "reason", "key", "target")
_FORMAT = 3
_CHUNK_ROWS = 1024


class CutSplit(Protocol):
    """What the store asks of a split."""

    @property
    def shards(self) -> list[Shard]:
        """In order."""

    @property
    def digest(self) -> str:
        """Names the rows, however they are cut into shards."""


@dataclass(frozen=True)
class StoreAddress:
    """What a worker needs to open the embeddings by one encoder; a few hundred bytes.

    It carries the options of the store's file system, keys included, as the settings in every task do: a scheduler
    forgets them with the task, and they appear in no ``repr``. `open_store_cached` opens it for a split.

    Attributes:
        uri: of the store.
        options: of its file system.
        encoder_key: the encoder, preprocessing, dimension and dtype, by digest.
        dimension: of the embeddings.
        dtype: of the stored values.
    """

    uri: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    encoder_key: str
    dimension: int
    dtype: DType = "float32"


def store_header(encoder: Encoder, dtype: DType) -> dict[str, Any]:
    """Returns what decides which embeddings a store holds beside the inputs; its digest is the encoder key."""
    return {
        "format": _FORMAT,
        "encoder_id": encoder.id,
        "preprocessing_digest": encoder.preprocessing_digest,
        "dimension": encoder.dimension,
        "dtype": dtype,
    }


def group_folder(encoder_key: str, split: CutSplit) -> str:
    """Returns where in a store the embeddings of ``split`` by an encoder lie."""
    return f"{encoder_key}/{split.digest}-{split.shards[0].rows if split.shards else 0}"


def group_metadata(
    rows: int, shard_rows: int, dimension: int, dtype: DType, attributes: Mapping[str, Any]
) -> dict[str, bytes]:
    """Returns the metadata of a group by their keys below it, the group's own last; ``attributes`` name ``targets``."""
    size, targets = max(1, shard_rows), max(1, len(attributes.get("targets", ())))
    made: dict[str, Any] = {}
    group = zarr.create_group(zarr.storage.MemoryStore(made), zarr_format=3, attributes=dict(attributes))
    common: dict[str, Any] = {
        "compressors": ZstdCodec(level=1, checksum=True),
        "chunk_key_encoding": {"name": "default", "separator": "."},  # no folder for a single object
    }
    group.create_array(
        "embeddings",
        shape=(rows, dimension),
        shards=(size, dimension),
        chunks=(_CHUNK_ROWS if size % _CHUNK_ROWS == 0 else size, dimension),
        dtype=dtype,
        fill_value=np.nan,
        dimension_names=("row", "dimension"),
        **common,
    )
    group.create_array(
        "target",
        shape=(rows, targets),
        chunks=(size, targets),
        dtype="float64",
        fill_value=np.nan,
        dimension_names=("row", "target"),
        **common,
    )
    columns: dict[str, tuple[str, Any]] = {"valid": ("bool", False), "reason": ("string", ""), "key": ("string", "")}
    for name, (dtype_of_column, fill) in columns.items():
        sizes: dict[str, Any] = {"shape": (rows,), "chunks": (size,), "dimension_names": ("row",)}
        group.create_array(name, dtype=dtype_of_column, fill_value=fill, **sizes, **common)
    return {key: made[key].to_bytes() for key in sorted(made, key=lambda key: (-key.count("/"), key))}
