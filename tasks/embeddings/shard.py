"""Embedding one shard: reading and decoding in threads while the encoder computes, every row accounted for."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from congruence.kernels.threads import usable_cores
from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.shards import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.store.embeddings import EmbeddingStore

_WAITING_SHARDS = 2


@dataclass(frozen=True)
class ShardReport:
    """What became of one shard. ``waiting`` is the part of ``seconds`` in which the encoder had nothing to do."""

    rows: int
    valid_rows: int
    embedded: bool
    """False where the store held the shard already."""
    seconds: float
    waiting: float


def embed_each(
    split: Split,
    shards: Sequence[Shard],
    encoder: Encoder,
    store: EmbeddingStore,
    *,
    threads: int | None = None,
    prefetch_batches: int = 3,
) -> list[ShardReport]:
    """Embed the rows of some shards into ``store``, except of those that are there.

    Rows are read and decoded by ``threads`` (default: one per usable core) at most ``prefetch_batches`` batches ahead
    of the encoder, so that memory does not grow with the shards; and across their borders, so that the encoder does not
    wait at the end of one. Finished shards are written by a thread of their own. A batch is the next valid rows of one
    shard, as many as the encoder asks for: the partition, and with it every byte of the result, depends on the data
    alone, never on timing. An encoder of features with ``encode_matrix`` is given them as one matrix, with the same
    bytes as result.

    A row that cannot be read, decoded or embedded stays in its place, invalid, with its reason. Any other failure (the
    network, the disk, the device) is raised, and nothing of an unfinished shard counts as done.
    """
    done = {
        shard.index: _held_report(shard, store)
        for shard in shards
        if store.is_done(shard) or store.adopt(shard, **_beside(split, shard))
    }
    pending = [_Pending(shard, encoder.dimension) for shard in shards if shard.index not in done]
    with _Writer(split, store) as writer:
        if encoder.encode_matrix is not None and split.settings.input_kind == "features":
            for each in pending:
                each.waiting = _embed_features(split, each.shard, encoder, each.embeddings, each.invalid)
                writer.write(each)
        elif pending:
            _embed_rows(split, pending, encoder, writer, threads or usable_cores(), prefetch_batches)
    reports = done | writer.reports
    return [reports[shard.index] for shard in shards]


def _beside(split: Split, shard: Shard) -> dict[str, Any]:
    """What is kept beside the embeddings of a shard."""
    return {"keys": split.keys(shard), "targets": split.targets(shard)}


def _held_report(shard: Shard, store: EmbeddingStore) -> ShardReport:
    started = time.perf_counter()
    invalid = len(store.reasons(slice(shard.start, shard.stop)))
    return ShardReport(shard.rows, shard.rows - invalid, False, _since(started), 0.0)


class _Pending:
    """A shard on its way: its embeddings so far, and why rows have none."""

    def __init__(self, shard: Shard, dimension: int) -> None:
        self.shard = shard
        self.dimension = dimension
        self.invalid: dict[int, str] = {}
        self.waiting = 0.0
        self.started = time.perf_counter()

    @cached_property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(rows, dimension), NaN where nothing came yet; taken when the first batch comes."""
        return np.full((self.shard.rows, self.dimension), np.nan, dtype=np.float32)


class _Writer:
    """Writes finished shards behind the encoder; at most two wait, so that memory stays bounded."""

    def __init__(self, split: Split, store: EmbeddingStore) -> None:
        self._split, self._store = split, store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._writing: deque[Future[None]] = deque()
        self.reports: dict[int, ShardReport] = {}

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._writing and kind is None:
                self._writing.popleft().result()
        finally:
            self._pool.shutdown(wait=True)  # what is complete is written even where a later shard failed

    def write(self, each: _Pending) -> None:
        """Have a finished shard written; raises what an earlier one could not be written for."""
        while len(self._writing) >= _WAITING_SHARDS:
            self._writing.popleft().result()
        self._writing.append(self._pool.submit(self._write, each))

    def _write(self, each: _Pending) -> None:
        shard, embeddings, invalid = each.shard, each.embeddings, each.invalid
        for row in set(np.flatnonzero(~np.isfinite(embeddings).all(axis=1)).tolist()) - invalid.keys():
            invalid[row] = "the encoder's output is not finite"
        self._store.write(shard, embeddings, invalid, **_beside(self._split, shard))
        del each.embeddings, embeddings
        valid = shard.rows - len(invalid)
        self.reports[shard.index] = ShardReport(shard.rows, valid, True, _since(each.started), each.waiting)


def _embed_rows(
    split: Split, pending: Sequence[_Pending], encoder: Encoder, writer: _Writer, threads: int, prefetch_batches: int
) -> None:
    """Encode batches of preprocessed rows into their places."""
    following = iter(pending[1:])
    with closing(_decoded(split, pending, encoder, threads, prefetch_batches * encoder.batch_size)) as rows:
        asked = pending[0].started = time.perf_counter()
        for each, batch, is_last in _batches(pending, rows, encoder):
            each.waiting += _since(asked)
            if batch:
                each.embeddings[list(batch)] = encoder.encode(list(batch.values()))
            if is_last:
                writer.write(each)
            asked = time.perf_counter()
            if is_last and (after := next(following, None)) is not None:
                after.started = asked


def _embed_features(
    split: Split,
    shard: Shard,
    encoder: Encoder,
    embeddings: npt.NDArray[np.float32],
    invalid: dict[int, str],
) -> float:
    """As `_embed_rows`, of one matrix; a row that comes out wrong is asked by itself for the reason."""
    asked = time.perf_counter()
    matrix, reasons = split.features(shard, missing=encoder.takes_missing)
    waiting = _since(asked)
    invalid.update(reasons)
    assert encoder.encode_matrix is not None
    embeddings[:] = encoder.encode_matrix(matrix)
    doubtful = set(np.flatnonzero(~np.isfinite(embeddings).all(axis=1)).tolist()) - invalid.keys()
    for row, read in enumerate(split.input_readers(shard) if doubtful else ()):
        if row in doubtful:
            decoded = _decode(read, encoder)
            if isinstance(decoded, InvalidRow):
                invalid[row] = decoded.reason
            else:
                embeddings[row] = encoder.encode([decoded])[0]
    return waiting


def _batches(
    pending: Sequence[_Pending], rows: Iterator[Any], encoder: Encoder
) -> Iterator[tuple[_Pending, dict[int, Any], bool]]:
    """The valid rows of each shard in order, by batches of the size that the encoder has when the shard begins.

    With each batch whether it is the shard's last, which may be empty. Notes the invalid rows.
    """
    for each in pending:
        batch: dict[int, Any] = {}
        size = encoder.batch_size
        for row, decoded in enumerate(islice(rows, each.shard.rows)):
            if isinstance(decoded, InvalidRow):
                each.invalid[row] = decoded.reason
            else:
                batch[row] = decoded
            if len(batch) == size:
                yield each, batch, False
                batch = {}
        yield each, batch, True


def _decoded(
    split: Split, pending: Sequence[_Pending], encoder: Encoder, threads: int, depth: int
) -> Generator[Any, None, None]:
    """Preprocessed rows in order: one thread streams the rows from the source, others load and decode them.

    At most ``depth`` rows are held between the source and the consumer.
    """
    with ThreadPoolExecutor(threads, "decode") as decoders, ThreadPoolExecutor(1, "read-ahead") as reader:
        readers = (read for each in pending for read in split.input_readers(each.shard))
        begun = (decoders.submit(_decode, read, encoder) for read in readers)
        ahead = deque(reader.submit(next, begun, None) for _ in range(depth))
        try:
            while (row := ahead.popleft().result()) is not None:
                yield row.result()
                ahead.append(reader.submit(next, begun, None))
        finally:
            for pool in (reader, decoders):
                pool.shutdown(cancel_futures=True)


def _decode(read: Reader, encoder: Encoder) -> Any:
    try:
        return encoder.preprocess(read())
    except InvalidRow as invalid:
        return invalid


def _since(moment: float) -> float:
    return time.perf_counter() - moment
