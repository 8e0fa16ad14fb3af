"""What workers do with the pieces of an evaluation: check a version, embed or predict some shards, solve, score, log.

Rows are read and decoded in threads while the encoder computes; every row is accounted for.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from distributed import Client, get_worker, worker_client

from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.threads import usable_cores
from congruence.tasks.contract import ContractError, ContractReport, PredictionSettings
from congruence.tasks.contract.model import resolved_contract
from congruence.tasks.dask.workers import give_back
from congruence.tasks.data.inputs import Reader
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import BATCHES_IN_FLIGHT, Encoder, InvalidRow
from congruence.tasks.encoders.loading import asking_encoder, warm_encoder
from congruence.tasks.evaluate.executors import tell
from congruence.tasks.evaluate.plan import VersionOutcome, protocol_name
from congruence.tasks.mlflow.connection import use_tracking, with_retries
from congruence.tasks.models.evaluated_rows import EvaluatedRows, try_contract
from congruence.tasks.models.processes import ServedVersion
from congruence.tasks.models.registry import IN_USE, resolve
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.runtime.lines import about
from congruence.tasks.settings.evaluation import EvaluationSettings, entry_digest, settings_digest
from congruence.tasks.settings.sections import EncoderSettings, ModelVersion
from congruence.tasks.solving.solve import MeasurementAddress, SolveWork, solve_versions
from congruence.tasks.store.embeddings import EmbeddingStore

R = TypeVar("R")
logger = logging.getLogger(__name__)

BATCHES_AHEAD = 3
"""Decoded while the encoder is at work."""
_WAITING_SHARDS = 2


def rows_of(settings: EvaluationSettings, split: Split) -> EvaluatedRows:
    """The addresses of a split's embeddings under these settings; their store is made where there is none."""
    store = EmbeddingStore.open(
        settings.store_uri,
        split,
        asking_encoder(settings.encoder),
        dtype=settings.store.dtype,
        storage_options=settings.store.storage_options,
        describe={"split": split.name, "key": split.key_column, "targets": split.settings.target_columns},
    )
    return EvaluatedRows(split, store.address)


def serve(settings: EvaluationSettings, version: ModelVersion, split: Split | None = None) -> ServedVersion:
    """What is needed to load ``version``, on a worker or here; or to read its predictions where ``split`` has them."""
    entry = settings.entry_of(version.uri)
    stored = None if split is None else split.settings.stored.get(version.uri)
    own = entry.predictions or PredictionSettings()
    return ServedVersion(
        version,
        resolved_contract(version, entry.predictions) if stored is None else own,
        settings.tracking,
        settings.predict,
        str(settings.home_folder / "environments"),
        None if entry.model_inputs is None else tuple(entry.model_inputs),
        stored,
    )


def checked_version(
    settings: EvaluationSettings, split: Split, version: ModelVersion
) -> tuple[ServedVersion, ContractReport]:
    """A version that keeps its contract on a few rows of ``split``, and what was seen, in this process.

    Raises:
        ContractError: it cannot be loaded, or does not keep it.
        TrackingError: MLflow does not answer.
    """
    use_tracking(settings.tracking)
    step = f"loading {version.label}"

    def load() -> tuple[ServedVersion, ContractReport]:
        served = serve(settings, version, split)
        return served, try_contract(served, split, missing=settings.encoder.takes_missing)

    try:
        return with_retries(step, load, settings.tracking)
    except ContractError:
        # MLflow may have gone away while the files came: not the version's failure. Once it answers, they come again.
        with_retries(step, lambda: resolve(version.uri), settings.tracking)
        return with_retries(step, load, settings.tracking)


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


def require_features(split: Split, dimension: int, fitted_on: str) -> None:
    """Raise SplitError where the rows of ``split`` have another number of features than ``dimension``.

    ``fitted_on`` names the split that statistics are fitted to where they are not given.
    """
    found = split.facts.present
    size = dimension if found is None else len(found.count)
    if size != dimension:
        raise SplitError(
            f"split {split.name!r}: its rows have {size} features, but the encoder standardises {dimension} (those of "
            f"encoder.mean, scale and dimension, else of split {fitted_on!r}); name the same columns as input in every "
            "split"
        )


def embed_shards(
    rows: EvaluatedRows, encoder: EncoderSettings, threads: Mapping[str, int], shards: list[Shard]
) -> None:
    """Embed some shards of ``rows`` in this process; shards that the store holds are skipped.

    Weights are loaded and the store is opened once per process. ``threads`` is what `decode_threads` says of workers.
    """
    warm = warm_encoder(encoder)
    settle_batch_size(warm, rows.store)
    embed_each(rows.split, shards, warm, rows.store, threads=own_threads(threads))


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
    flying: deque[tuple[_Pending, list[int], Callable[[], npt.NDArray[np.float32]] | None, bool]] = deque()

    def landed() -> Iterator[_Pending]:
        """Wait for a batch: its shard, if that is finished; the last of a shard may hold no rows."""
        each, rows, result, is_last = flying.popleft()
        if result is not None:
            each.embeddings[rows] = result()
        if is_last:
            yield each

    reading = chain.from_iterable(split.input_readers(each.shard) for each in pending)
    with closing(_decoded(reading, encoder, threads)) as decoded:
        for each, batch, is_last in _batches(pending, decoded, encoder):
            if len(flying) == BATCHES_IN_FLIGHT:
                yield from landed()
            flying.append((each, list(batch), encoder.begin(list(batch.values())) if batch else None, is_last))
        while flying:
            yield from landed()


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


def asked(
    settings: EvaluationSettings,
    ask: Callable[[EvaluatedRows, str, list[Shard]], R],
    piece: tuple[EvaluatedRows, str, list[Shard]],
) -> R:
    """What some rows are asked: of the predictions of one version, by its label, in some shards."""
    use_tracking(settings.tracking)
    return ask(*piece)


def solve_on_cluster(settings: EvaluationSettings, task: SolveWork) -> None:
    """On a worker, which prepares the system; all workers take tiles and versions."""
    split = task.reference.split.name
    use_tracking(settings.tracking)
    with about(split), worker_client() as client:
        solve_versions(client, settings, task, lambda line: tell(f"solving {split}: {line}"))


def score_and_log(
    settings: EvaluationSettings,
    protocol: EvaluationProtocol,
    again: bool,
    piece: tuple[EvaluatedRows, MeasurementAddress, ModelVersion, str],
) -> VersionOutcome:
    """Make every score of one version from its predictions and its measurement, and log it from here."""
    from congruence.tasks.mlflow.evaluations import log_evaluation  # draws, and is not loaded in the flow's process
    from congruence.tasks.scores.evaluation import statement_of
    from congruence.tasks.scores.version import score_version

    rows, kept, version, run_id = piece
    use_tracking(settings.tracking)
    with about(version.label):
        give_back()
        encoder = asking_encoder(settings.encoder)
        evaluation = score_version(
            rows, encoder, version, protocol, kept.require(), metrics=settings.metrics, seed=settings.seed
        )
        evaluation = replace(
            evaluation,
            settings_digest=settings_digest(settings, rows.split.settings),
            own_settings=entry_digest(settings, rows.split.settings, version.uri),
            provenance=evaluation.provenance | {"settings": settings.model_dump(mode="json", exclude={"home"})},
        )
    give_back()
    baseline = (None if settings.gate is None else settings.gate.baseline) or IN_USE
    run_id = log_evaluation(evaluation, settings.tracking, replace=again, baseline=baseline, run_id=run_id)
    kept.remove()
    wrong = () if evaluation.wrong is None else evaluation.wrong.sentences
    said = protocol_name(protocol), evaluation.verdict, wrong, statement_of(evaluation.stated, evaluation.levels)
    return VersionOutcome(version.label, rows.split.name, "evaluated", run_id, evaluation.metrics, *said)
