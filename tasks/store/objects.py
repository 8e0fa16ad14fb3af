"""Whole objects at a URI, written so that a reader or a kill never sees half of one; and predictions as such objects.

    <store>/predictions/<version>-<contract>/<shard digest>-<digest of the rest>.npz

The name of an object of predictions says what it answers: the inputs of a shard, its other model inputs, and which of
its rows are asked for. So where rows are appended, or a target is corrected, the version is asked for new inputs alone.
It holds the parameters of the family by their names, one row for each row that was predicted, and a description as
JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.kernels.distributions.recalibrated import Recalibrated, RecalibratedCount, recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.data.inputs import ContentDigest, combine
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.runtime.files import MadeOnce, digest_of, from_npz, is_local, to_npz, write_whole
from congruence.tasks.settings.sections import ModelVersion, families

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


PREDICTIONS_FORMAT = 3
_READ_AT_ONCE = 8
_DESCRIPTION = "description"


class PredictionsError(CongruenceError):
    """Predictions that are missing or damaged: names the version, the file and the remedy."""


class NotPredictedError(PredictionsError):
    """Predictions that were not made yet, or were removed."""


@dataclass(frozen=True)
class KeptPredictions:
    """The predictions of one version, read by one contract, in a store; small enough to travel with the work.

    Attributes:
        objects: the store of the embeddings.
        folder: the key in that store below which they lie.
        label: what people call the version.
    """

    objects: ObjectStore = field(repr=False)
    folder: str
    label: str

    @classmethod
    def of(cls, objects: ObjectStore, version: ModelVersion, contract: str) -> KeptPredictions:
        """Returns what ``version`` predicts, read by the contract of that ``contract_digest``."""
        # MLflow's id of the logged model; versions of MLflow 2 have none, but name the run that logged them.
        model = version.model_id or "v-" + digest_of([version.name, version.version, version.uri, version.run_id])
        read = digest_of({"format": PREDICTIONS_FORMAT, "contract": contract})
        return cls(objects, f"predictions/{model}-{read}", version.label)

    def key(self, name: str) -> str:
        """Returns the key of the object of that name."""
        return f"{self.folder}/{name}.npz"

    def missing(self, names: Sequence[str]) -> list[str]:
        """Returns those of ``names`` that are still to be predicted, by one listing."""
        done = self.objects.finished(self.folder)
        return [name for name in names if self.key(name) not in done]

    def read(self, names: Sequence[str]) -> Distribution:
        """Returns the predictive distributions under ``names`` one after the other.

        Raises:
            NotPredictedError: one of them is not there.
            PredictionsError: a damaged file; or there are no ``names``.
            ContractError: they are not of one family and shape.
        """
        if not names:
            raise PredictionsError(f"{self.label}: none of these rows is valid, so none was predicted")
        with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
            return concatenate(list(threads.map(self._read, names)))

    def _read(self, name: str) -> Distribution:
        content, place = self.objects.get(self.key(name)), f"{self.objects.uri}/{self.key(name)}"
        if content is None:
            raise NotPredictedError(f"{self.label}: predictions are missing ({place}); run the evaluation again")
        try:
            arrays = from_npz(content)
            return restore(json.loads(str(arrays.pop(_DESCRIPTION))), arrays)
        except (ValueError, KeyError, InvalidInputError) as error:
            raise PredictionsError(
                f"{self.label}: {place} is damaged ({error}); delete this file and run the evaluation again: it "
                "asks the version for these rows and keeps the others"
            ) from error

    def write(self, name: str, distribution: Distribution) -> None:
        """Stores what was predicted, after which it is done."""
        arrays: dict[str, Array] = {}
        description = np.array(json.dumps(describe(distribution, arrays)))
        self.objects.put(self.key(name), to_npz({**arrays, _DESCRIPTION: description}))

    def remove(self, names: Sequence[str]) -> None:
        """Removes what is kept under ``names``, so that the version is asked again."""
        self.objects.remove([self.key(name) for name in names])


def object_name(split: Split, shard: Shard, valid: Array) -> str:
    """Returns the name of the object that answers for the ``valid`` rows, (rows,), of a shard."""
    settings = split.settings
    others = [name for name in settings.model_input_columns if name not in settings.input_columns]
    named = json.dumps([settings.input_kind, settings.input_columns, others, settings.exposure])
    content = b""
    if others or settings.exposure is not None:
        key = (split.digest, shard.start, shard.rows, named)
        content = _contents.get(key, lambda: _content(split, shard, others)).encode()
    mask = np.packbits(np.asarray(valid, dtype=bool)).tobytes()
    return f"{shard.digest}-{combine([named.encode(), content, mask])}"


def concatenate(parts: Sequence[Distribution]) -> Distribution:
    """Returns the rows of several parts of one version's predictions as one.

    Raises:
        ContractError: the parts are not of one family and shape.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return type(parts[0]).concatenate(parts)
    except (InvalidInputError, ValueError, AttributeError, KeyError) as error:
        raise ContractError(
            f"predictions of several shards do not fit together ({error}); a version must give every row the same "
            "number of samples, quantiles or components"
        ) from error


_contents = MadeOnce[str](2**14)


def _content(split: Split, shard: Shard, columns: Sequence[str]) -> str:
    """A digest of what a version is given of a shard beside the encoder's input, which the shard's digest covers."""
    frame, state = split.frame(shard, columns), ContentDigest()
    for name in columns:
        column = pa.array(frame[name], from_pandas=True)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:  # text of several files
            state.add_column(chunk)
    exposure = None if split.settings.exposure is None else split.design([shard]).exposure
    return combine([state.digest(), b"" if exposure is None else np.asarray(exposure, dtype=np.float64).tobytes()])


_MAP = ("shift", "factor", "levels", "shares")
"""Of a ``NormalScoreMap``, in the order of its constructor."""


def describe(distribution: Distribution, arrays: dict[str, Array], prefix: str = "") -> dict[str, Any]:
    """The family and the names of its parameters in the constructor's order; the arrays under those names are added.

    Component k of a mixture has arrays ``component_k.NAME``; of a part, ``prefix`` begins the names.
    """
    if distribution.recalibration is not None:
        base, score_map = distribution.recalibration
        arrays |= {f"{prefix}map.{name}": getattr(score_map, name) for name in _MAP}
        return {"recalibrated": describe(base, arrays, f"{prefix}base.")}
    if distribution.mixture is not None:
        weights, components = distribution.mixture
        arrays[f"{prefix}weights"] = weights
        listed = enumerate(components)
        return {"components": [describe(part, arrays, f"{prefix}component_{k}.") for k, part in listed]}
    parameters = distribution.parameters()
    arrays |= {f"{prefix}{name}": values for name, values in parameters.items()}
    return {"family": distribution.family, "parameters": list(parameters)}


def restore(description: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str = "") -> Distribution:
    """The distribution that ``describe`` described.

    Raises:
        KeyError, InvalidInputError: description and arrays do not belong together.
    """
    if "recalibrated" in description:
        base = restore(description["recalibrated"], arrays, f"{prefix}base.")
        score_map = NormalScoreMap(*(arrays[f"{prefix}map.{name}"] for name in _MAP))
        if base.draws is not None:
            return recalibrated(base, score_map)
        kept: Any = RecalibratedCount if base.is_discrete else Recalibrated
        return kept(base, score_map)  # type: ignore[no-any-return]
    if "components" in description:
        listed = enumerate(description["components"])
        parts = [restore(part, arrays, f"{prefix}component_{k}.") for k, part in listed]
        return Mixture(arrays[f"{prefix}weights"], parts)
    family: Any = families()[description["family"]]
    return family(*(arrays[f"{prefix}{name}"] for name in description["parameters"]))  # type: ignore[no-any-return]
