"""Embedding on a worker: groups of shards, and the rows that have no embedding after."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from distributed import Client, get_worker

from congruence.kernels.threads import usable_cores
from congruence.tasks.data.settings import Shard
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.shard import ShardReport, embed_each
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.encoders.loading import warm_encoder
from congruence.tasks.runtime.errors import TooManyInvalidRowsError
from congruence.tasks.runtime.files import digest_of, write_whole
from congruence.tasks.settings.evaluation import StoreSettings
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.store.embeddings import EmbeddingStore, open_store_cached
from congruence.tasks.store.objects import StoreAddress, store_header

_LISTED = 5
_REMEDY = "Repair these inputs, or raise max_invalid if the evaluation may leave them out."
LOOKED_AT = 300
"""Pictures, evenly spaced, that are decoded before an evaluation is said to be possible."""


def require_few_invalid(
    reasons: Mapping[int, str], split: Split, max_invalid: float = 0.01, folder: Path | None = None
) -> str | None:
    """What there is to say of the rows that have no embedding; None where all have one.

    Args:
        reasons: why, by row of the split.
        split: their split.
        max_invalid: the fraction of rows that may be left out.
        folder: where all of them are listed, one JSON object a line, when the message does not hold them.

    Raises:
        TooManyInvalidRowsError: more rows than ``max_invalid`` allows.
    """
    if not reasons:
        return None
    share = f"{len(reasons)} of {split.rows} rows have no embedding ({len(reasons) / split.rows:.2%}"
    listed = _listed(reasons, split, folder)
    if len(reasons) <= max_invalid * split.rows:
        return f"split {split.name!r}: {share}) and are left out:\n{listed}"
    raise TooManyInvalidRowsError(f"split {split.name!r}: {share}, allowed {max_invalid:.2%}):\n{listed}\n{_REMEDY}")


def require_pictures(split: Split, max_invalid: float, max_pixels: int) -> str | None:
    """What there is to say of pictures that cannot be shown, before all are read: files of all, content of hundreds.

    Raises:
        TooManyInvalidRowsError: as it seems, more rows than ``max_invalid`` allows have none.
    """
    if split.settings.input_kind != "image":
        return None
    absent = split.rows_without_file()
    reasons = dict.fromkeys(absent, "its file does not exist")
    step = max(1, split.rows // LOOKED_AT)
    for shard in split.shards:
        chosen = set(range(-(-shard.start // step) * step, shard.stop, step)).difference(absent)
        for row, read in enumerate(split.input_readers(shard) if chosen else (), shard.start):
            if row in chosen:
                try:
                    decode_image(read(), max_pixels)
                except InvalidRow as invalid:
                    reasons[row] = invalid.reason
    if not reasons:
        return None
    expected = min(split.rows, len(absent) + step * (len(reasons) - len(absent)))
    said = f"split {split.name!r}: about {expected} of {split.rows} rows have no picture"
    said = f"{said if step > 1 else said.replace('about ', '')} ({expected / split.rows:.2%}"
    if expected <= max_invalid * split.rows:
        return f"{said}) and are left out:\n{_listed(reasons, split, None)}"
    raise TooManyInvalidRowsError(f"{said}, allowed {max_invalid:.2%}):\n{_listed(reasons, split, None)}\n{_REMEDY}")


def _listed(reasons: Mapping[int, str], split: Split, folder: Path | None) -> str:
    rows = sorted(reasons)
    lines = [f"  row {row} ({split.place(row)}): {reasons[row]}" for row in rows[:_LISTED]]
    if len(rows) > _LISTED:
        commonest = Counter(reasons.values()).most_common(1)[0][0]
        where = "" if folder is None else f"; all of them: {_write(reasons, split, folder)}"
        lines.append(f"  and {len(rows) - _LISTED} more, most often: {commonest}{where}")
    return "\n".join(lines)


def _write(reasons: Mapping[int, str], split: Split, folder: Path) -> Path:
    path = folder / f"{split.name.replace('/', '_')}-{split.digest[:8]}.jsonl"
    rows = ({"row": row, "place": split.place(row), "reason": reasons[row]} for row in sorted(reasons))
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path


logger = logging.getLogger(__name__)


def encoder_key(encoder: Encoder, settings: StoreSettings) -> str:
    """The part of a store that holds embeddings by this encoder."""
    return digest_of(store_header(encoder.id, encoder.preprocessing_digest, encoder.dimension, settings.dtype))


def open_store(uri: str, settings: StoreSettings, split: Split, encoder: Encoder) -> EmbeddingStore:
    """The store at ``uri`` of this split's embeddings by this encoder."""
    return EmbeddingStore.open(
        uri,
        split=split,
        encoder_id=encoder.id,
        preprocessing_digest=encoder.preprocessing_digest,
        dimension=encoder.dimension,
        dtype=settings.dtype,
        storage_options=settings.storage_options,
        describe={"split": split.name, "key": split.key_column, "targets": split.settings.target_columns},
    )


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


def find_batch_size(split: Split, encoder: EncoderSettings, store: StoreAddress) -> str | None:
    """Settle the batch size of the store in this process; see settle_batch_size."""
    return settle_batch_size(warm_encoder(encoder), open_store_cached(store, split))


def embed_shards(
    split: Split, shards: list[Shard], encoder: EncoderSettings, store: StoreAddress, threads: Mapping[str, int]
) -> list[ShardReport]:
    """Embed some shards of ``split`` in this process; shards that the store holds are skipped.

    Weights are loaded and the store is opened once per process. ``threads`` is what `decode_threads` says of workers.
    """
    warm = warm_encoder(encoder)
    opened = open_store_cached(store, split)
    settle_batch_size(warm, opened)
    return embed_each(split, shards, warm, opened, threads=own_threads(threads))
