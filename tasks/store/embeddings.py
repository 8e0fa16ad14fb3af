"""The embeddings of a split by one encoder, shared by every version, later run and concurrent evaluation.

They lie in one Zarr group, which ``zarr.open`` opens. One task writes a shard: the other arrays first,
its object of ``embeddings`` last. Each object is written at once and whole, so a shard is done when that object is
there, and one listing tells which are not. Two writers of a shard write the same; the last one stands. Zarr's own
checksums (zstd, crc32c) tell when a file was damaged, which is an error that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import ZstdCodec

from congruence.kernels.errors import CongruenceError
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.runtime.files import MadeOnce, digest_of
from congruence.tasks.store.objects import ObjectStore

DType = Literal["float32", "float16"]
ARRAYS = ("embeddings", "valid", "reason", "key", "target")
_FORMAT = 3
_CHUNK_ROWS = 1024


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


class StoreError(CongruenceError):
    """Embeddings that are missing, damaged or unfit for the store: names the file and the remedy."""


class EmbeddingStore:
    """The raw (not normalised) embeddings of one split by one encoder; row i is row i of the split.

    It may be used from many threads.
    """

    def __init__(self, address: StoreAddress, digest: str, shards: Sequence[Shard]):
        self.address = address
        self.encoder_key, self.dimension, self.dtype = address.encoder_key, address.dimension, address.dtype
        self.folder = group_folder(address.encoder_key, digest, shards)
        self._objects = ObjectStore(address.uri, address.options)
        self._shards = list(shards)
        self.rows = self._shards[-1].stop if self._shards else 0
        self._valid, self._seen = np.zeros(self.rows, dtype=bool), set[int]()

    @classmethod
    def open(
        cls,
        uri: str,
        split: Split,
        encoder: Encoder,
        *,
        dtype: DType = "float32",
        storage_options: Mapping[str, Any] | None = None,
        describe: Mapping[str, Any] | None = None,
    ) -> EmbeddingStore:
        """Opens what the store at ``uri`` holds of this split by this encoder, made if need be.

        Settings that give other embeddings have another key, so that they never meet. float16 halves the store at a
        relative rounding error of at most 2^-11 = 4.9e-4 per value (about 6.5e-4 in the CCE); values beyond 65504 are
        refused. ``describe`` says more of the split to those who open the group with Zarr, the names of its ``targets``
        among it.
        """
        header, dimension = store_header(encoder, dtype), encoder.dimension
        address = StoreAddress(uri, dict(storage_options or {}), digest_of(header), dimension, dtype)
        store = cls(address, split.digest, split.shards)
        if store._objects.get(f"{store.folder}/zarr.json") is None:
            size = store._shards[0].rows if store._shards else 0
            said = {"split_digest": split.digest, "rows": store.rows, "shard_rows": size}
            attributes = {**header, **(describe or {}), **said, "shards": [shard.digest for shard in store._shards]}
            for key, content in group_metadata(store.rows, size, dimension, dtype, attributes).items():
                store._objects.put(f"{store.folder}/{key}", content)  # by several writers at once the same
        return store

    def is_done(self, shard: Shard) -> bool:
        """Returns whether the shard's embeddings are there; they are not read."""
        return bool(self._objects.size(self._key("embeddings", shard)))

    def pending(self) -> list[Shard]:
        """Returns the shards that are still to be embedded, by one listing."""
        done = self._objects.finished(f"{self.folder}/embeddings")
        return [shard for shard in self._shards if self._key("embeddings", shard) not in done]

    def batch_size(self, device: str) -> int | None:
        """Returns the batch size that was settled for a kind of device ("cpu", "cuda"), None where none is.

        What a matrix product gives depends on the number of its rows, in the last bits: only with one batch size for
        every worker and later run does a shard have the same bytes whichever worker embeds it.

        Raises:
            StoreError: its file is damaged.
        """
        content = self._objects.get(self._batch_size_key(device))
        try:
            return None if content is None else int(json.loads(content)["batch_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(self._batch_size_key(device), f"holds no batch size ({error})") from error

    def settle_batch_size(self, device: str, found: int) -> int:
        """Settles on ``found`` for a kind of device, unless another worker was first: returns the batch size to use."""
        self._objects.put_if_absent(self._batch_size_key(device), json.dumps({"batch_size": found}).encode())
        return self.batch_size(device) or found

    def write(
        self,
        shard: Shard,
        embeddings: npt.ArrayLike,
        reasons: Mapping[int, str],
        *,
        keys: Sequence[str] | None = None,
        targets: npt.ArrayLike | None = None,
    ) -> None:
        """Stores the rows of one shard, after which it is done. Rows with a reason become NaN.

        Args:
            shard: one of the split's shards.
            embeddings: (rows, dimension), finite but in rows with a reason.
            reasons: why rows are invalid, by row within the shard.
            keys: of the rows.
            targets: of the rows, (rows,) or (rows, q).

        Raises:
            StoreError: a valid row overflows the dtype.
        """
        exact, valid = np.array(embeddings, dtype=np.float32), np.ones(shard.rows, dtype=bool)
        valid[list(reasons)] = False
        exact[~valid] = np.nan
        stored, rows = _in_precision(shard, exact, valid, self.dtype), slice(shard.start, shard.stop)
        if keys is not None:
            self._arrays["key"][rows] = _texts(keys)
        if targets is not None and np.size(targets):
            self._arrays["target"][rows] = np.asarray(targets, dtype=np.float64).reshape(shard.rows, -1)
        if reasons:
            self._arrays["reason"][rows] = _texts([reasons.get(row, "") for row in range(shard.rows)])
        self._arrays["valid"][rows] = valid
        self._arrays["embeddings"][rows] = stored
        self._seen.discard(shard.index)

    def adopt(self, shard: Shard, **beside: Any) -> bool:
        """Takes a shard from another split with these rows that this encoder embedded; returns whether it did.

        So after rows were appended, or targets corrected, only shards of other inputs are embedded. ``beside`` is what
        ``write`` takes beside embeddings.
        """
        other, held = self._elsewhere.get(shard.digest, (self, shard))
        if other is self or not other.is_done(held):
            return False
        rows = slice(held.start, held.stop)
        try:
            embeddings, reasons = other.read(rows), other.reasons(rows)
        except StoreError:  # damaged there: to be embedded here
            return False
        self.write(shard, embeddings, {row - held.start: reason for row, reason in reasons.items()}, **beside)
        return True

    def read(self, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """Returns the embeddings of ``rows`` (a slice of the split's rows with step 1), float32, NaN where invalid.

        Raises:
            StoreError: a shard that is not done or damaged.
        """
        start, stop = self._bounds(rows)
        found = np.asarray(self._read("embeddings", start, stop), dtype=np.float32)
        doubtful = np.isnan(found[:, 0]) == self._valid_of_done(start, stop)
        if doubtful.any():
            raise self._contradiction(start + int(np.argmax(doubtful)))
        return found

    def valid(self, rows: slice | None = None) -> npt.NDArray[np.bool_]:
        """Returns which of ``rows`` have an embedding; a shard is read once."""
        start, stop = self._bounds(rows)
        new = [shard for shard in self._overlapping(start, stop) if shard.index not in self._seen]
        if new:
            first, last = new[0].start, new[-1].stop
            self._valid[first:last] = self._read("valid", first, last)
            # Where none is valid the shard may be one that is not done yet.
            self._seen.update(shard.index for shard in new if self._valid[shard.start : shard.stop].any())
        return self._valid[start:stop].copy()

    def reasons(self, rows: slice | None = None) -> dict[int, str]:
        """Returns why, for each invalid row of ``rows``, by row of the split.

        Raises:
            StoreError: a shard that is not done or damaged.
        """
        start, stop = self._bounds(rows)
        invalid = start + np.flatnonzero(~self._valid_of_done(start, stop))
        if not len(invalid):
            return {}
        first = int(invalid[0])
        texts = self._read("reason", first, int(invalid[-1]) + 1)
        found = {row: str(texts[row - first]) for row in invalid.tolist()}
        for row, reason in found.items():
            if not reason:
                raise self._contradiction(row)
        return found

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """The arrays by name.

        Raises:
            StoreError: their metadata are missing or damaged.
        """
        store, arrays = self._objects.zarr(self.folder), {}
        for name in ARRAYS:
            try:
                arrays[name] = zarr.open_array(store, path=name, mode="r+", zarr_format=3)
            except Exception as error:  # as many kinds as there are ways to damage JSON
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    raise
                raise self._damaged(f"{self.folder}/zarr.json", f"describes no array {name!r} ({error})") from error
        # An object without a valid row is written as well: that it is there says that its shard is done.
        arrays["embeddings"] = arrays["embeddings"].with_config({"write_empty_chunks": True})
        return arrays

    @cached_property
    def _elsewhere(self) -> dict[str, tuple[EmbeddingStore, Shard]]:
        """Other splits by this encoder that have a shard of ours, and that shard, by digest."""
        wanted, found = {shard.digest for shard in self._shards}, {}
        for key in self._objects.objects(self.encoder_key, depth=2):
            if not key.endswith("/zarr.json") or key.startswith(f"{self.folder}/"):
                continue
            with suppress(ValueError, KeyError):  # damaged, which matters to those who need that split
                said = json.loads(self._objects.get(key) or b"{}")["attributes"]
                if wanted.intersection(said["shards"]):
                    rows, size = said["rows"], said["shard_rows"]
                    starts = zip(said["shards"], range(0, rows, size), strict=True)
                    shards = [Shard(i, at, min(size, rows - at), name) for i, (name, at) in enumerate(starts)]
                    other = EmbeddingStore(self.address, said["split_digest"], shards)
                    found.update({shard.digest: (other, shard) for shard in shards if shard.digest in wanted})
        return found

    def _read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Some rows of an array.

        Raises:
            StoreError: a damaged file.
            OSError: the disk or the network.
        """
        array = self._arrays[name]
        try:
            return np.asarray(array[start:stop])
        except OSError:
            raise
        except Exception:
            for shard in self._overlapping(start, stop):
                key = self._key(name, shard)
                self._objects.get(key)  # an object store that does not answer says so here
                try:
                    array[shard.start : shard.stop]
                except Exception as error:  # Zarr's codecs each have their own
                    raise self._damaged(key, f"is damaged ({error})", shard) from error
            raise

    def _valid_of_done(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        valid = self.valid(slice(start, stop))
        for shard in self._overlapping(start, stop):
            if shard.index not in self._seen and not self.is_done(shard):
                raise self._contradiction(shard.start)
        return valid

    def _contradiction(self, row: int) -> StoreError:
        """What to say where an embedding is missing and no reason is given, or the reverse."""
        (shard,) = self._overlapping(row, row + 1)
        key = self._key("embeddings", shard)
        if self._objects.size(key):
            return self._damaged(key, f"contradicts what is said of row {row}", shard)
        return StoreError(
            f"{self.address.uri}: shard {shard.index} (rows {shard.start} to {shard.stop - 1}) is not embedded yet; "
            "run again: only what is missing is embedded"
        )

    def _damaged(self, key: str, what: str, shard: Shard | None = None) -> StoreError:
        said = f"{self.address.uri}/{key} {what}; delete this file"
        if shard is None:
            return StoreError(f"{said} and run again")
        embeddings = self._key("embeddings", shard)
        both = "" if key == embeddings else f" and {self.address.uri}/{embeddings}"
        return StoreError(f"{said}{both} and run again: rows {shard.start} to {shard.stop - 1} are then embedded again")

    def _key(self, name: str, shard: Shard) -> str:
        """Where a shard's rows of an array lie."""
        return f"{self.folder}/{name}/c.{shard.index}" + (".0" if name in ("embeddings", "target") else "")

    def _batch_size_key(self, device: str) -> str:
        return f"{self.encoder_key}/batch_size/{device}.json"

    def _overlapping(self, start: int, stop: int) -> list[Shard]:
        if start >= stop:
            return []
        size = self._shards[0].rows
        return self._shards[start // size : (stop - 1) // size + 1]

    def _bounds(self, rows: slice | None) -> tuple[int, int]:
        start, stop, step = (rows or slice(None)).indices(self.rows)
        if step != 1:
            raise StoreError(f"rows {rows} of the store: only step 1 is read; select from the result")
        return start, max(start, stop)


def store_header(encoder: Encoder, dtype: DType) -> dict[str, Any]:
    """Returns what decides which embeddings a store holds beside the inputs; its digest is the encoder key."""
    return {
        "format": _FORMAT,
        "encoder_id": encoder.id,
        "preprocessing_digest": encoder.preprocessing_digest,
        "dimension": encoder.dimension,
        "dtype": dtype,
    }


def group_folder(encoder_key: str, digest: str, shards: Sequence[Shard]) -> str:
    """Returns where in a store the embeddings of a split by an encoder lie."""
    return f"{encoder_key}/{digest}-{shards[0].rows if shards else 0}"


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


def open_store_cached(address: StoreAddress, split: Split) -> EmbeddingStore:
    """Opens the store at ``address`` for a split, at most once in this process; any thread may read it."""
    folder = group_folder(address.encoder_key, split.digest, split.shards)
    return _opened.get((address, folder), lambda: EmbeddingStore(address, split.digest, split.shards))


_opened = MadeOnce[EmbeddingStore](8)


def _texts(values: Sequence[str]) -> npt.NDArray[np.object_]:
    """Texts as Zarr stores them; for what is no Unicode, as in paths, a question mark."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        values = [value.encode("utf-8", "replace").decode() for value in values]
    return np.array(values, dtype=object)


def _in_precision(
    shard: Shard, embeddings: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], dtype: DType
) -> npt.NDArray[Any]:
    """The rows of a shard (rows, dimension) as they are stored.

    Raises:
        StoreError: a valid row overflows the dtype.
    """
    with np.errstate(over="ignore"):
        stored = embeddings.astype(dtype, copy=False)
    overflow = np.flatnonzero(valid & ~np.isfinite(stored).all(axis=1))
    if stored is not embeddings and len(overflow):
        largest = float(np.abs(embeddings[overflow[0]]).max())
        row = shard.start + int(overflow[0])
        raise StoreError(f"row {row}: {largest:.6g} overflows {stored.dtype}; use float32")
    return stored
