"""Embedding one shard: reading and decoding in threads while the encoder computes, every row accounted for."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from congruence.tasks.embeddings.decoding import usable_cores
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.sources.inputs import Reader
from congruence.tasks.sources.split import Shard, Split

Progress = Callable[[int, int], None]
"""Called with the rows of the shard that are done and the rows that it has."""


class RowEncoder(Protocol):
    """What embedding asks of an encoder."""

    @property
    def dimension(self) -> int: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102

    def preprocess(self, raw: Any) -> Any:
        """One row, made ready; called from several threads; raises InvalidRow where it cannot be."""

    def encode(self, batch: list[Any]) -> npt.NDArray[np.float32]:
        """The embeddings (rows, dimension) of a batch of preprocessed rows."""


@runtime_checkable
class MatrixEncoder(RowEncoder, Protocol):
    """An encoder of features that takes many rows at once; row by row it would give the same bytes."""

    def encode_matrix(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """The embeddings of raw ``rows`` (rows, features), not finite where `preprocess` or `encode` refuses one."""


@dataclass(frozen=True)
class ShardReport:
    """What became of one shard. ``waiting`` is the part of ``seconds`` in which the encoder had nothing to do."""

    index: int
    rows: int
    valid_rows: int
    reasons: Mapping[int, str] = field(repr=False)
    """Why, for each invalid row, by row of the split."""
    embedded: bool
    """False where the store held the shard already."""
    seconds: float
    waiting: float


def embed_shard(
    split: Split,
    shard: Shard,
    encoder: RowEncoder,
    store: EmbeddingStore,
    *,
    batch_size: int | None = None,
    threads: int | None = None,
    prefetch_batches: int = 3,
    progress: Progress | None = None,
) -> ShardReport:
    """Embed the rows of ``shard`` into ``store``, unless they are there.

    Rows are read and decoded by ``threads`` (default: one per usable core) at most ``prefetch_batches`` batches ahead
    of the encoder, so that memory does not grow with the shard. A batch is the next ``batch_size`` valid rows (default:
    the encoder's): the partition, and with it every byte of the result, depends on the data alone, never on timing. An
    encoder of features with ``encode_matrix`` is given them as one matrix, with the same bytes as result.

    A row that cannot be read, decoded or embedded stays in its place, invalid, with its reason. Any other failure (the
    network, the disk, the device) is raised, and nothing of the shard counts as done.
    """
    started = time.perf_counter()
    if store.is_done(shard):
        reasons = store.reasons(slice(shard.start, shard.stop))
        return ShardReport(shard.index, shard.rows, shard.rows - len(reasons), reasons, False, _since(started), 0.0)
    size = batch_size or encoder.batch_size
    embeddings = np.full((shard.rows, encoder.dimension), np.nan, dtype=np.float32)
    invalid: dict[int, str] = {}
    tell = progress or _silent
    if isinstance(encoder, MatrixEncoder) and split.settings.input_kind == "features":
        waiting = _embed_features(split, shard, encoder, embeddings, invalid)
    else:
        batches = _batches(split.input_readers(shard), encoder, size, threads, prefetch_batches, invalid)
        waiting = _embed_rows(batches, shard, encoder, embeddings, tell)
    valid = np.ones(shard.rows, dtype=bool)
    valid[list(invalid)] = False
    for row in np.flatnonzero(valid & ~np.isfinite(embeddings).all(axis=1)).tolist():
        valid[row] = False
        invalid[row] = "the encoder's output is not finite"
    # Where memory ran out the encoder went on with fewer rows: the marker says with how many.
    store.write(shard, embeddings, valid, invalid, min(size, encoder.batch_size))
    tell(shard.rows, shard.rows)
    reasons = {shard.start + row: reason for row, reason in sorted(invalid.items())}
    return ShardReport(shard.index, shard.rows, int(valid.sum()), reasons, True, _since(started), waiting)


def _embed_rows(
    batches: Iterator[list[tuple[int, Any]]],
    shard: Shard,
    encoder: RowEncoder,
    embeddings: npt.NDArray[np.float32],
    tell: Progress,
) -> float:
    """Encode batches of preprocessed rows into their places; the seconds that were spent waiting for them."""
    waiting, asked = 0.0, time.perf_counter()
    for batch in batches:
        waiting += _since(asked)
        rows = [row for row, _ in batch]
        embeddings[rows] = encoder.encode([value for _, value in batch])
        tell(rows[-1] + 1, shard.rows)
        asked = time.perf_counter()
    return waiting


def _embed_features(
    split: Split,
    shard: Shard,
    encoder: MatrixEncoder,
    embeddings: npt.NDArray[np.float32],
    invalid: dict[int, str],
) -> float:
    """As `_embed_rows`, of one matrix; a row that comes out wrong is asked by itself for the reason."""
    asked = time.perf_counter()
    matrix, reasons = split.features(shard)
    waiting = _since(asked)
    invalid.update(reasons)
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
    readers: Iterator[Reader],
    encoder: RowEncoder,
    batch_size: int,
    threads: int | None,
    prefetch_batches: int,
    invalid: dict[int, str],
) -> Iterator[list[tuple[int, Any]]]:
    """The valid rows in order, ``batch_size`` at a time, decoded ahead; notes the invalid ones in ``invalid``."""
    batch: list[tuple[int, Any]] = []
    with _Prefetch(readers, encoder, threads or usable_cores(), prefetch_batches * batch_size) as decoded_rows:
        for row, decoded in enumerate(decoded_rows):
            if isinstance(decoded, InvalidRow):
                invalid[row] = decoded.reason
            else:
                batch.append((row, decoded))
            if len(batch) == batch_size:
                yield batch
                batch = []
    if batch:
        yield batch


class _Prefetch:
    """Preprocessed rows in order: one thread streams the rows from the source, others load and decode them.

    At most ``depth`` rows are held between the source and the consumer.
    """

    def __init__(self, readers: Iterator[Reader], encoder: RowEncoder, threads: int, depth: int) -> None:
        self._readers = readers
        self._encoder = encoder
        self._rows: Queue[Future[Any] | None] = Queue(maxsize=depth)
        self._stopped = Event()
        self._failure: BaseException | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._feeder = Thread(target=self._feed, name="read-ahead", daemon=True)

    def __enter__(self) -> "_Prefetch":
        self._feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._feeder.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Any]:
        while (future := self._rows.get()) is not None:
            yield future.result()
        if self._failure is not None:
            raise self._failure

    def _feed(self) -> None:
        try:
            for read in self._readers:
                if not self._put(self._pool.submit(_decode, read, self._encoder)):
                    return
        except Exception as failure:
            self._failure = failure
        self._put(None)

    def _put(self, item: Future[Any] | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._rows.put(item, timeout=0.1)
            except Full:
                continue
            return True
        return False


def _decode(read: Reader, encoder: RowEncoder) -> Any:
    try:
        return encoder.preprocess(read())
    except InvalidRow as invalid:
        return invalid


def _silent(done: int, rows: int) -> None:
    """Progress that nobody asked for."""


def _since(moment: float) -> float:
    return time.perf_counter() - moment
