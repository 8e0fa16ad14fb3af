"""The embeddings of a split in Zarr: shared by every model version, later run and concurrent evaluation.

Layout below the store's URI, all of it a Zarr v3 hierarchy that any Zarr reader opens:

    <encoder key>/                           attributes: encoder, preprocessing, dimension, dtype
        splits/<split digest>.json           the shards of a split, in order
        batch_size/<device>.json             the batch size that was measured, once for all who embed on such a device
        shards/<shard digest>/done.json      the marker: written last, names the data and the SHA-256 of each object
        shards/<shard digest>/<content>/embeddings    (rows, dimension), one Zarr shard, NaN where invalid
        shards/<shard digest>/<content>/valid         (rows,)

One shard of the split is one Zarr array of one Zarr shard, so two writers never share a Zarr shard (parts of one
written side by side lose rows). The data lies under the digest of its own content: two writers of equal bytes
write the same objects, and of unequal ones the last marker decides while the other's data stays whole.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from congruence.kernels.errors import CongruenceError
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.sources.split import Shard, Split

DType = Literal["float32", "float16"]
_FORMAT = 1
_CHUNK_ROWS = 1024
_CACHED_SHARDS = 2
_CHECKED_AT_ONCE = 8


class StoreError(CongruenceError):
    """Embeddings that are missing, damaged or unfit for the store: names the shard and the remedy."""


@dataclass(frozen=True)
class EmbeddedRows:
    """One shard as it was stored: ``embeddings`` (rows, dimension) float32, ``valid`` (rows,), reasons by row."""

    embeddings: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]
    reasons: dict[int, str]


class EmbeddingStore:
    """The raw (not normalised) embeddings of one split by one encoder; row i is row i of the split."""

    def __init__(self, objects: ObjectStore, split: Split, header: Mapping[str, Any]) -> None:
        self._objects = objects
        self._header = dict(header)
        self._shards: list[Shard] = list(split.shards)
        self._starts = np.array([shard.start for shard in self._shards], dtype=np.int64)
        self._cache: OrderedDict[str, EmbeddedRows] = OrderedDict()
        self._reasons: dict[str, dict[str, str]] = {}
        self.rows = split.rows
        self.dimension: int = header["dimension"]
        self.dtype: DType = header["dtype"]
        self.encoder_key = _digest(self._header)

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        split: Split,
        encoder_id: str,
        preprocessing_digest: str,
        dimension: int,
        dtype: DType = "float32",
        storage_options: Mapping[str, Any] | None = None,
    ) -> "EmbeddingStore":
        """The part of the store at ``uri`` that belongs to this split, encoder and preprocessing, made if need be.

        Settings that give other embeddings have another key, so that they never meet; shards that an earlier split
        has in common with this one are found done. float16 halves the store at a relative rounding error of at most
        2^-11 = 4.9e-4 per value (about 6.5e-4 in the CCE); values beyond 65504 are refused.
        """
        header = {
            "format": _FORMAT,
            "encoder_id": encoder_id,
            "preprocessing_digest": preprocessing_digest,
            "dimension": dimension,
            "dtype": dtype,
        }
        store = cls(ObjectStore(uri, storage_options or {}), split, header)
        store._write_header(split)
        return store

    def is_done(self, shard: Shard) -> bool:
        """Whether the shard's marker exists, belongs to these settings, and every object still has its checksum."""
        try:
            self._load_objects(shard)
        except StoreError:
            return False
        return True

    def pending(self) -> list[Shard]:
        """The shards that are still to be embedded, or to be embedded again because they were damaged."""
        with ThreadPoolExecutor(max_workers=_CHECKED_AT_ONCE) as threads:
            done = threads.map(self.is_done, self._shards)
            return [shard for shard, is_done in zip(self._shards, done, strict=True) if not is_done]

    def batch_size(self, device: str) -> int | None:
        """The batch size that was settled for a kind of device ("cpu", "cuda"), None where none is or it is damaged.

        What a matrix product gives depends on the number of its rows, in the last bits: only with one batch size for
        every worker and later run does a shard have the same bytes whoever embeds it.
        """
        content = self._objects.get(self._batch_size_key(device))
        try:
            settled = json.loads(content or b"")
            size, checksum = settled.pop("batch_size"), settled.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return int(size) if checksum == _digest({"batch_size": size}) else None

    def settle_batch_size(self, device: str, found: int) -> int:
        """Settle on ``found`` for a kind of device, unless another worker was first: the batch size to use."""
        content = {"batch_size": found}
        data = _json({**content, "checksum": _digest(content)})
        self._objects.put_if_absent(self._batch_size_key(device), data)
        settled = self.batch_size(device)
        if settled is None:  # damaged
            self._objects.put(self._batch_size_key(device), data)
        return settled or found

    def write(
        self,
        shard: Shard,
        embeddings: npt.ArrayLike,
        valid: npt.ArrayLike,
        reasons: Mapping[int, str],
        batch_size: int | None = None,
    ) -> None:
        """Store the rows of one shard: the data first, the marker last. Rows with ``valid`` false become NaN.

        Args:
            shard: one of the split's shards.
            embeddings: (rows, dimension).
            valid: (rows,) booleans.
            reasons: for exactly the invalid rows, by row within the shard, why.
            batch_size: rows that were embedded at a time, for the record.

        Raises:
            StoreError: another shape, a valid row that is not finite or overflows the dtype, a row without a reason.
        """
        self._require_known(shard)
        rows = _require_rows(shard, embeddings, valid, reasons, self.dimension)
        with np.errstate(over="ignore"):
            stored = rows.embeddings.astype(self.dtype)
        overflow = np.flatnonzero(rows.valid & ~np.isfinite(stored).all(axis=1))
        if len(overflow):
            largest = float(np.abs(rows.embeddings[overflow[0]]).max())
            raise StoreError(f"row {shard.start + int(overflow[0])}: {largest:.6g} overflows {self.dtype}; use float32")
        data = _encode(stored, rows.valid)
        checksums = {key: sha256(content).hexdigest() for key, content in data.items()}
        content_digest = _digest(checksums)
        marker = {
            **self._header,
            "shard_digest": shard.digest,
            "rows": shard.rows,
            "valid_rows": int(rows.valid.sum()),
            "rounding_error": _rounding_error(rows.embeddings, stored, rows.valid),
            "batch_size": batch_size,
            "content": content_digest,
            "sha256": checksums,
            "reasons": {str(row): reason for row, reason in sorted(rows.reasons.items())},
        }
        for key, content in data.items():
            self._objects.put_if_other(f"{self._folder(shard)}/{content_digest}/{key}", content)
        self._objects.put_if_other(f"{self._folder(shard)}/zarr.json", data["zarr.json"])
        self._cache.pop(shard.digest, None)
        self._reasons.pop(shard.digest, None)
        self._objects.put(f"{self._folder(shard)}/done.json", _json({**marker, "checksum": _digest(marker)}))

    def read(self, rows: slice | None = None) -> npt.NDArray[np.float32]:
        """The embeddings of ``rows`` (a slice of the split's rows with step 1), float32, NaN where invalid.

        Raises:
            StoreError: a shard that is not done or damaged.
        """
        start, stop = self._bounds(rows)
        parts = [part.embeddings[begin:end] for part, begin, end in self._parts(start, stop)]
        return np.concatenate(parts) if parts else np.empty((0, self.dimension), dtype=np.float32)

    def valid(self, rows: slice | None = None) -> npt.NDArray[np.bool_]:
        """Which of ``rows`` have an embedding."""
        start, stop = self._bounds(rows)
        valid = np.ones(stop - start, dtype=bool)
        for row in self.reasons(rows):
            valid[row - start] = False
        return valid

    def reasons(self, rows: slice | None = None) -> dict[int, str]:
        """Why, for each invalid row of ``rows``, by row of the split."""
        start, stop = self._bounds(rows)
        found: dict[int, str] = {}
        for shard in self._overlapping(start, stop):
            if shard.digest not in self._reasons:
                self._reasons[shard.digest] = self._marker(shard)["reasons"]
            found.update((shard.start + int(row), why) for row, why in self._reasons[shard.digest].items())
        return {row: reason for row, reason in sorted(found.items()) if start <= row < stop}

    def rounding_error(self) -> float:
        """The largest relative error ||stored - computed|| / ||computed|| of any row, 0 for float32."""
        return max((float(self._marker(shard)["rounding_error"]) for shard in self._shards), default=0.0)

    def verify(self) -> dict[int, str]:
        """Every shard's data against its checksums and its shape: what is wrong, by index of the shard."""
        wrong: dict[int, str] = {}
        for shard in self._shards:
            try:
                self._decode(shard)
            except StoreError as error:
                wrong[shard.index] = str(error)
        return wrong

    def sweep(self) -> None:
        """Remove the half-written files of processes that are gone; nothing ever reads them."""
        self._objects.sweep()

    def _write_header(self, split: Split) -> None:
        memory = MemoryStore()
        zarr.create_group(memory, attributes=self._header)
        zarr.create_group(memory, path="shards")
        for key, content in _objects_of(memory).items():
            self._objects.put_if_other(f"{self.encoder_key}/{key}", content)
        root = MemoryStore()
        zarr.create_group(root)
        for key, content in _objects_of(root).items():
            self._objects.put_if_other(key, content)
        listing = {"rows": split.rows, "shards": [[shard.digest, shard.rows] for shard in self._shards]}
        self._objects.put_if_other(f"{self.encoder_key}/splits/{split.digest}.json", _json(listing))

    def _batch_size_key(self, device: str) -> str:
        return f"{self.encoder_key}/batch_size/{device}.json"

    def _folder(self, shard: Shard) -> str:
        return f"{self.encoder_key}/shards/{shard.digest}"

    def _marker(self, shard: Shard) -> dict[str, Any]:
        content = self._objects.get(f"{self._folder(shard)}/done.json")
        if content is None:
            raise self._error(shard, "is not embedded yet")
        try:
            marker: dict[str, Any] = json.loads(content)
            checksum = marker.pop("checksum")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error(shard, "has a damaged marker") from error
        if checksum != _digest(marker):
            raise self._error(shard, "has a damaged marker")
        expected = {**self._header, "shard_digest": shard.digest, "rows": shard.rows}
        other = [name for name, value in expected.items() if marker.get(name) != value]
        if other:
            raise self._error(shard, f"has a marker of other settings ({', '.join(other)})")
        return marker

    def _load_objects(self, shard: Shard) -> tuple[dict[str, Any], dict[str, bytes]]:
        marker = self._marker(shard)
        found: dict[str, bytes] = {}
        for key, checksum in marker["sha256"].items():
            content = self._objects.get(f"{self._folder(shard)}/{marker['content']}/{key}")
            if content is None:
                raise self._error(shard, f"lacks {key}")
            if sha256(content).hexdigest() != checksum:
                raise self._error(shard, f"is damaged: {key} does not have its checksum")
            found[key] = content
        return marker, found

    def _decode(self, shard: Shard) -> EmbeddedRows:
        marker, found = self._load_objects(shard)
        prototype = default_buffer_prototype()
        memory = MemoryStore({key: prototype.buffer.from_bytes(content) for key, content in found.items()})
        group = zarr.open_group(memory, mode="r", use_consolidated=False)
        embeddings = np.asarray(group["embeddings"][:], dtype=np.float32)  # type: ignore[index]
        valid = np.asarray(group["valid"][:], dtype=bool)  # type: ignore[index]
        reasons = {int(row): reason for row, reason in marker["reasons"].items()}
        if embeddings.shape != (shard.rows, self.dimension) or set(np.flatnonzero(~valid).tolist()) != set(reasons):
            raise self._error(shard, "contradicts its marker")
        return EmbeddedRows(embeddings, valid, reasons)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[EmbeddedRows, int, int]]:
        for shard in self._overlapping(start, stop):
            part = self._cache.get(shard.digest)
            if part is None:
                part = self._cache[shard.digest] = self._decode(shard)
                if len(self._cache) > _CACHED_SHARDS:
                    self._cache.popitem(last=False)
            yield part, max(0, start - shard.start), min(shard.rows, stop - shard.start)

    def _overlapping(self, start: int, stop: int) -> list[Shard]:
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        last = int(np.searchsorted(self._starts, stop, side="left"))
        return self._shards[first:last] if start < stop else []

    def _bounds(self, rows: slice | None) -> tuple[int, int]:
        start, stop, step = (rows or slice(None)).indices(self.rows)
        if step != 1:
            raise StoreError(f"rows {rows} of the store: only step 1 is read; select from the result")
        return start, max(start, stop)

    def _require_known(self, shard: Shard) -> None:
        known = shard.index < len(self._shards) and self._shards[shard.index].digest == shard.digest
        if not known:
            raise StoreError(
                f"shard {shard.index} ({shard.digest}) is not part of this split; open the store for its split"
            )

    def _error(self, shard: Shard, what: str) -> StoreError:
        return StoreError(
            f"{self._objects.uri}: shard {shard.index} (rows {shard.start} to {shard.start + shard.rows}) {what}; "
            "run the embedding step again: it redoes this shard and keeps the others"
        )


def _require_rows(
    shard: Shard, embeddings: npt.ArrayLike, valid: npt.ArrayLike, reasons: Mapping[int, str], dimension: int
) -> EmbeddedRows:
    values = np.array(embeddings, dtype=np.float32)
    flags = np.asarray(valid, dtype=bool)
    if values.shape != (shard.rows, dimension) or flags.shape != (shard.rows,):
        raise StoreError(
            f"shard {shard.index}: embeddings {values.shape} and valid {flags.shape}, expected "
            f"({shard.rows}, {dimension}) and ({shard.rows},); one shard is written whole"
        )
    if set(reasons) != set(np.flatnonzero(~flags).tolist()):
        raise StoreError(f"shard {shard.index}: give a reason for each invalid row and for no other")
    bad = np.flatnonzero(flags & ~np.isfinite(values).all(axis=1))
    if len(bad):
        raise StoreError(
            f"row {shard.start + int(bad[0])}: marked valid, but its embedding is not finite; mark it invalid"
        )
    values[~flags] = np.nan
    return EmbeddedRows(values, flags, dict(reasons))


def _encode(embeddings: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> dict[str, bytes]:
    """The objects of one shard's group, made in memory so that they are written and checked whole."""
    memory = MemoryStore()
    zarr.create_group(memory)
    rows, dimension = embeddings.shape
    chunk = min(rows, _CHUNK_ROWS)
    whole = -(-rows // chunk) * chunk
    compressor = ZstdCodec(level=1, checksum=True)
    data = zarr.create_array(
        memory,
        name="embeddings",
        shape=(rows, dimension),
        chunks=(chunk, dimension),
        shards=(whole, dimension),
        dtype=embeddings.dtype,
        fill_value=np.nan,
        compressors=compressor,
    )
    data[:] = embeddings
    flags = zarr.create_array(
        memory, name="valid", shape=(rows,), chunks=(rows,), dtype=bool, fill_value=False, compressors=compressor
    )
    flags[:] = valid
    return _objects_of(memory)


def _objects_of(memory: MemoryStore) -> dict[str, bytes]:
    return {key: buffer.to_bytes() for key, buffer in sorted(memory._store_dict.items())}


def _rounding_error(exact: npt.NDArray[np.float32], stored: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> float:
    if stored.dtype == np.float32 or not valid.any():
        return 0.0
    reference = exact[valid].astype(np.float64)
    norms = np.linalg.norm(reference, axis=1)
    errors = np.linalg.norm(stored[valid].astype(np.float64) - reference, axis=1)
    return float((errors / np.where(norms > 0, norms, 1.0)).max())


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode()


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
