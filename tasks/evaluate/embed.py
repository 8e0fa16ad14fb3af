"""Embedding groups of shards on a worker: rows are read and decoded in threads while the encoder computes.

Every row is accounted for.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client, get_worker

from congruence.kernels.threads import usable_cores
from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import BATCHES_IN_FLIGHT, Encoder, InvalidRow
from congruence.tasks.encoders.loading import warm_encoder
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.store.embeddings import EmbeddingStore

BATCHES_AHEAD = 3
"""Decoded while the encoder is at work."""
_WAITING_SHARDS = 2


def embed_each(
    split: Split,
    shards: Sequence[Shard],
    encoder: Encoder,
    store: EmbeddingStore,
    *,
    threads: int | None = None,
) -> None:
    """Embed the rows of some shards into ``store``, except of those that are there.

    Rows are read and decoded by ``threads`` (default: one per usable core) at most three batches ahead of the encoder,
    so that memory does not grow with the shards; and across their borders, so that the encoder does not wait at the end
    of one. Finished shards are written by a thread of their own. A batch is the next valid rows of one shard, as many
    as the encoder takes: the partition, and with it every byte of the result, depends on the data alone, never on
    timing. An encoder of features with ``encode_matrix`` is given them as one matrix, with the same bytes as result.

    A row that cannot be read, decoded or embedded stays in its place, invalid, with its reason. Any other failure (the
    network, the disk, the device) is raised, and nothing of an unfinished shard counts as done.
    """
    pending = [
        _Pending(shard, encoder.dimension)
        for shard in shards
        if not (store.is_done(shard) or store.adopt(shard, **_beside(split, shard)))
    ]
    if encoder.encode_matrix is not None and split.settings.input_kind == "features":
        embedding = _by_matrix(split, pending, encoder)
    else:
        embedding = _by_rows(split, pending, encoder, threads or usable_cores())
    writing: deque[Future[None]] = deque()
    # What is complete is written even where a later shard fails; few wait, so that memory stays bounded.
    with ThreadPoolExecutor(1, thread_name_prefix="write-behind") as writer, closing(embedding) as embedded:
        for each in embedded:
            if len(writing) == _WAITING_SHARDS:
                writing.popleft().result()
            writing.append(writer.submit(_write, split, store, each))
        for written in writing:
            written.result()


def _beside(split: Split, shard: Shard) -> dict[str, Any]:
    """What is kept beside the embeddings of a shard."""
    return {"keys": split.keys(shard), "targets": split.targets(shard)}


class _Pending:
    """A shard on its way: its embeddings so far, and why rows have none."""

    def __init__(self, shard: Shard, dimension: int) -> None:
        self.shard = shard
        self.dimension = dimension
        self.invalid: dict[int, str] = {}

    @cached_property
    def embeddings(self) -> npt.NDArray[np.float32]:
        """(rows, dimension), NaN where nothing came yet; taken when the first batch comes."""
        return np.full((self.shard.rows, self.dimension), np.nan, dtype=np.float32)


_Embedding = Generator[_Pending, None, None]


def _write(split: Split, store: EmbeddingStore, each: _Pending) -> None:
    for row in np.flatnonzero(~np.isfinite(each.embeddings).all(axis=1)).tolist():
        each.invalid.setdefault(row, "the encoder's output is not finite")
    store.write(each.shard, each.embeddings, each.invalid, **_beside(split, each.shard))
    del each.embeddings


def _by_rows(split: Split, pending: Sequence[_Pending], encoder: Encoder, threads: int) -> _Embedding:
    """Encode batches of preprocessed rows into their places, some in flight: the shards as they are finished."""
    flying: deque[_Flight] = deque()
    reading = chain.from_iterable(split.input_readers(each.shard) for each in pending)
    with closing(_decoded(reading, encoder, threads)) as rows:
        for each, batch, is_last in _batches(pending, rows, encoder):
            if len(flying) == BATCHES_IN_FLIGHT:
                yield from flying.popleft().land()
            result = encoder.begin(list(batch.values())) if batch else None
            flying.append(_Flight(each, list(batch), result, is_last))
        while flying:
            yield from flying.popleft().land()


@dataclass(frozen=True)
class _Flight:
    """A batch that the encoder is at work on; the last of a shard may hold no rows."""

    of: _Pending
    rows: list[int]
    result: Callable[[], npt.NDArray[np.float32]] | None
    is_last: bool

    def land(self) -> Iterator[_Pending]:
        """Wait for the batch: the shard, if it is finished."""
        if self.result is not None:
            self.of.embeddings[self.rows] = self.result()
        if self.is_last:
            yield self.of


def _by_matrix(split: Split, pending: Sequence[_Pending], encoder: Encoder) -> _Embedding:
    """As `_by_rows`, of one matrix a shard; a row that comes out wrong is asked by itself for the reason."""
    assert encoder.encode_matrix is not None
    for each in pending:
        matrix, reasons = split.features(each.shard, missing=encoder.takes_missing)
        each.invalid.update(reasons)
        each.embeddings[:] = encoder.encode_matrix(matrix)
        doubtful = set(np.flatnonzero(~np.isfinite(each.embeddings).all(axis=1)).tolist()) - each.invalid.keys()
        for row, read in enumerate(split.input_readers(each.shard) if doubtful else ()):
            if row in doubtful:
                decoded = _decode(read, encoder)
                if isinstance(decoded, InvalidRow):
                    each.invalid[row] = decoded.reason
                else:
                    each.embeddings[row] = encoder.encode([decoded])[0]
        yield each


def _batches(
    pending: Sequence[_Pending], rows: Iterator[Any], encoder: Encoder
) -> Iterator[tuple[_Pending, dict[int, Any], bool]]:
    """The valid rows of each shard by number in order, in batches of the encoder's size as the shard begins.

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


def _decoded(readers: Iterator[Reader], encoder: Encoder, threads: int) -> Generator[Any, None, None]:
    """Preprocessed rows in order, or why they are invalid.

    One thread streams the rows from the source, so that a batch is read while the encoder is at work; others load and
    decode them, some batches ahead.
    """
    decoded: SimpleQueue[Future[Any] | Exception | None] = SimpleQueue()
    room, stopped = Semaphore(BATCHES_AHEAD * encoder.batch_size), Event()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def feed() -> None:
        try:
            for read in readers:
                room.acquire()
                if stopped.is_set():
                    return
                decoded.put(pool.submit(_decode, read, encoder))
            decoded.put(None)
        except Exception as failure:
            decoded.put(failure)

    feeder = Thread(target=feed, name="read-ahead", daemon=True)
    feeder.start()
    try:
        while (row := decoded.get()) is not None:
            if isinstance(row, Exception):
                raise row
            yield row.result()
            room.release()
    finally:
        stopped.set()
        room.release()  # the feeder may wait for it
        feeder.join()
        pool.shutdown(wait=True, cancel_futures=True)


def _decode(read: Reader, encoder: Encoder) -> Any:
    try:
        return encoder.preprocess(read())
    except InvalidRow as invalid:
        return invalid


logger = logging.getLogger(__name__)


def decode_threads(client: Client) -> dict[str, int]:
    """Returns the decode threads of each worker of a cluster, by its address.

    They are the usable cores of its host over its workers there, so that those of all workers fill the cores and no
    more. The threads of a Dask worker say nothing about this: it has one, lest a solver's BLAS be in its own way.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    hosts = {address: str(worker["host"]) for address, worker in workers.items()}
    beside = Counter(hosts.values())
    cores: dict[str, int] = client.run(usable_cores, on_error="ignore")
    return {address: max(1, cores[address] // beside[hosts[address]]) for address in hosts if address in cores}


def own_threads(threads: Mapping[str, int]) -> int:
    """Returns what `decode_threads` says of the worker that asks; where it says nothing, all cores it may use."""
    if not threads:
        return usable_cores()
    return threads.get(str(get_worker().address)) or usable_cores()


def settle_batch_size(encoder: Encoder, store: EmbeddingStore) -> str | None:
    """Give ``encoder`` the batch size that ``store`` holds, measured now where it holds none.

    Returns:
        What was measured, as a line for people; None where nothing was.
    """
    if not encoder.searches_batch_size:
        return None
    size, line = store.batch_size(encoder.device_kind), None
    if size is None:
        found = encoder.search_batch_size()
        size = store.settle_batch_size(encoder.device_kind, found.batch_size)
        line = str(found) if size == found.batch_size else f"{found}; but another worker settled on {size} before"
        logger.info("%s on %s: %s", encoder.id, encoder.device_kind, line)
    encoder.use_batch_size(size)
    return line


def find_batch_size(encoder: EncoderSettings, rows: EvaluatedRows) -> str | None:
    """Settle the batch size of the rows' store in this process; see settle_batch_size."""
    return settle_batch_size(warm_encoder(encoder), rows.store)


def embed_shards(
    rows: EvaluatedRows, encoder: EncoderSettings, threads: Mapping[str, int], shards: list[Shard]
) -> None:
    """Embed some shards of ``rows`` in this process; shards that the store holds are skipped.

    Weights are loaded and the store is opened once per process. ``threads`` is what `decode_threads` says of workers.
    """
    warm = warm_encoder(encoder)
    settle_batch_size(warm, rows.store)
    embed_each(rows.split, shards, warm, rows.store, threads=own_threads(threads))
